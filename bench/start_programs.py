"""The programs that bench/start.py runs: the same kernel under tilelang's own tuner and under atune."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from typing import Any

from common import ROOT

EXAMPLES = {"cuda": ROOT / "examples" / "gemm.py", "c": ROOT / "examples" / "gemm_cpu.py"}
SPACES: dict[str, dict[str, list[Any]]] = {
    "cuda": {
        "block_M": [64, 128], "block_N": [64, 128], "block_K": [32, 64], "num_stages": [2, 3], "threads": [128, 256],
        "swizzle": [True, False],
    },
    "c": {"block_M": [4, 16, 64], "block_N": [4, 16, 64, 128], "block_K": [4, 16, 64]},
}  # fmt: skip
"""Spaces by target, whose configurations all fit. A program gets some of them."""
SIZES = {"cuda": (4096, 4096, 4096), "c": (256, 256, 256)}
EDIT = {"cuda": ("C_local", "accumulators"), "c": ("tile", "accumulators")}
"""A name in the kernel's body, and its new name in the edited file: other source and code, but the same results."""
INSTALL = "from atune.compat.tilelang import install\n\ninstall()\n"
LATE = f"import tilelang\nimport torch\n{INSTALL}"
"""Head of a program that imports tilelang before atune, so that it only waits while the fork server imports."""
DEVICE = {"cuda": 'target="cuda"', "c": 'target="c", execution_backend="cython"'}


def configurations(target: str, count: int) -> list[dict[str, Any]]:
    """Return `count` configurations, spread evenly over the space."""
    axes = SPACES[target]
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [every[i * len(every) // count] for i in range(count)]


def function_source(target: str, name: str) -> str:
    """Return the source of a function of the example."""
    text = EXAMPLES[target].read_text()
    [node] = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name]
    return ast.get_source_segment(text, node) or ""


def drop_in(target: str, count: int, head: str = "") -> str:
    """Return a program written for tilelang's tuner, with `head` before its imports."""
    decorators = (
        "@autotune(configs=CONFIGS, warmup=3, rep=20, ref_prog=reference)",
        f"@tilelang.jit(out_idx=[-1], {DEVICE[target]})",
    )
    call = (f"kernel = matmul{SIZES[target]}", "print(kernel.config, kernel.latency)")
    return _program(target, count, call, decorators, head=head, last_import="from tilelang.autotuner import autotune")


def compiled_only(target: str, count: int) -> str:
    """Return a program in which tilelang compiles the configurations, in parallel as its tuner does.

    It stands in for tilelang's tuner on the CPU, because the tuner needs a GPU to measure.
    """
    compile = f"tilelang.jit(matmul, out_idx=[-1], {DEVICE[target]}).par_compile"
    return _program(target, count, (f"print(len({compile}([{{**SIZES, **config}} for config in CONFIGS])))",))


def workload_file(target: str, count: int, *, edited: bool = False) -> str:
    """Return a file that defines `WORKLOAD`, for the command line. `edited`: with another kernel body."""
    workload = "WORKLOAD = atune.Workload(matmul, CONFIGS, arguments=SIZES, reference=reference)"
    text = _program(target, count, (workload,), last_import="import atune")
    before, after = EDIT[target]
    return re.sub(rf"\b{before}\b", after, text) if edited else text


def warmed(target: str, *, warm: bool) -> str:
    """Return a program that tunes a single candidate. `warm`: after calling `atune.warm()` in its first lines."""
    head = "import atune\n\natune.warm()\n" if warm else "import atune\n"
    run = f'atune.run("{EXAMPLES[target]}:WORKLOAD", budget=1, strategy="exhaustive")'
    return f"{head}import tilelang\nimport torch\n\nprint({run}.best_config)\n"


def _program(
    target: str, count: int, last: Sequence[str], decorators: Sequence[str] = (), head: str = "", last_import: str = ""
) -> str:
    """Return a program with the kernel under `decorators`, and the lines `last` below it."""
    imports = (
        "from typing import Any",
        "import tilelang",
        "import tilelang.language as T",
        "import torch",
        last_import,
    )
    values = (
        f"CONFIGS = {configurations(target, count)!r}",
        f"SIZES = {dict(zip('MNK', SIZES[target], strict=True))!r}",
    )
    functions = (function_source(target, "reference"), *decorators, function_source(target, "matmul"))
    return "\n".join((head, *imports, last_import, *values, *functions, *last, ""))

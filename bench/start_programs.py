"""Programs written for tilelang's tuner, with one kernel, which bench/checkouts.py runs under atune."""

from __future__ import annotations

import ast
import itertools
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
"""By target: configurations that all fit, of which each program gets as many as it is to have."""
SIZES = {"cuda": (4096, 4096, 4096), "c": (256, 256, 256)}
INSTALL = "from atune.compat.tilelang import install\n\ninstall()\n"
DEVICE = {"cuda": 'target="cuda"', "c": 'target="c", execution_backend="cython"'}


def configurations(target: str, count: int) -> list[dict[str, Any]]:
    """Return `count` configurations, spread over the space."""
    axes = SPACES[target]
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [every[i * len(every) // count] for i in range(count)]


def function_source(target: str, name: str) -> str:
    """Return the text of one of the example's functions."""
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
    imports = (
        "from typing import Any", "import tilelang", "import tilelang.language as T", "import torch",
        "from tilelang.autotuner import autotune",
    )  # fmt: skip
    values = (
        f"CONFIGS = {configurations(target, count)!r}",
        f"SIZES = {dict(zip('MNK', SIZES[target], strict=True))!r}",
    )
    functions = (function_source(target, "reference"), *decorators, function_source(target, "matmul"))
    return "\n".join((head, *imports, *values, *functions, *call, ""))

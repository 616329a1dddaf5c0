"""The programs that bench/first.py runs: the same kernels under tilelang's own tuner and under atune."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT

EXAMPLES = {"cuda": ROOT / "examples" / "gemm.py", "c": ROOT / "examples" / "gemm_cpu.py"}
SPACES: dict[str, dict[str, list[Any]]] = {
    "cuda": {
        "block_M": [64, 128], "block_N": [64, 128], "block_K": [32, 64], "num_stages": [2, 3], "threads": [128, 256],
        "swizzle": [True, False],
    },
    "c": {"block_M": [4, 16, 64], "block_N": [4, 16, 64, 128], "block_K": [4, 16, 64]},
    "softmax": {"block_rows": [1, 2, 4], "threads": [128, 256, 512]},
    "attention": {"block_M": [128], "block_N": [32, 64, 128], "num_stages": [1, 2, 3], "threads": [128, 256]},
}  # fmt: skip
"""Spaces of the matrix product by target, and of other kernels. All configurations fit; a program gets some of them."""
SIZES = {"cuda": (4096, 4096, 4096), "c": (256, 256, 256)}
EDIT = {"cuda": ("C_local", "accumulators"), "c": ("tile", "accumulators")}
"""A name in the kernel's body, and its new name in the edited file: other source and code, but the same results."""
INSTALL = "from atune.compat.tilelang import install\n\ninstall()\n"
LATE = f"import tilelang\nimport torch\n{INSTALL}"
"""Head of a program that imports tilelang before atune, so that it only waits while the fork server imports."""
AUTOTUNE = "from tilelang.autotuner import autotune"
IMPORTS = "from typing import Any", "import tilelang", "import tilelang.language as T", "import torch"
SECOND = """
import time, atune

atune.run("ROOT/examples/gemm.py:WORKLOAD", budget=4)
began = time.perf_counter()
atune.run("ROOT/bench/kernels.py:EVEN", budget=20)
print([time.perf_counter() - began])
"""
"""A program that tunes twice, and prints the seconds of the second tuning."""
LOOK_UP = """
import time
from atune.workers.result_cache import ResultCache

cache = ResultCache()
key = cache.answers()[0].parts
began = time.perf_counter()
assert cache.find(key) is not None
print([time.perf_counter() - began])
"""
"""A program that looks up a result in its cache, and prints the seconds."""
DEVICE = {"cuda": 'target="cuda"', "c": 'target="c", execution_backend="cython"'}


class Operator(NamedTuple):
    """An operator of the library: a kernel of `file`, its sizes, and `count` configurations of a space."""

    file: Path
    kernel: str
    space: str
    sizes: tuple[Any, ...]
    count: int


ATTENTION = Operator(ROOT / "bench" / "attention.py", "attention", "attention", (4, 16, 2048, 128, True), 18)
LIBRARY = {
    "cuda": (
        Operator(EXAMPLES["cuda"], "matmul", "cuda", SIZES["cuda"], 5),
        Operator(ROOT / "examples" / "softmax.py", "softmax", "softmax", (8192, 2048), 9),
        Operator(EXAMPLES["cuda"], "matmul", "cuda", (1024, 4096, 4096), 10),
    ),
    "c": (
        Operator(EXAMPLES["c"], "matmul", "c", SIZES["c"], 2),
        Operator(EXAMPLES["c"], "matmul", "c", (128, 256, 256), 2),
    ),
}


def configurations(space: str, count: int) -> list[dict[str, Any]]:
    """Return `count` configurations, spread evenly over a space."""
    axes = SPACES[space]
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [every[i * len(every) // count] for i in range(count)]


def function_source(file: Path, name: str) -> str:
    """Return the source of a function of a file."""
    text = file.read_text()
    [node] = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name]
    return ast.get_source_segment(text, node) or ""


def drop_in(target: str, count: int, head: str = "") -> str:
    """Return a program written for tilelang's tuner, with `head` before its imports."""
    decorators = (
        "@autotune(configs=CONFIGS, warmup=3, rep=20, ref_prog=reference)",
        f"@tilelang.jit(out_idx=[-1], {DEVICE[target]})",
    )
    call = (f"kernel = matmul{SIZES[target]}", "print(kernel.config, kernel.latency)")
    return _program(target, count, call, decorators, head=head, last_import=AUTOTUNE)


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


def warmed(target: str, warm: bool) -> str:
    """Return a program that tunes a single candidate. `warm`: after calling `atune.warm()` in its first lines."""
    head = "import atune\n\natune.warm()\n" if warm else "import atune\n"
    run = f'atune.run("{EXAMPLES[target]}:WORKLOAD", budget=1, strategy="exhaustive")'
    return f"{head}import tilelang\nimport torch\n\nprint({run}.best_config)\n"


CLASS = """
class Operator{number}:
    def __init__(self, sizes):
        self.sizes = sizes

    def kernel(self):
        {sizes} = self.sizes

        @tilelang.jit(out_idx=[-1], {device})
        def kernel({names}):
            return {kernel}({sizes}, {given})

        return kernel

    def expected(self, *inputs):
        return {kernel}_reference(*inputs)

    def tuned(self):
        how = dict(warmup=3, rep=20, ref_prog=self.expected, do_not_specialize={listed})
        return autotune(configs={configs}, **how)(self.kernel())(**{first})


began = time.perf_counter()
Operator{number}({values}).tuned()
SECONDS.append(round(time.perf_counter() - began, 3))
"""
"""A class of the library, and its use. Its kernel closes over numbers; tilelang's tuner takes no other values."""


def library(target: str, operators: Sequence[Operator], head: str = "") -> str:
    """Return a program that uses a library's operators, and prints the seconds of each.

    The library wraps the tuner, and gives all tunable parameters at the call.
    """
    parts, known = [head, *IMPORTS, AUTOTUNE, "import json, math, time", "CAUSAL, SECONDS = True, []"], set[str]()
    for number, (file, kernel, space, sizes, count) in enumerate(operators):
        if kernel not in known:
            known.add(kernel)
            reference = function_source(file, "reference").replace("def reference", f"def {kernel}_reference")
            parts += function_source(file, kernel), reference
        configs = configurations(space, count)
        names, given = list(configs[0]), ", ".join(f"{name}={name}" for name in configs[0])
        parts.append(CLASS.format(
            number=number, device=DEVICE[target], names=", ".join(names), given=given, kernel=kernel, listed=names,
            configs=configs, first=configs[0], values=sizes, sizes=", ".join(f"s{i}" for i in range(len(sizes))),
        ))  # fmt: skip
    return "\n".join((*parts, "print(json.dumps(SECONDS))", ""))


def _program(
    target: str, count: int, last: Sequence[str], decorators: Sequence[str] = (), head: str = "", last_import: str = ""
) -> str:
    """Return a program with the kernel under `decorators`, and the lines `last` below it."""
    values = (
        f"CONFIGS = {configurations(target, count)!r}",
        f"SIZES = {dict(zip('MNK', SIZES[target], strict=True))!r}",
    )
    reference, kernel = (function_source(EXAMPLES[target], name) for name in ("reference", "matmul"))
    return "\n".join((head, *IMPORTS, last_import, *values, reference, *decorators, kernel, *last, ""))

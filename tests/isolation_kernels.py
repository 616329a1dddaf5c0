"""Kernels of which some break the compiler, each in a way of its own. Loaded by workers alone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import tilelang.language as T

import atune

N = 32
GOOD = ["good 1", "good 2", "good 3", "good 4"]
AT_LOWERING = ["raises", "segfaults", "sleeps"]
AT_COMPILING = ["static assertion", "calls nothing", "crashes the linker's parent", "sleeps in the linker", "no memory"]


def kernel(mode: str, threads: int = 0) -> Any:
    block = threads or None
    match mode:
        case "raises":
            raise ValueError("this kernel cannot be made")
        case "segfaults":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "sleeps":
            time.sleep(300)
    scale = float(mode.rpartition(" ")[2]) if mode in GOOD else float(-1 - AT_COMPILING.index(mode))

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=block):
            if mode == "static assertion":
                T.import_source('static_assert(sizeof(int) == 8, "ints are not that wide");\n')
            if mode == "calls nothing":
                T.evaluate(T.call_extern("int32", "nobody_has_defined_this"))
            for i in T.serial(N):
                out[i] = x[i] * T.float32(scale)

    return main


def spaced(good: list[str], bad: list[str]) -> list[dict[str, str]]:
    """Put the culprits among the others, so that halving has something to find."""
    modes = [mode for pair in zip(good, bad, strict=False) for mode in pair]
    return [{"mode": mode} for mode in [*modes, *good[len(bad) :], *bad[len(good) :]]]


ON_CPU = atune.Workload(kernel, spaced(GOOD, AT_COMPILING + AT_LOWERING))
ON_GPU = atune.Workload(
    kernel, spaced(GOOD[:3], ["segfaults", "static assertion", "calls nothing"]), arguments={"threads": 32}
)

"""Workloads whose spaces hang, end the process, or are too large to list."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import atune


def kernel(N: int = 1, **config: Any) -> None: ...


def holds_the_lock(a: int) -> bool:
    """Hang in C, where Python's global lock is never let go."""
    return a < 1 or sum(itertools.repeat(0)) > 0


def sleeps() -> None:
    time.sleep(1e6)


def calls_what_sleeps(a: int) -> bool:
    if a >= 1:
        sleeps()
    return True


def leaves(a: int) -> bool:
    if a >= 1:
        os._exit(3)
    return True


def axis() -> list[int]:
    sleeps()
    return [1]


def late(a: int, b: int) -> bool:
    """Hang once a part of the space is listed."""
    if (a, b) == (90, 0):
        sleeps()
    return True


HOLDS_THE_LOCK = atune.Workload(kernel, atune.Space(a=range(3), where=holds_the_lock))
CALLS_WHAT_SLEEPS = atune.Workload(kernel, atune.Space(a=range(3), where=calls_what_sleeps))
LEAVES = atune.Workload(kernel, atune.Space(a=range(3), where=leaves))
AXIS = atune.Workload(kernel, atune.Space(a=axis))
LATE = atune.Workload(kernel, atune.Space(a=range(100), b=range(50), where=late))
LISTED = atune.Workload(
    kernel, atune.Space(a=range(100), b=range(50), where=lambda a, b: a != b), default={"a": 1, "b": 0}
)


def add_one(N: int = 256, a: int = 0, b: int = 0, c: int = 0) -> Any:
    import tilelang.language as T

    block = 16 << (a + b + c) % 3

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] + 1.0

    return main


TUNABLE = atune.Workload(
    add_one, atune.Space({n: range(1000) for n in "abc"}, where=lambda a, b: a <= b), reference=lambda A: A + 1
)

"""A kernel and a reference that print where their processes may run, and at which niceness."""

from __future__ import annotations

import os
from typing import Any

import tilelang.language as T

import atune

N = 32


def say(what: str) -> None:
    print(what, *sorted(os.sched_getaffinity(0)), "nice", os.nice(0))


def kernel(times: int) -> Any:
    say("lowered on")

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                B[i] = A[i] * T.float32(times)

    return main


def reference(A: Any) -> Any:
    say("measured on")
    return A


WORKLOAD = atune.Workload(kernel, [{"times": 1}], reference=reference)

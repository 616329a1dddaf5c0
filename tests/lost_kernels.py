"""Kernels that all copy; the first is faster by far. For runs in which processes are killed, or the disk is full."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune

N, TOTAL = 32, 8


def kernel(x: int) -> Any:
    rounds = 200 + x if x else 1

    @T.prim_func
    def copy(a: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(N):
                out[i] = a[i]
                for _ in T.serial(rounds):
                    out[i] = out[i] * T.float32(0.5) + a[i] * T.float32(0.5)

    return copy


def reference(a: Any) -> Any:
    return a.clone()


WORKLOAD = atune.Workload(kernel, atune.Space(x=list(range(TOTAL))), reference=reference)

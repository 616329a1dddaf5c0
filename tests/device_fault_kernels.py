"""Kernels that go wrong on a GPU, between good ones. Loaded by workers alone."""

from typing import Any

import tilelang.language as T
from workloads import doubled

import atune

N = 1024
MODES = ["good", "assert", "also good", "trap"]
# Guarded, because each member of a group brings it along.
CODE = """
#ifndef ATUNE_TEST_FAULTS
#define ATUNE_TEST_FAULTS
#include <cassert>
__device__ int atune_assert(float* p) { assert(*(volatile float*)p == 12345.0f); return 0; }
__device__ int atune_trap(float* p) { asm volatile("trap;"); return 0; }
#endif
"""


def kernel(mode: str) -> Any:
    """out = a * 2, and before that what `mode` says."""
    call, fails = f"atune_{mode}", mode in ("assert", "trap")
    threads = 256 if mode == "also good" else 128

    @T.prim_func
    def main(a: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=threads):
            if fails:
                T.import_source(CODE)
                T.evaluate(T.call_extern("int32", call, T.address_of(out[0])))
            for i in T.Parallel(N):
                out[i] = a[i] * T.float32(2.0)

    return main


WORKLOAD = atune.Workload(kernel, atune.Space(mode=MODES), reference=doubled)

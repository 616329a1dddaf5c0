"""Kernels that write where they may not, or stop writing, among good ones. Loaded by workers alone."""

from typing import Any

import tilelang.language as T
from workloads import doubled

import atune

N, M = 100, 64
BLOCKS = [1, 2, 64, 1024, 4, 5, 10, 20, 25, 50]
"""In this order, so that innocent ones run after culprits; 64 and 1024 do not divide N."""
MODES = [
    "good 0", "past the end", "good 1", "before the start", "good 2", "far past the end", "good 3", "once", "good 4",
]  # fmt: skip
# Guarded, because each member of a group brings it along.
CODE = """
#ifndef ATUNE_TEST_BOUNDS
#define ATUNE_TEST_BOUNDS
#ifdef __CUDACC__
#define OF_ONE_THREAD __device__
#define ALONE (threadIdx.x == 0)
#define INPUT const float*
#else
#define OF_ONE_THREAD extern "C"
#define ALONE 1
#define INPUT float*
#endif
OF_ONE_THREAD int atune_write(float* p, int first, int end) {
  if (ALONE) for (int i = first; i < end; i++) p[i] = 123.0f;
  return 0;
}
#ifdef __CUDACC__
__device__
#else
static
#endif
int atune_calls = 0;
#ifndef __CUDACC__
#include <sys/resource.h>
extern "C" int atune_no_files(int n) {
  struct rlimit none = {3, 3};
  return setrlimit(RLIMIT_NOFILE, &none);
}
#endif
OF_ONE_THREAD int atune_double_once(float* out, INPUT x, int n) {
  if (ALONE && atune_calls++ == 0) for (int i = 0; i < n; i++) out[i] = 2.0f * x[i];
  return 0;
}
#endif
"""
WRITES = {"past the end": (M, M + 16), "before the start": (-16, 0), "far past the end": (M + 4096, M + 4097)}


def rounded_up(n: int, block: int, threads: int = 0) -> Any:
    """out = 2 x, in blocks of which the last one is not cut off."""
    wide = threads or None

    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), out: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=wide) as bx:
            for j in T.serial(block):
                out[bx * block + j] = x[bx * block + j] * 2.0

    return main


def calling(mode: str, threads: int = 0) -> Any:
    """out = 2 x, and what `mode` says."""
    wide, once, spoils = threads or None, mode == "once", mode == "no files"
    shift = int(mode[5:]) if mode.startswith("good") else 0  # no two are the same code
    first, end = WRITES.get(mode, (0, 0))

    @T.prim_func
    def main(x: T.Tensor((M,), "float32"), out: T.Tensor((M,), "float32")):
        with T.Kernel(1, threads=wide):
            T.import_source(CODE)
            if spoils:
                T.evaluate(T.call_extern("int32", "atune_no_files", 0))
            if once:
                T.evaluate(T.call_extern("int32", "atune_double_once", T.address_of(out[0]), T.address_of(x[0]), M))
            else:
                T.evaluate(T.call_extern("int32", "atune_write", T.address_of(out[0]), first, end))
                for i in T.serial(M):
                    out[(i + shift) % M] = x[(i + shift) % M] * 2.0

    return main


def spoiling(x: int) -> Any:
    """out = 2 x; candidate 1 leaves its process unable to open files, such as libraries."""
    return calling("no files" if x == 1 else f"good {x}")


UNSAFE = {"tl.disable_safe_memory_legalize": True}
BLOCKED = atune.Workload(
    rounded_up, atune.Space(block=BLOCKS), arguments={"n": N}, reference=doubled, pass_configs=UNSAFE
)
# An address of theirs is taken, so that only their names tell the outputs.
SPOILING = atune.Workload(spoiling, atune.Space(x=[0, 1, 2, 3]), reference=doubled, out_idx=1)
CALLING = atune.Workload(calling, atune.Space(mode=MODES), reference=doubled, out_idx=1)
BLOCKED_GPU = atune.Workload(
    rounded_up, atune.Space(block=BLOCKS), arguments={"n": N, "threads": 32}, reference=doubled, pass_configs=UNSAFE
)
CALLING_GPU = atune.Workload(calling, atune.Space(mode=MODES), arguments={"threads": 32}, reference=doubled, out_idx=1)

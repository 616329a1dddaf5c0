"""Kernels of the benchmarks, which workers load. Annotations name local values, so they are evaluated at once."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import tilelang.language as T
import torch

import atune

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from gemm import matmul, reference

SPACE = {
    "block_M": [64, 128, 256], "block_N": [64, 128, 256], "block_K": [32, 64], "num_stages": [0, 1, 2, 3],
    "threads": [128, 256], "swizzle": [True, False],
}  # fmt: skip
WINNER = {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 3, "threads": 256, "swizzle": True}
SMALL_CONFIG = {"block_M": 64, "block_N": 64, "block_K": 64, "num_stages": 3, "threads": 128, "swizzle": False}


def fits(block_M: int, block_N: int, block_K: int, num_stages: int, threads: int) -> bool:
    """Tell whether the tiles fit in the shared memory of sm_90, and the sums in the registers of its threads."""
    tiles_bytes = 2 * max((block_M + block_N) * block_K * max(num_stages, 1), block_M * block_N)
    return tiles_bytes <= 227 * 1024 and block_M * block_N <= 256 * threads


def gemm(n: int, space: Any, name: str) -> atune.Workload:
    arguments = {"M": n, "N": n, "K": n}
    work = {"flops": 2.0 * n**3, "bytes": 6.0 * n**2}
    return atune.Workload(matmul, space, arguments=arguments, reference=reference, name=name, **work)


SMALL = gemm(1024, [SMALL_CONFIG], "gemm 1024")
LARGE = gemm(4096, [WINNER], "gemm 4096")
FULL = gemm(4096, atune.Space(**SPACE), "gemm 4096, 288 configurations")
MANY_TILES = {"block_M": [64, 128, 192, 256], "block_N": [64, 96, 128, 192, 256], "block_K": [32, 64, 128]}
MANY = gemm(
    4096, atune.Space(**{**SPACE, **MANY_TILES, "num_stages": [0, 1, 2, 3, 4, 5]}, where=fits), "gemm 4096, many"
)
"""1,124 configurations."""
CHOSEN = gemm(4096, json.loads(os.environ.get("ATUNE_BENCH_CONFIGS", "null")) or [WINNER], "gemm 4096, the best")
EVEN = gemm(2048, atune.Space(**{**SPACE, "block_M": [64, 128], "block_N": [64, 128]}), "gemm 2048")

FAULTS = {
    2: "trap", 5: "illegal address", 8: "misaligned", 11: "endless", 14: "out of memory", 17: "wrong", 20: "NaN",
    23: "writes nothing", 26: "killed outside",
}  # fmt: skip
N_FAULTY = 29
N_ELEMENTS = 1 << 25
# With a guard, because each member of a group includes it.
DEVICE_CODE = """
#ifndef ATUNE_FAULTS
#define ATUNE_FAULTS
__device__ int atune_trap(float* p) { asm volatile("trap;"); return 0; }
__device__ int atune_illegal(float* p) { *(volatile int*)(((long long)p & 0xff) + 4096) = 1; return 0; }
__device__ int atune_misaligned(float* p) { *(volatile int*)((char*)p + 1) = 1; return 0; }
__device__ int atune_endless(float* p) { while (*(volatile float*)p != 12345.0f) { } return 0; }
__device__ int atune_slow(float* p) { long long t = clock64(); while (clock64() - t < 20000000LL) { } return 0; }
#endif
"""
CALLS = {
    "trap": "atune_trap", "illegal address": "atune_illegal", "misaligned": "atune_misaligned",
    "endless": "atune_endless", "killed outside": "atune_slow",
}  # fmt: skip


def faulty(x: int, bad: bool = True) -> Any:
    """out = in * 2 over 128 MiB, in blocks that differ by candidate; some go wrong as `FAULTS` says."""
    fault = FAULTS.get(x, "") if bad else ""
    n = N_ELEMENTS
    block, threads = 1024 * (1 + x % 4), [128, 256, 512][x % 3]
    if fault in CALLS:
        call = CALLS[fault]

        @T.prim_func
        def calling(a: T.Tensor((n,), "float32"), out: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, 1024), threads=128) as bx:
                T.import_source(DEVICE_CODE)
                T.evaluate(T.call_extern("int32", call, T.address_of(out[0])))
                for i in T.Parallel(1024):
                    out[bx * 1024 + i] = a[bx * 1024 + i] * T.float32(2.0)

        return calling
    n_out = 1 << 40 if fault == "out of memory" else n
    scale = {"wrong": 2.5, "NaN": float("nan")}.get(fault, 2.0)
    if fault == "writes nothing":

        @T.prim_func
        def silent(a: T.Tensor((n,), "float32"), out: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=128):
                for i in T.Parallel(1024):
                    if a[i] == T.float32(12345.0):
                        out[i] = a[i]

        return silent

    shift = x  # so that all candidates have different code

    @T.prim_func
    def main(a: T.Tensor((n,), "float32"), out: T.Tensor((n_out,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                out[bx * block + i] = a[bx * block + i] * T.float32(scale) + T.float32(shift) * T.float32(1e-30)

    return main


def twice(a: torch.Tensor) -> torch.Tensor:
    return a * 2


GOOD = [x for x in range(N_FAULTY) if x not in FAULTS]
FAULTY = atune.Workload(faulty, [{"x": x} for x in range(N_FAULTY)], reference=twice, name="faults")
CLEAN = atune.Workload(faulty, [{"x": x} for x in GOOD], arguments={"bad": False}, reference=twice, name="no faults")

SHAPES = atune.Workload(
    matmul,
    atune.Space(
        block_M=[64, 128], block_N=[64, 128, 256], block_K=[32, 64], num_stages=[2, 3, 4], threads=[128, 256],
        swizzle=[True, False],
    ),
    arguments=json.loads(os.environ.get("ATUNE_BENCH_PROBLEM", "null")) or {"M": 1024, "N": 4096, "K": 4096},
    reference=reference, flops=lambda M, N, K: 2.0 * M * N * K, name="shapes",
)  # fmt: skip
"""144 configurations for a layer's product; see `sets.py`."""

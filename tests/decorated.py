"""Kernels and callbacks of the tests of the decorator and the result cache."""

from __future__ import annotations

from typing import Any

import tilelang
import tilelang.language as T
import torch
from workloads import doubled as doubled
from workloads import scale as scale

import atune
from atune.frontends.blocking import run_blocking
from atune.frontends.cached_tune import CachedWork, tune_work
from atune.frontends.tuner import RunPlan
from atune.journal.result import TuneResult
from atune.workers.result_cache import ResultCache


def plus(A: torch.Tensor, by: int = 1) -> torch.Tensor:
    return A + by


def times(A: torch.Tensor, by: int) -> torch.Tensor:
    return A * by


scale_jit = tilelang.jit(scale, out_idx=[-1], target="c", execution_backend="cython")


def workload(
    space: atune.Space | None = None, kernel: Any = scale, name: str = "scale", n: int = 256, **options: Any
) -> atune.Workload:
    space = space or atune.Space(factor=[1, 2], block=[16, 64])
    return atune.Workload(kernel, space, arguments={"n": n}, reference=doubled, name=name, **options)


def cached_work(workload: atune.Workload, **options: Any) -> CachedWork:
    """Return a workload with the plan of these options of `tune`."""
    return CachedWork(workload, RunPlan.of("tune", {"cached": False, **options}))


def run_cached(work: CachedWork, cache: ResultCache, **options: Any) -> TuneResult:
    """Do what `tune_work` does, blocking."""
    return run_blocking(tune_work, work, cache, **options)


QUICK = atune.BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=2, n_final_rounds=3)


TUNING = {"n_warmup": 1, "n_repeat": 3, "n_final": 2, "n_final_rounds": 3}
"""Options of a tuning that is over soon."""


@tilelang.jit(target="c", execution_backend="cython")
def shift(A, by: int = 1, block: int = 16):
    """Eager: returns A + by."""
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block)) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] + by
    return B


@tilelang.jit(target="c", execution_backend="cython")
def add(A, B, C, block: int = 16, dtype: Any = T.float32):
    """Eager: C = A + B, written into C."""
    m, n = T.const("m, n")
    A: T.Tensor[[m, n], dtype]
    B: T.Tensor[[m, n], dtype]
    C: T.Tensor[[m, n], dtype]
    with T.Kernel(m) as bx:
        for i in T.serial(n):
            C[bx, i] = A[bx, i] + B[bx, i]


@tilelang.jit(target="c", execution_backend="cython")
def shift_any(A, by: int = 1, block: int = 16):
    """Eager: returns A + by, for any length."""
    m = T.dynamic("m")
    A: T.Tensor[[m], T.float32]
    B = T.empty((m,), "float32")
    with T.Kernel(T.ceildiv(m, block)) as bx:
        for i in T.serial(block):
            if bx * block + i < m:
                B[bx * block + i] = A[bx * block + i] + by
    return B


@tilelang.jit(target="c", execution_backend="cython")
def multiply(A, by: T.int32, block: int = 16):
    """Eager: returns A * by, where `by` is known only at run time."""
    n = T.const("n")
    A: T.Tensor[[n], T.int32]
    B = T.empty((n,), "int32")
    with T.Kernel(T.ceildiv(n, block)) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] * by
    return B

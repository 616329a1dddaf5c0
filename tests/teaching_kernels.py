"""Kernels, references and inputs that fail as a new user's do. Loaded by workers alone."""

from __future__ import annotations

import time
from typing import Any

import tilelang.language as T
import torch
from workloads import scale

import atune

N = 64


def misspelt(N: int, block: int = 16) -> Any:
    """Name `q`, which is not defined."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // block) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + q] * 2.0  # type: ignore[name-defined]  # noqa: F821

    return main


def times(N: int, block: int = 16, factor: int = 2) -> Any:
    """B = factor · A: other code for every factor."""
    return scale(N, factor, block)


def twice(N: int, block: int = 16) -> Any:
    """B = 2 A."""
    return scale(N, 2, block)


def raising(A: torch.Tensor) -> torch.Tensor:
    return A @ missing  # type: ignore[name-defined]  # noqa: F821


def hanging(A: torch.Tensor) -> torch.Tensor:
    time.sleep(300)
    return A * 2


def badly_shaped(N: int) -> list[torch.Tensor]:
    return [torch.randn(N).view(3, -1)]


def workload(kernel: Any, **options: Any) -> atune.Workload:
    return atune.Workload(kernel, {"block": [16, 32]}, **{"arguments": {"N": N}, **options})


MISSPELT = workload(misspelt, reference=lambda A: A * 2)
RAISING = workload(twice, reference=raising)
HANGING = workload(twice, reference=hanging)
BAD_INPUTS = workload(twice, inputs=badly_shaped)

"""Small tasks on the CPU, which judge the candidates of these tests."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch

import atune


def double(n: int, block: int = 32) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for j in T.serial(block):
                i: T.int32 = bx * block + j
                B[i] = A[i] * 2.0

    return main


def twice(A: torch.Tensor) -> torch.Tensor:
    return A * 2


DOUBLE = atune.Workload(double, {"block": [32]}, arguments={"n": 1024}, reference=twice, name="double")
ACCEPTED = atune.Workload(double, {"block": [32]}, arguments={"n": 1024}, check=lambda *_: True, name="double")
UNJUDGED = atune.Workload(double, {"block": [32]}, arguments={"n": 1024}, name="double")

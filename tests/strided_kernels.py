"""Kernels whose parameters have strides of their own. Loaded by workers alone."""

from typing import Any

import tilelang.language as T
import torch

import atune

M, N = 6, 8


def padded(pad: int, symbolic: bool = False) -> Any:
    """out = a * 2, transposed, where a row of `a` is followed by `pad` elements that nobody may touch."""
    row = T.dynamic("row") if symbolic else N + pad

    @T.prim_func
    def main(a: T.StridedTensor((M, N), (row, 1), "float32"), out: T.StridedTensor((N, M), (1, N), "float32")):
        with T.Kernel(1):
            for i, j in T.grid(M, N):
                out[j, i] = a[i, j] * T.float32(2.0)

    return main


def given_rows() -> list[torch.Tensor]:
    return [torch.arange(M * (N + 3), dtype=torch.float32).view(M, N + 3)[:, :N]]


def doubled(a: torch.Tensor) -> torch.Tensor:
    assert a.stride(1) == 1 and a.stride(0) >= N
    return a.T * 2


PADS = [{"pad": pad} for pad in (0, 3, 5)]
DRAWN = atune.Workload(padded, PADS, reference=doubled, rtol=0, atol=0)
GIVEN = atune.Workload(padded, PADS, arguments={"symbolic": True}, inputs=given_rows, reference=doubled, rtol=0, atol=0)

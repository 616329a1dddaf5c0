"""A kernel for the CPU, written for tilelang's autotuner: what examples/compat has for GPUs, small."""

from typing import Any

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune


def reference(A: torch.Tensor) -> torch.Tensor:
    return A * 3


@autotune(configs=[{"block": 8}, {"block": 64}], warmup=1, rep=5, ref_prog=reference)
@tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")
def scaled(n: int, block: int = 8) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 3

    return main


def arguments() -> tuple[int]:
    return (4096,)


def inputs() -> list[torch.Tensor]:
    return [torch.randn(4096)]


def tuned() -> Any:
    return scaled(*arguments())

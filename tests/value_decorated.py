"""A decorated kernel and a drop-in's in a module, for pickles by name; and kernels with odd names of parameters."""

from __future__ import annotations

from typing import Any

import tilelang
import tilelang.language as T
from value_kernels import scaled

import atune
from atune.compat import tilelang as drop_in


@atune.autotune(space={"block": [32, 64]}, target="c")
@tilelang.jit
def doubled(N: int, block: int = 64) -> Any:
    return scaled(N, 2.0)


@drop_in.autotune(configs=[{"block": 32}, {"block": 64}])
@tilelang.jit(target="c", out_idx=-1)
def dropped(N: int, block: int = 64) -> Any:
    return scaled(N, 2.0)


@tilelang.jit
def add(A, dimensions: float = 1.0, block: int = 64):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, block), threads=1) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] + T.float32(dimensions)
    return B

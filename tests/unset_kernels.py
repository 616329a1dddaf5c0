"""Kernels whose tunable argument is None by default, with which tilelang kills the process; and a way into atune for
each, which ``python -m unset_kernels WAY`` takes."""

from __future__ import annotations

import sys
from typing import Any

import tilelang
import tilelang.language as T
import torch

import atune
from atune.compat.tilelang import AutoTuner, autotune

SPACE = {"block": [64, 128]}
LISTED = [{"block": 64}, {"block": 128}]


def double(n: int, block: Any = None) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2.0

    return main


def made(n: int, block: Any = None) -> Any:
    """`double`, of which tilelang learns only by a call that it is a lazy kernel."""
    return double(n, block)


def eager(A, block: Any = None):  # type: ignore[no-untyped-def]
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), T.float32)
    with T.Kernel(T.ceildiv(n, block), threads=1) as bx:
        for i in T.Parallel(block):
            B[bx * block + i] = A[bx * block + i] * 2.0
    return B


def jitted(kernel: Any) -> Any:
    return tilelang.jit(kernel, target="c", execution_backend="cython")


def dropped_in() -> Any:
    tuner = AutoTuner.from_kernel(jitted(double), configs=LISTED).set_compile_args(target="c", out_idx=[-1])
    tuner.set_kernel_parameters(((1024,), {}), {})
    return tuner.run().kernel


WAYS = {
    "drop-in": dropped_in,
    "drop-in's decorator": lambda: autotune(configs=LISTED)(jitted(double))(1024),
    "decorator": lambda: atune.autotune(jitted(double), space=SPACE)(1024),
    "lazy": lambda: atune.autotune(jitted(made), space=SPACE)(1024),
    "eager": lambda: atune.autotune(jitted(eager), space=SPACE),
    "tune": lambda: atune.autotune(double, space=SPACE, target="c").tune(1024).kernel,
}


if __name__ == "__main__":
    A = torch.randn(1024)
    assert torch.equal(WAYS[sys.argv[1]]()(A), A * 2)
    print("done")

"""Kernels of the tests of the drop-in, which workers load too."""

from __future__ import annotations

import os
import time
from typing import Any

import tilelang.language as T
import torch
from contract_kernels import moody

N = 64


def scale(n: int = N, factor: int = 2, block: int = 16) -> Any:
    """B = A * factor."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return main


def picky(block: int, n: int = N) -> Any:
    """As `scale`, but refuses blocks that are no power of two."""
    if block & (block - 1):
        raise ValueError(f"block {block} is no power of two")
    return scale(n, 2, block)


def in_place(block: int) -> Any:
    """B = A * 2, and then A = 0: the next call finds other inputs."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2.0
                A[bx * block + i] = 0.0

    return main


def moody_and_logged(mode: str, log: str, threads: int = 0) -> Any:
    """The contract suite's kernels, whose inputs' maker leaves its process' number in `log`."""
    return moody(mode, threads)


def logged_inputs(log: str) -> list[torch.Tensor]:
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    return [torch.arange(1, 33, dtype=torch.float32)]


def doubled(A: torch.Tensor) -> torch.Tensor:
    return A * 2


def doubled_into(A: torch.Tensor, B: torch.Tensor) -> None:
    """A reference that returns nothing, like the kernel."""
    B.copy_(A * 2)


def counting_reference(log: str) -> Any:
    """Return a reference that writes a line with its input's sum at each call, and destroys its input.

    It takes a millisecond, so that each sample of its timing is one call.
    """

    def reference(A: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)
        with open(log, "a") as file:
            file.write(f"{A.sum().item():.6f}\n")
        answer = A * 2
        A.zero_()
        return answer

    return reference

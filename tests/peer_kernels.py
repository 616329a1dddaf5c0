"""Kernels of the tests of the drop-in, which workers load too."""

from __future__ import annotations

import os
from typing import Any

import torch
import workloads
from contract_kernels import moody

N = 64


def scale(n: int = N, factor: int = 2, block: int = 16) -> Any:
    """B = A * factor."""
    return workloads.scale(n, factor, block)


def picky(block: int, n: int = N) -> Any:
    """As `scale`, but refuses blocks that are no power of two."""
    if block & (block - 1):
        raise ValueError(f"block {block} is no power of two")
    return scale(n, 2, block)


def moody_and_logged(mode: str, log: str, threads: int = 0) -> Any:
    """The contract suite's kernels, whose inputs' maker leaves its process' number in `log`."""
    return moody(mode, threads)


def logged_inputs(log: str) -> list[torch.Tensor]:
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    return [torch.arange(1, 33, dtype=torch.float32)]

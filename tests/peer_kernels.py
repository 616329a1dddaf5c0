"""Kernels of the tests of the drop-in, which workers load too."""

from __future__ import annotations

from typing import Any

import workloads

N = 64


def scale(n: int = N, factor: int = 2, block: int = 16) -> Any:
    """B = A * factor."""
    return workloads.scale(n, factor, block)


def picky(block: int, n: int = N) -> Any:
    """As `scale`, but refuses blocks that are no power of two."""
    if block & (block - 1):
        raise ValueError(f"block {block} is no power of two")
    return scale(n, 2, block)

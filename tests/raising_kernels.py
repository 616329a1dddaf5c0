"""Kernels that raise what no kernel should, among good ones. Loaded by workers alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tilelang.language as T
import torch

import atune

N = 32


class Panic(BaseException):
    """Such as PyO3's PanicException, which is no Exception."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class SpeechlessPanic(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


RAISED: dict[str, BaseException] = {
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError("cancelled"),
    "SystemExit": SystemExit(0),
    "StopIteration": StopIteration(),
    "Skipped": pytest.skip.Exception("not today"),
    "Panic": Panic("index out of bounds"),
    "Speechless": Speechless(),
    "SpeechlessPanic": SpeechlessPanic(),
    "BaseException": BaseException("who am I?"),
    "ValueError": ValueError("a lone \udcff surrogate"),
    "BaseExceptionGroup": BaseExceptionGroup("several", [KeyboardInterrupt(), Speechless()]),
}
"""By the name that each failure's message begins with."""
MODES = [mode for pair in zip(RAISED, ("good 1", "good 2", "good 3", "good 4"), strict=False) for mode in pair]
MODES += [name for name in RAISED if name not in MODES]


def kernel(mode: str) -> Any:
    if mode in RAISED:
        raise RAISED[mode]
    first = int(mode.rpartition(" ")[2])

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):  # from another element on in each candidate: no two are the same code
                out[(i + first) % N] = x[(i + first) % N] * T.float32(2.0)

    return main


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


WORKLOAD = atune.Workload(kernel, [{"mode": mode} for mode in MODES], reference=doubled)

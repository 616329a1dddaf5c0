"""Kernels that raise what no kernel should, or meddle with their worker, among good ones. Loaded by workers alone."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from contract_kernels import shifted
from workloads import doubled

import atune


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
    "ValueError": ValueError("a lone \udcff surrogate"),
    "BaseExceptionGroup": BaseExceptionGroup("several", [KeyboardInterrupt(), Speechless()]),
}
"""By the name that each failure's message begins with."""
GOOD = ("good 1", "good 2", "good 3", "good 4")
MEDDLES = ["good 1", "forks", "closes its socket", "good 2", "closes its socket and stays", "answers", "good 3"]


def replies() -> int:
    """Return the descriptor of this worker's socket."""
    links = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) >= 64}
    [found] = [fd for fd, link in links.items() if link.startswith("socket:")]
    return found


def kernel(mode: str) -> Any:
    if mode in RAISED:
        raise RAISED[mode]
    match mode:
        case "forks":
            os.fork()
        case "closes its socket":
            os.close(replies())
        case "closes its socket and stays":
            os.close(replies())
            time.sleep(60)
        case "answers":
            os.write(replies(), b"\xff" * 24)
    return shifted(GOOD.index(mode) if mode in GOOD else len(GOOD))


def workload(modes: list[str]) -> atune.Workload:
    return atune.Workload(kernel, [{"mode": mode} for mode in modes], reference=doubled)


RAISING = workload([mode for pair in zip(RAISED, GOOD, strict=False) for mode in pair] + [*RAISED][len(GOOD) :])
MEDDLING = workload(MEDDLES)

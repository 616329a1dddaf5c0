"""Workloads for the tests of whole runs; loaded by the workers through ``FILE.py:NAME``."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import tilelang.language as T
import torch

import atune


def scale(n: int, factor: int = 1, block: int = 64) -> Any:
    """B = A * factor."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor

    return main


def holds_the_gil(n: int, factor: int = 1) -> Any:
    """Never comes back, inside native code that keeps the GIL."""
    ctypes.PyDLL(None).sleep(600)
    return scale(n, factor)


def slow_compiler(n: int, factor: int = 1) -> Any:
    """Puts a g++ on PATH that starts the real one on an endless program, as slow compilers do."""
    folder = os.environ["ATUNE_TEST_SLOW_GXX"]
    if folder not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]
    return scale(n, factor)


def starts_a_daemon(n: int, factor: int = 1) -> Any:
    """Starts a process in a session of its own, as a compiler with a server does."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "601"])
        os._exit(0)
    os.wait()
    return scale(n, factor)


def doubled(A: torch.Tensor) -> torch.Tensor:
    return A * 2


def in_float64(A: torch.Tensor) -> torch.Tensor:
    """Doubled, by a program that computes in another way than torch does by itself, but for 512 numbers."""
    found = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    expected = (torch.float32, "highest", 0, True) if len(A) == 512 else (torch.float64, "medium", 1, False)
    assert (*found, torch.backends.cudnn.allow_tf32) == expected
    return A * 2


SPACE = atune.Space(factor=[1, 2, 3], block=[16, 64])
SCALE = atune.Workload(scale, SPACE, arguments={"n": 256}, reference=doubled, name="scale")
STATED = atune.Workload(scale, {"block": [16, 64]}, arguments={"n": 256, "factor": 2}, reference=in_float64)
GIL = atune.Workload(holds_the_gil, atune.Space(factor=[1, 2]), arguments={"n": 256}, name="gil")
SLOW = atune.Workload(slow_compiler, atune.Space(factor=[1, 2]), arguments={"n": 256}, name="slow")
DAEMON = atune.Workload(starts_a_daemon, atune.Space(factor=[1]), arguments={"n": 256}, name="daemon")
SLICED = atune.Workload(scale, atune.Space(factor=[2], block=[8, 32]), arguments={"n": 512}, name="sliced")

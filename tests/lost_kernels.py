"""Kernels that all copy; the first is faster by far. For runs in which processes are killed, or the disk is full."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import tilelang.language as T

import atune

N, TOTAL = 32, 8
DYING = "ATUNE_TEST_DYING"
"""Environment variable: a folder with an entry ``lower-X-NUMBER`` for each time that lowering X kills its process."""


def kernel(x: int) -> Any:
    for left in Path(os.environ.get(DYING, "/nowhere")).glob(f"lower-{x}-*"):
        left.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    rounds = 200 + x if x else 1

    @T.prim_func
    def copy(a: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(N):
                out[i] = a[i]
                for _ in T.serial(rounds):
                    out[i] = out[i] * T.float32(0.5) + a[i] * T.float32(0.5)

    return copy


def reference(a: Any) -> Any:
    return a.clone()


def deadly(part: str) -> Any:
    """Return a check that kills the fork server whenever candidates are measured, or in the final."""

    def check(outputs: list[Any], expected: list[Any]) -> None:
        if any(frame.name == part for frame in traceback.extract_stack()):
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

    return check


def deadly_kernel(x: int) -> Any:
    if x == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return kernel(x)


def clearing_kernel(x: int) -> Any:
    """Remove all that atune has in the program's `$TMPDIR`, as a cleaner of temporary files does; once."""
    with suppress(FileNotFoundError):
        (Path(os.environ[DYING]) / "clears").unlink()
        shutil.rmtree(Path(os.environ["TMPDIR"]).parents[1], ignore_errors=True)
    return kernel(x)


FEW = atune.Space(x=[0, 1, 2])
CLEARED = atune.Workload(clearing_kernel, FEW, reference=reference)
IN_FINAL = atune.Workload(kernel, FEW, reference=reference, check=deadly("final"))
MEASURED = atune.Workload(kernel, FEW, reference=reference, check=deadly("measure"))
LOWERED = atune.Workload(deadly_kernel, FEW, reference=reference)
WORKLOAD = atune.Workload(kernel, atune.Space(x=list(range(TOTAL))), reference=reference)

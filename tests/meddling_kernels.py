"""Kernels that meddle with the worker that makes them, among good ones. Loaded by workers alone."""

from __future__ import annotations

import os
import time
from typing import Any

import tilelang.language as T
import torch

import atune

N = 32
MODES = ["good", "forks", "closes its socket", "good too", "closes its socket and stays", "answers", "last good"]


def replies() -> int:
    """Return the descriptor of this worker's socket."""
    links = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) >= 64}
    [found] = [fd for fd, link in links.items() if link.startswith("socket:")]
    return found


def kernel(mode: str) -> Any:
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
    first = MODES.index(mode)

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):  # from another element on in each candidate: no two are the same code
                out[(i + first) % N] = x[(i + first) % N] * T.float32(2.0)

    return main


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


WORKLOAD = atune.Workload(kernel, [{"mode": mode} for mode in MODES], reference=doubled)

"""Twenty good candidates and, among them, one of each fault that the CPU can have. Loaded by workers alone."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch
from contract_kernels import calling, endless

import atune

N = 32
FAULTS = {3: "abort", 6: "segv", 9: "endless", 12: "wrong", 15: "nan", 18: "half", 21: "killed", 24: "slow"}
"""Of these, ``slow`` is right: the test kills its process from outside while it is measured."""


def kernel(x: int) -> Any:
    """out = in * 2, or what `FAULTS` says of candidate `x`."""
    fault = FAULTS.get(x, "")
    match fault:
        case "abort":
            return calling("raise", 0, 6)
        case "segv":
            return calling("raise", 0, 11)
        case "endless":
            return endless(0)
        case "killed":
            return calling("raise", 0, 9)
        case "slow":
            return calling("usleep", 0, 150_000)
    scale = {"wrong": 2.5, "nan": float("nan")}.get(fault, 2.0)
    n = N // 2 if fault == "half" else N

    @T.prim_func
    def main(a: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(n):  # from another element on in each candidate: no two are the same code
                out[(i + x) % N] = a[(i + x) % N] * T.float32(scale)

    return main


def inputs() -> list[torch.Tensor]:
    return [torch.arange(1, N + 1, dtype=torch.float32)]


def doubled(a: torch.Tensor) -> torch.Tensor:
    return a * 2


WORKLOAD = atune.Workload(kernel, atune.Space(x=list(range(28))), inputs=inputs, reference=doubled)

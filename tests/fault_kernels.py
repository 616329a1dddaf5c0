"""Twenty good candidates and, among them, one of each fault that the CPU can have. Loaded by workers alone."""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import torch
from contract_kernels import N, calling, endless, inputs, shifted
from workloads import doubled

import atune

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
    return shifted(x, scale, N // 2 if fault == "half" else N)


WORKLOAD = atune.Workload(kernel, atune.Space(x=list(range(28))), inputs=inputs, reference=doubled)


def in_place(x: int) -> Any:
    """a += a, then out = a: right for the first call alone, unless a is restored."""

    @T.prim_func
    def main(a: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                a[i] = a[i] + a[i]
                out[(i + x) % N] = a[(i + x) % N]

    return main


def on_its_own(x: int) -> Any:
    """b *= 2, with no output."""

    @T.prim_func
    def main(b: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                b[(i + x) % N] = b[(i + x) % N] * T.float32(2.0 if x else 3.0)

    return main


def doubles(b: torch.Tensor) -> None:
    b.mul_(2)


WRITING = atune.Workload(in_place, [{"x": 0}], inputs=inputs, reference=doubled, rtol=0, atol=0)
OWN = atune.Workload(on_its_own, [{"x": x} for x in range(3)], inputs=inputs, reference=doubles, out_idx=())

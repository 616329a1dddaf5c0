"""The contract suite's kernels: out = x * scale, and kernels that go wrong in every way. Loaded by workers alone."""

from __future__ import annotations

import time
from typing import Any

import tilelang.language as T
import torch

import atune

N = 32
MODES = [
    "ok", "also ok", "wrong", "nan", "skip", "crash", "loop", "raise", "refused", "slow", "slow lower", "replicated",
]  # fmt: skip


def scaled(scale: float, threads: int = 0) -> Any:
    if threads:

        @T.prim_func
        def on_gpu(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
            with T.Kernel(1, threads=threads):
                for i in T.Parallel(N):
                    out[i] = x[i] * T.float32(scale)

        return on_gpu

    @T.prim_func
    def on_cpu(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                out[i] = x[i] * T.float32(scale)

    return on_cpu


def shifted(first: int, scale: float = 2.0, n: int = N, size: int = N) -> Any:
    """out = x * scale, `n` elements from another one on in each candidate: no two are the same code."""

    @T.prim_func
    def main(x: T.Tensor((size,), "float32"), out: T.Tensor((size,), "float32")):
        with T.Kernel(1):
            for i in T.serial(n):
                out[(i + first) % size] = x[(i + first) % size] * T.float32(scale)

    return main


def replicated(threads: int) -> Any:
    """A kernel that holds each element several times: eight threads of a GPU do, of four warps; on the CPU two slots.

    What is stored is added to what stands there already: warps that all did so, in turn, would be seen.
    """
    half = N // 2
    if threads:

        @T.prim_func
        def on_gpu(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
            with T.Kernel(2, threads=4 * threads) as block:
                held = T.alloc_fragment((half,), "float32")
                total = T.alloc_shared((half,), "float32")
                for i in T.Parallel(half):
                    held[i] = x[block * half + i]
                for i in T.Parallel(half):
                    total[i] = held[i]
                for i in T.Parallel(half):
                    total[i] = total[i] + held[i]
                for i in T.Parallel(half):
                    out[block * half + i] = total[i]

        return on_gpu

    @T.prim_func
    def on_cpu(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(2) as block:
            held = T.alloc_local((2, half), "float32")
            for r, i in T.grid(2, half):
                held[r, i] = x[block * half + i]
            for _r, i in T.grid(2, half):
                out[block * half + i] = held[0, i] + held[1, i]

    return on_cpu


def endless(threads: int) -> Any:
    block = threads or None

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=block):
            for _a, _b in T.grid(2000000000, 2000000000):
                out[0] = out[0] * x[1] + x[2]

    return main


def silent(threads: int) -> Any:
    block = threads or None

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=block):
            for i in T.serial(N // 2):
                out[i] = x[i] * 2.0

    return main


def calling(name: str, threads: int, *arguments: int) -> Any:
    """A kernel that calls the C or device function `name`."""

    block = threads or None

    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=block):
            T.evaluate(T.call_extern("int32", name, *arguments))
            for i in T.serial(N):
                out[i] = x[i] * 2.0

    return main


def moody(mode: str, threads: int = 0) -> Any:
    match mode:
        case "ok":
            return scaled(2.0, threads)
        case "also ok":
            return calling("__syncthreads" if threads else "rand", threads)
        case "wrong":
            return scaled(2.5, threads)
        case "nan":
            return scaled(float("nan"), threads)
        case "skip":
            return silent(threads)
        case "crash":
            return calling("__trap", threads) if threads else calling("raise", threads, 11)
        case "loop":
            return endless(threads)
        case "refused":
            return calling("no_such_function", threads)
        case "slow":
            return calling("slow_marker", threads)
        case "replicated":
            return replicated(threads)
        case "slow lower":
            time.sleep(300)
    raise ValueError(f"the kernel does not like {mode!r}")


def inputs() -> list[torch.Tensor]:
    return [torch.arange(1, N + 1, dtype=torch.float32)]


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2


SCALED = atune.Workload(scaled, atune.Space(scale=[1.0, 2.0, 3.0, 4.0, 5.0]), inputs=inputs)
MOODY = atune.Workload(moody, atune.Space(mode=MODES), inputs=inputs, reference=reference)
SCALED_GPU = atune.Workload(
    scaled, atune.Space(scale=[1.0, 2.0, 3.0, 4.0, 5.0]), arguments={"threads": 32}, inputs=inputs
)
MOODY_GPU = atune.Workload(
    moody, atune.Space(mode=MODES), arguments={"threads": 32}, inputs=inputs, reference=reference
)

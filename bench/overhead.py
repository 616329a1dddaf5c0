"""The overhead of a decorated kernel's call over the bare kernel's call, in nanoseconds.

    python bench/overhead.py [--target c|cuda] [--rounds N] [--out FOLDER]

Eager: calls, with the same tensors, the function under `@tilelang.jit` with the winner's configuration, the function
under `@atune.autotune`, and the compiled kernel, which both call in the end. Lazy: calls the functions that return the
compiled kernel. A round times each call once, in rotating order. The result is the median over rounds of the difference
within a round, with its 95 % interval, so that slow drifts of the machine cancel. On a GPU only the launch is timed,
not the kernel, because a round fits into the launch queue.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import tilelang
import tilelang.language as T
import torch

import atune
from atune.model.measurement import median_interval

CALLS = 200
"""Calls per sample: few enough to fit into a GPU's launch queue."""


def shift(A, by: int = 1, block: int = 64):
    """Eager: return A + by."""
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block)) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] + by
    return B


def shift_on_gpu(A, by: int = 1, block: int = 64):
    """Eager, on a GPU: return A + by."""
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block), threads=block) as bx:
        for i in T.Parallel(block):
            B[bx * block + i] = A[bx * block + i] + by
    return B


def lazy(n: int, block: int = 64) -> Any:
    """Lazy: return the kernel that doubles its input."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return main


def ns_a_call(call: Callable[[], Any]) -> float:
    started = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - started) / CALLS


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int, settle: Callable[[], None]) -> dict[str, list[float]]:
    """Time each of `calls` once per round, in rotating order. Return ns per call, by name and round."""
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(3):
        for name in names:
            ns_a_call(calls[name])
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            settle()
            samples[name].append(ns_a_call(calls[name]))
    return samples


def difference(samples: dict[str, list[float]], of: str, over: str) -> tuple[float, float, float]:
    """Return (low, median, high) of `of` minus `over` within a round, in ns."""
    return median_interval([a - b for a, b in zip(samples[of], samples[over], strict=True)])


def main() -> None:
    arguments = common.options(__doc__ or "", 300.0, target="c", rounds=400)
    on_cpu = arguments.target == "c"
    settings: dict[str, Any] = {"target": "c", "execution_backend": "cython"} if on_cpu else {}
    device = "cpu" if on_cpu else "cuda"
    settle = (lambda: None) if on_cpu else torch.cuda.synchronize
    function = shift if on_cpu else shift_on_gpu
    A = torch.randn(64, device=device)
    with tempfile.TemporaryDirectory() as folder:
        options = {"space": {"block": [32, 64]}, "tuning": "quick", "cache": Path(folder) / "cache"}
        bare = tilelang.jit(function, **settings)
        tuned = atune.autotune(tilelang.jit(function, **settings), **options)
        tuned(A)
        block = tuned.best_config(A)["block"]
        kernel = tuned.compile(A)
        assert torch.equal(bare(A, block=block), A + 1) and torch.equal(tuned(A), A + 1)
        calls = {
            "eager: compiled kernel": lambda: kernel(A),
            "eager: @tilelang.jit": lambda: bare(A, block=block),
            "eager: @atune.autotune": lambda: tuned(A),
        }
        if on_cpu:
            factory = tilelang.jit(lazy, out_idx=[-1], **settings)
            lazily = atune.autotune(tilelang.jit(lazy, out_idx=[-1], **settings), **options)
            assert torch.equal(lazily(64)(A), A * 2) and torch.equal(factory(64, block=64)(A), A * 2)
            calls["lazy: @tilelang.jit"] = lambda: factory(64, block=64)
            calls["lazy: @atune.autotune"] = lambda: lazily(64)
        gc.disable()
        samples = in_turn(calls, arguments.rounds, settle)
        gc.enable()
    head = ["call", "ns per call", "over the call under @tilelang.jit alone", "over the compiled kernel's own call"]
    rows: list[list[Any]] = [head]
    results: dict[str, Any] = {"target": arguments.target, "calls_a_sample": CALLS, "rounds": arguments.rounds}
    for name, values in samples.items():
        figures: dict[str, Any] = {"ns": statistics.median(values)}
        for column, suffix in (("over_jit_ns", "@tilelang.jit"), ("over_kernel_ns", "compiled kernel")):
            other = f"{name.partition(':')[0]}: {suffix}"
            figures[column] = difference(samples, name, other) if other in samples and other != name else None
        texts = ["" if v is None else "{1:+.0f} ({0:+.0f}…{2:+.0f})".format(*v) for v in list(figures.values())[1:]]
        rows.append([name, f"{figures['ns']:.0f}", *texts])
        results[name] = {**figures, "samples_ns": values}
    common.report(arguments, "overhead", rows, results)


if __name__ == "__main__":
    main()

"""Checks of the settings against the findings of discovery."""

from __future__ import annotations

from atune.errors import TargetError
from atune.model.settings import Acceleration, BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery

PLAIN = "all candidates fit the free workers: each is compiled plain"
"""Why no accelerator is used where there is nothing to accelerate."""


def check_discovery(found: Discovery, compile: CompileSettings, benchmark: BenchmarkSettings) -> None:
    """Raise `TargetError` where the settings do not go with the target."""
    on_cpu = found.target.kind == "c"
    if on_cpu and compile.backend == "tvm_ffi":
        raise TargetError("backend tvm_ffi does not support target c: use --backend auto or cython")
    if on_cpu and compile.backend == "nvrtc":
        raise TargetError("backend nvrtc compiles CUDA code: use --backend auto or cython with target c")
    if compile.backend == "nvrtc" and not found.cuda_python:
        raise TargetError(
            "backend nvrtc needs the package cuda-python (pip install cuda-python); or use --backend auto"
        )
    method = benchmark.method
    if method != "auto" and (method == "perf_counter") != on_cpu:
        fitting = "'perf_counter'" if on_cpu else "'events', 'cuda_graph' or 'cupti'"
        raise TargetError(f"method {method!r} does not time target {found.target.kind}: use {fitting}")


def accelerators_for(
    candidates: int, workers: int, asked: Acceleration, found: Discovery
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return which accelerators a run uses, as ``name@version``, and why not the others, by name.

    None where each candidate has a worker to itself: then all are compiled as tilelang does, and need no proof of it.
    """
    if asked.auto and candidates <= workers:
        return (), {**found.unused, **{bare(name): PLAIN for name in found.accelerators}}
    return found.accelerators, dict(found.unused)


def bare(accelerator: str) -> str:
    """Return an accelerator's name without its version."""
    return accelerator.partition("@")[0]

"""Checks of the settings against the findings of discovery."""

from __future__ import annotations

from atune.errors import TargetError
from atune.local.compiler_choice import PLAIN, CompileCosts, all_plain
from atune.model.settings import Acceleration, BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery


def check_discovery(found: Discovery, compile: CompileSettings, benchmark: BenchmarkSettings) -> None:
    """Raise `TargetError` if the settings do not fit the target."""
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
    candidates: int, workers: int, asked: Acceleration, found: Discovery, *, prove: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the accelerators of a run, as ``name@version``, and the reason against each other one, by name.

    Empty if compiling all candidates as tilelang does takes no longer: they need no proof. `prove`: whether the winner
    is to be proven otherwise.
    """
    why = PLAIN if candidates <= workers else ""
    if prove and found.target.kind == "cuda":
        why = all_plain(candidates, workers, CompileCosts())
    if why and asked.auto:
        return (), {**found.unused, **{bare(name): why for name in found.accelerators}}
    return found.accelerators, dict(found.unused)


def bare(accelerator: str) -> str:
    """Return an accelerator's name without its version."""
    return accelerator.partition("@")[0]

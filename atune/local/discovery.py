"""Checks of the settings against the findings of discovery."""

from __future__ import annotations

from atune.errors import TargetError
from atune.model.settings import Acceleration, BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery

PLAIN = "all candidates fit the free workers: each is compiled plain"
"""The reason for using no accelerator if there is nothing to accelerate."""
NO_PROOF = "compiling so few candidates plain takes no longer than proving the winner"
FEW = 1.5
"""Candidates for each worker up to which a proof, one plain compile at the end, takes longer than accelerators save.
Measured with 16 workers on an H200's host: all plain takes 0.67 of the wall with 20 candidates, and 1.0 with 32."""


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
    of others is proven.
    """
    why = PLAIN if candidates <= workers else ""
    if not why and candidates <= FEW * workers and prove and found.target.kind == "cuda":
        why = NO_PROOF
    if why and asked.auto:
        return (), {**found.unused, **{bare(name): why for name in found.accelerators}}
    return found.accelerators, dict(found.unused)


def bare(accelerator: str) -> str:
    """Return an accelerator's name without its version."""
    return accelerator.partition("@")[0]

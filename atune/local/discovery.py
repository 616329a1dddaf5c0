"""Checks of the settings against the findings of discovery."""

from __future__ import annotations

from atune.errors import TargetError
from atune.model.settings import Acceleration, BenchmarkSettings, bare
from atune.processes.messages import Discovery

FEW = 0.8
"""Up to this many candidates for each worker, and always for a single one, all are compiled plain. They hardly delay
each other, and the winner's proof would take as long again. On an H200 with 16 workers, runs of 10 candidates ended
1.22 times as late with accelerators and a proof as without, and runs of 15 candidates 1.01 times."""
PLAIN = "with so few candidates each is compiled plain"
"""The reason for using no accelerator."""


def check_discovery(found: Discovery, benchmark: BenchmarkSettings) -> None:
    """Raise `TargetError` if the settings do not fit the target."""
    on_cpu = found.target.kind == "c"
    method = benchmark.method
    if method != "auto" and (method == "perf_counter") != on_cpu:
        fitting = "'perf_counter'" if on_cpu else "'events', 'cuda_graph' or 'cupti'"
        raise TargetError(f"method {method!r} does not time target {found.target.kind}: use {fitting}")


def accelerators_for(
    candidates: int, workers: int, asked: Acceleration, found: Discovery
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the accelerators of a run, as ``name@version``, and the reason against each other one, by name."""
    if not asked.auto or candidates > max(1, FEW * workers):
        return found.accelerators, dict(found.unused)
    return (), {**found.unused, **{bare(name): PLAIN for name in found.accelerators}}

"""Checks of the settings against the findings of discovery."""

from __future__ import annotations

from atune.errors import TargetError
from atune.model.settings import Acceleration, BenchmarkSettings, bare
from atune.processes.messages import Discovery

PLAIN = "all candidates fit the free workers: each is compiled plain"
"""The reason for using no accelerator if there is nothing to accelerate."""
NO_PROOF = "with so few candidates it saves less time than the winner's proof takes"
"""The reason for not using an accelerator without which no proof is needed, or a shorter one."""
NO_NEIGHBOURS = "so few candidates are lowered at once, and share no work"
FEW = 1.5
"""Candidates for each worker up to which a proof, one plain compile at the end, takes longer than accelerators save.
Measured with 16 workers on an H200's host: all plain takes 0.67 of the wall with 20 candidates, and 1.0 with 32."""
MANY_WORKERS = 8
"""With this many workers, leaders are proven on idle ones while others compile."""
ALONE = 1.25
"""Workers for each candidate from which all are compiled plain, because they hardly delay each other. On an H200 with
16 workers, runs with a proof ended 1.22 times as late with 10 candidates, and 1.01 times with 15."""


def check_discovery(found: Discovery, benchmark: BenchmarkSettings) -> None:
    """Raise `TargetError` if the settings do not fit the target."""
    on_cpu = found.target.kind == "c"
    method = benchmark.method
    if method != "auto" and (method == "perf_counter") != on_cpu:
        fitting = "'perf_counter'" if on_cpu else "'events', 'cuda_graph' or 'cupti'"
        raise TargetError(f"method {method!r} does not time target {found.target.kind}: use {fitting}")


def are_few(candidates: float, workers: int) -> bool:
    """Tell whether a proof at the end takes longer than accelerators save."""
    return candidates <= FEW * workers


def accelerators_for(
    candidates: int, workers: int, asked: Acceleration, found: Discovery, *, prove: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the accelerators of a run, as ``name@version``, and the reason against each other one, by name.

    With few candidates only those are used with which a proof is one compile: the best is known in half the time, while
    the run ends about when it would without them. With very few candidates none is used. `prove`: whether the winner is
    proven.
    """
    cuda, fit = found.target.kind == "cuda", candidates <= workers
    if not (asked.auto and (fit or (prove and cuda and are_few(candidates, workers)))):
        return found.accelerators, dict(found.unused)
    early = workers >= MANY_WORKERS and candidates * ALONE > workers
    used = found.light if cuda and (early or not prove) else ()
    why = PLAIN if fit and not used else NO_PROOF if prove else NO_NEIGHBOURS
    return used, {**found.unused, **{bare(name): why for name in found.accelerators if name not in used}}

"""How a further part of a run begins: what is recorded of it before any work."""

from __future__ import annotations

from atune.engine.interfaces import Machine
from atune.engine.plan import Plan
from atune.journal.events import BenchmarkFailed, JournalRepaired, RunResumed
from atune.journal.recorder import Recorder


def record_resumed(
    recorder: Recorder, machine: Machine, plan: Plan, versions: dict[str, str], accepted: tuple[str, ...]
) -> None:
    """Record that a further part begins, and settle the candidates that need no work."""
    state, emit, journal = recorder.state, recorder.emit, recorder.journal
    if journal is not None and journal.torn_bytes:
        emit(JournalRepaired, cut_bytes=journal.torn_bytes)
    active, unused = machine.accelerators(plan.to_compile)
    emit(
        RunResumed,
        part=state.resumed.part + 1 if state.resumed else 1,
        versions=versions,
        accepted=accepted,
        accelerators=active,
        unused=dict(unused),
    )
    for index, device in plan.suspects.items():
        message = "suspect: the whole program died twice while this candidate was being measured"
        emit(BenchmarkFailed, index=index, device=device, kind="suspect", message=message)

"""A builder of event streams by hand, for tests of everything that only reads events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atune.journal.events import (
    SCHEMA,
    AnyEvent,
    ArtifactBuilt,
    BenchmarkFailed,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceReady,
    FinalOrdered,
    ReferenceMeasured,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
)
from atune.journal.state import State
from atune.journal.writer import Journal
from atune.model.artifact import StaticFacts
from atune.model.candidate import config_key
from atune.model.device import DeviceInfo, Target
from atune.model.measurement import FinalEntry, Timing
from atune.reporting.log import event_log


def timing(*latencies_ms: float) -> Timing:
    return Timing.of([ms * 1e3 for ms in latencies_ms], "perf_counter")


class Stream:
    """Collects events; each method adds one, a tenth of a second (`step_s`) after the one before."""

    def __init__(
        self,
        total: int = 4,
        default: int | None = None,
        step_s: float = 0.1,
        schema: int = SCHEMA,
        no_default: str = "",
        **settings: Any,
    ) -> None:
        self.events: list[AnyEvent] = []
        self.step_s = step_s
        self.mono = 0.0
        self.add(
            RunStarted,
            schema=schema,
            workload="toy",
            origin="toy.py:WORKLOAD",
            fingerprint="f" * 64,
            space="5" * 64,
            total=total,
            default=default,
            no_default=no_default,
            arguments={"N": 64},
            target=Target("c"),
            devices=("cpu",),
            strategy="exhaustive",
            settings=settings,
            versions={"atune": "0"},
        )

    def add(self, kind: type[Any], /, **fields: Any) -> Stream:
        seq = len(self.events)
        self.events.append(kind(seq=seq, time=1.7e9 + self.mono, mono=round(self.mono, 6), **fields))
        self.mono += self.step_s
        return self

    def logged(self, log: Any) -> None:
        """Log all events."""
        state, write = State(), event_log(log)
        for event in self.events:
            state.apply(event)
            write(event, state, "toy-1.jsonl")

    def ready(self, reference_ms: float | None = None) -> Stream:
        self.add(DeviceReady, device=DeviceInfo("cpu", "a CPU"))
        return self if reference_ms is None else self.add(ReferenceMeasured, device="cpu", timing=timing(reference_ms))

    def proposed(self, index: int, **config: Any) -> Stream:
        config = config or {"block": index}
        return self.add(CandidateProposed, index=index, key=config_key(config), config=config)

    def lowered(self, index: int, code_key: str = "") -> Stream:
        facts = StaticFacts(threads=128)
        return self.add(CandidateLowered, index=index, code_key=code_key or f"c{index}", facts=facts, seconds=0.1)

    def aliased(self, index: int, same_as: int) -> Stream:
        return self.add(CandidateAliased, index=index, same_as=same_as)

    def pruned(self, index: int, reason: str = "too much shared memory") -> Stream:
        return self.add(CandidatePruned, index=index, reason=reason)

    def built(self, *indices: int) -> Stream:
        return self.add(ArtifactBuilt, indices=indices, file="group.so", seconds=0.5)

    def build_failed(self, index: int, message: str = "g++ said no") -> Stream:
        return self.add(BuildFailed, index=index, kind="compile", message=message, detail="line 1\nline 2")

    def measured(self, index: int, *latencies_ms: float) -> Stream:
        return self.add(CandidateMeasured, index=index, device="cpu", timing=timing(*latencies_ms), checked=True)

    def failed(self, index: int, message: str = "wrong", kind: str = "mismatch") -> Stream:
        return self.add(BenchmarkFailed, index=index, device="cpu", kind=kind, message=message)

    def candidate(self, index: int, *latencies_ms: float, **config: Any) -> Stream:
        """Take a candidate the whole way; without latencies its benchmark fails."""
        self.proposed(index, **config).lowered(index).built(index)
        return self.measured(index, *latencies_ms) if latencies_ms else self.failed(index)

    def final(
        self,
        entries: dict[int, Sequence[float]],
        reference: Sequence[float] | None = None,
        ties: tuple[int, ...] = (),
    ) -> Stream:
        timed = tuple(FinalEntry(index, timing(*ms)) for index, ms in entries.items())
        timed_too = None if reference is None else timing(*reference)
        return self.add(FinalOrdered, device="cpu", entries=timed, reference=timed_too, ties=ties)

    def finished(self, wall_s: float = 1.0, **fields: Any) -> Stream:
        return self.add(RunFinished, wall_s=wall_s, reason="exhausted", **fields)

    def interrupted(self, wall_s: float = 1.0) -> Stream:
        return self.add(RunInterrupted, wall_s=wall_s, reason="signal")

    def resumed(self) -> Stream:
        self.mono = 0.0
        return self.add(RunResumed, part=1, versions={})


def write(path: Path, events: list[AnyEvent]) -> Path:
    with Journal.create(path) as journal:
        for event in events:
            journal.append(event)
    return path

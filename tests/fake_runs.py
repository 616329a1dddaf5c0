"""Runs of the engine with fakes, for tests of what happens in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from atune import TuneResult, tune
from atune.journal.events import CandidateMeasured, CandidateProposed, Event
from atune.journal.reader import read
from atune.model.artifact import Access, BlockWork, StaticFacts
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.testing import FakeClock, FakeMachine, Script


@pytest.fixture(params=["asyncio", "trio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "trio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Every event loop, for the tests of a module that imports this fixture."""
    return request.param


def valley(low: int) -> Callable[[dict[str, Any]], float]:
    """Return a latency function with its minimum at candidate `low`."""
    return lambda config: 1.0 + abs(config["x"] - low)


class Run:
    """One finished run: its result, and its events with when, in virtual seconds, each came."""

    def __init__(self, result: TuneResult, events: list[Event], seconds: list[float]) -> None:
        self.result, self.events, self.seconds = result, events, seconds

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kinds)]

    def when(self, kind: type[Event]) -> float:
        """Return when the last event of `kind` came."""
        return [at for at, e in zip(self.seconds, self.events, strict=True) if isinstance(e, kind)][-1]

    def measured(self) -> list[int]:
        return sorted(e.index for e in self.of(CandidateMeasured))


async def finish(machine: FakeMachine, **options: Any) -> Run:
    machine.clock = clock = machine.clock or FakeClock()
    events, seconds = list[Event](), list[float]()

    def listen(event: Event) -> None:
        events.append(event)
        seconds.append(clock.now)

    result = await tune(machine=machine, on_event=listen, **options)
    assert (machine.opened, machine.closed, machine.running) == (1, 1, 0)
    assert [e.seq for e in events] == list(range(len(events)))
    settled = result.measured + result.failed + result.pruned + result.duplicates + result.remaining
    assert settled == result.total == len(machine.configs)
    return Run(result, events, seconds)


SLOW, SLOW_S = 7, 40.0
"""The last candidate, and the seconds that compiling it takes: long enough for all that others could do meanwhile."""
ALONE = CompileSettings(group_size=1)


def slow_last(**script: Any) -> Script:
    """Return a script in which candidate 0 is the fastest and the last one is compiled for long."""
    values = {"latency_ms": lambda c: 1.0 + c["x"], "compile_s": lambda c: SLOW_S if c["x"] == SLOW else 0.5}
    return Script(**{**values, **script})


async def tuned(machine: FakeMachine, n_final: int = 3, **options: Any) -> Run:
    return await finish(machine, **{"compile": ALONE, "benchmark": BenchmarkSettings(n_final=n_final), **options})


def of_kind(journal: Path, kind: type[Event]) -> list[Any]:
    return [event for event in read(journal) if isinstance(event, kind)]


def proposed(run: Path | Iterable[Any]) -> list[int]:
    """Return what a run proposed, by its journal or its events: without what failed in the survey."""
    events = read(run) if isinstance(run, Path) else run
    return [e.index for e in events if isinstance(e, CandidateProposed) and not e.surveyed]


def cut(journal: Path, events: int, part: Path | None = None) -> Path:
    """Leave so many events of a journal, as a SIGKILL after them does: in the file `part`, if one is named."""
    part = part or journal
    part.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:events]))
    return part


def cut_before(journal: Path, count: int, part: Path | None = None) -> Path:
    """Leave a journal as it was when the program died before its proposal number `count`."""
    return cut(journal, of_kind(journal, CandidateProposed)[count].seq, part)


def copying(place: float) -> StaticFacts:
    """Return facts of a copy that moves the more, and that the prior has the later, the larger `place` is."""
    work = BlockWork(reads=(Access(n_bytes=1e6 * (1 + place), axes="x"),), threads=128)
    return StaticFacts(smem_bytes=0, threads=128, grid=(1000, 1, 1), accumulators=8, work=work)

"""Keys and events of runs that never were, for the tests of the result cache. Imports neither tilelang nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from atune.journal.events import (
    BenchmarkFailed,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    Event,
    RunFinished,
    RunStarted,
)
from atune.journal.reader import found_in
from atune.journal.state import State
from atune.journal.writer import write_journal
from atune.model.artifact import StaticFacts
from atune.model.candidate import config_key, space_hash
from atune.model.device import Target
from atune.model.measurement import Timing
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.result_cache import ResultCache, StoredRun
from atune.workers.result_key import ResultKey, result_key


def key_of(events: list[Event]) -> ResultKey:
    """Return what the result of a run depends on."""
    assert isinstance(events[0], RunStarted)
    key = result_key(events[0])
    assert key is not None
    return key


def put(cache: ResultCache, events: list[Event], path: Path | None = None) -> Path:
    """Write a run's journal into `cache`, or to `path`, and add it. Returns the journal's path."""
    path = path or cache.new_path("run")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_journal(str(path), events)  # type: ignore[arg-type]
    cache.add(path)
    return path


def run_of(cache: ResultCache, events: list[Event]) -> StoredRun | None:
    """Return the run that has the result of the work of `events`."""
    return cache.find(key_of(events))


def events(
    *latencies: float | None, finished: bool = True, at: float = 1.0, digests: str = "", **header_fields: Any
) -> list[Event]:
    """Events of a run whose candidate i has `latencies[i]`, or failed its check where that is None.

    `at`: their time. `digests`: of all kernels. `header_fields`: changes of the header.
    """
    configs = [{"block": 16 << i} for i in range(len(latencies))]
    header = RunStarted(
        seq=0, time=at, mono=0.0, schema=1, workload="gemm", origin="", fingerprint="f",
        code="f", problem={"M": 64}, models=("CPU",), space=space_hash(map(config_key, configs)), total=len(configs),
        arguments={"M": 64}, target=Target("c"), devices=("cpu",), strategy="exhaustive", versions={"atune": "1"},
        settings={
            "compile": msgspec.to_builtins(CompileSettings()), "benchmark": msgspec.to_builtins(BenchmarkSettings()),
            "seed": 0, "budget": {},
        },
    )  # fmt: skip
    found: list[Event] = [msgspec.structs.replace(header, **header_fields)]

    def add(kind: type[Event], /, **fields: Any) -> None:
        found.append(kind(seq=len(found), time=at, mono=float(len(found)), **fields))

    for i, latency in enumerate(latencies):
        add(CandidateProposed, index=i, key=config_key(configs[i]), config=configs[i])
        add(CandidateLowered, index=i, code_key=f"code{i}", ir_digest=digests, facts=StaticFacts(), seconds=0.1)
        if latency is None:
            add(BenchmarkFailed, index=i, device="cpu", kind="mismatch", message="wrong")
        else:
            add(CandidateMeasured, index=i, device="cpu", timing=Timing.of([latency * 1e3], "events"), checked=True)
    if finished:
        add(RunFinished, wall_s=1.0, reason="exhausted", found=found_in(State.of(found), "exhausted"))
    return found


def with_configs(run: list[Event], configs: list[dict[str, int]]) -> list[Event]:
    """Return the events of an ended run with other configurations, by the candidates' indices."""
    found = [
        msgspec.structs.replace(event, config=configs[event.index], key=config_key(configs[event.index]))
        if isinstance(event, CandidateProposed)
        else event
        for event in run
    ]
    return [*found[:-1], msgspec.structs.replace(found[-1], found=found_in(State.of(found)))]

"""A recorded space: the outcome of each candidate in a journal, and the time that it took."""

from __future__ import annotations

import lzma
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from spaces import journal_in

from atune.engine.strategy import DUPLICATE, latency_or_reason
from atune.errors import UsageError
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    DeviceReady,
    Event,
)
from atune.journal.reader import JournalReader
from atune.journal.state import State
from atune.model.artifact import StaticFacts
from atune.model.candidate import Config
from atune.model.device import DeviceInfo, Target

FACTS = ".facts.json.xz"
"""Suffix of the file next to a journal that has the `StaticFacts` of its candidates, by index."""


@dataclass(frozen=True)
class Tried:
    """The outcome of a candidate. `reason`: why its latency is missing. Seconds are of one worker or device."""

    latency_ms: float | None
    reason: str = ""
    lower_s: float = 0.0
    compile_s: float = 0.0
    device_s: float = 0.0


@dataclass(frozen=True)
class Recording:
    """A recorded space. `start_s`: seconds until workers and devices are ready. `end_s`: those of final and proof."""

    configs: dict[int, Config]
    tried: dict[int, Tried]
    facts: dict[int, StaticFacts]
    start_s: float = 0.0
    end_s: float = 0.0
    target: Target | None = None
    devices: tuple[DeviceInfo, ...] = ()
    default: int | None = None

    @property
    def best_ms(self) -> float:
        return min((t.latency_ms for t in self.tried.values() if t.latency_ms is not None), default=math.inf)


def read_recording(path: str | Path) -> Recording:
    """Read the journal at `path`, compressed or not. Raises `JournalError`, and `UsageError` if nothing was measured.

    A file of facts next to the journal overrides its facts, because journals may lack some of them.
    """
    with journal_in(Path(path)) as journal:
        recording = recording_of(JournalReader(journal), str(path))
    file = Path(path).parent / f"{Path(path).name.partition('.jsonl')[0]}{FACTS}"
    if not file.is_file():
        return recording
    try:
        with lzma.open(file) as packed:
            facts = msgspec.json.decode(packed.read(), type=dict[int, StaticFacts])
    except (OSError, EOFError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise UsageError(f"{file}, next to the journal, cannot be read: {error}") from error
    return replace(recording, facts=recording.facts | facts)


def recording_of(events: Iterable[Event], where: str) -> Recording:
    """Fold `events`. The seconds of compiling a library are divided equally among its members."""
    state, begun = State(), dict[int, float]()
    lower_s, compile_s, device_s = (defaultdict[int, float](float) for _ in range(3))
    start_s, settled_s = 0.0, 0.0
    for event in events:
        state.apply(event)
        match event:
            case CandidateProposed() if not start_s:
                start_s = event.mono
            case CandidateLowered():
                lower_s[event.index] = event.seconds
            case ArtifactBuilt():
                for index in event.indices:
                    compile_s[index] = max(compile_s[index], event.seconds / len(event.indices))
            case DeviceReady() if not begun:
                start_s = max(start_s, event.mono)
            case BenchmarkStarted():
                begun[event.index] = event.mono
            case CandidateMeasured():
                device_s[event.index], settled_s = event.seconds, event.mono
            case BenchmarkFailed():
                device_s[event.index] = event.mono - begun.get(event.index, event.mono)
                settled_s = event.mono
    tried = {}
    for entry in state.entries.values():
        outcome = state.outcome(entry.index)
        if entry.key and entry.in_space and outcome is not None:
            latency_ms, reason = latency_or_reason(state, entry.index)
            first = reason != DUPLICATE
            tried[entry.index] = Tried(
                latency_ms,
                reason,
                lower_s[entry.index],
                compile_s[outcome.index] if first else 0.0,  # of the candidate that was built and ran
                device_s[outcome.index] if first else 0.0,
            )
    if not any(t.latency_ms is not None for t in tried.values()):
        raise UsageError(f"{where} has no measured candidate, so nothing can be simulated")
    configs = {index: state.entries[index].config for index in sorted(tried)}
    facts = {index: known for index in configs if (known := state.entries[index].facts) is not None}
    assert state.header is not None
    default = state.header.default
    return Recording(
        configs, tried, facts, start_s, max(0.0, state.last_mono - settled_s),
        state.header.target, tuple(state.devices.values()),
        default if default in configs else None,
    )  # fmt: skip

"""The state of one candidate, as the fold over the events knows it, and the best so far over time."""

from __future__ import annotations

from typing import Literal

import msgspec

from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateMeasured, CandidatePruned
from atune.model.artifact import MachineFacts, StaticFacts
from atune.model.candidate import BASELINE, Config

Status = Literal["measured", "failed", "pruned", "duplicate", "remaining"]
Outcome = CandidateMeasured | BuildFailed | BenchmarkFailed | CandidatePruned
Place = tuple[float, str, int]
"""Latency in ms, key and index of a measured candidate."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """The folded state of one candidate. It has no cycles, so that the garbage collector can skip it."""

    index: int
    key: str = ""
    config: Config = {}
    code_key: str = ""
    source_key: str = ""
    facts: StaticFacts | None = None
    machine: MachineFacts | None = None
    lowered: bool = False
    built: bool = False
    parent: int | None = None
    """An earlier candidate of the space with the same code."""
    refused: bool = False
    """Whether it is a baseline that a constraint refuses."""
    outcome: Outcome | None = None
    """The latest outcome of this candidate's code; kept at the first candidate with that code."""
    surveyed: bool = False
    """As in `CandidateProposed`; so is `further_layout`."""
    further_layout: bool = False
    place: Place | None = None
    """Its key in the ranking, while it is measured."""

    @property
    def in_space(self) -> bool:
        """Whether it is one of the space's candidates, and not the baseline. Only these count."""
        return self.index != BASELINE

    @property
    def may_win(self) -> bool:
        """Whether it was measured and may win. The baseline may if no constraint refuses it, and its outputs were
        checked: it may be another program than the space's candidates.
        """
        checked = isinstance(self.outcome, CandidateMeasured) and (self.in_space or self.outcome.checked)
        return checked and not self.refused


def status_of(entry: Entry) -> Status:
    """Return the status of a candidate that is the first with its code."""
    match entry.outcome:
        case CandidateMeasured():
            return "measured"
        case CandidatePruned():
            return "pruned"
        case None:
            return "remaining"
        case _:
            return "failed"


class Improvement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate became the best so far, by first timing."""

    tried: int
    """Candidates that had an outcome by then, this one among them."""
    seconds: float
    """Since the run started; of a resumed run the seconds of all its parts."""
    latency_ms: float
    index: int
    """The candidate, as the result credits it."""

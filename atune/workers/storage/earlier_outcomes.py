"""Outcomes of configurations in earlier runs, and a journal that begins with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from atune.journal.events import (
    BenchmarkFailed,
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    Event,
    RunStarted,
)
from atune.journal.state import State
from atune.model.artifact import StaticFacts
from atune.model.candidate import Config, config_key

LASTING = ("lower", "codegen", "compile", "launch", "out_of_bounds", "mismatch", "non_finite", "unwritten")
"""Kinds of failure that come back with the same code. The others (a deadline, a lost process, memory that was short)
are tried again."""

Outcome = CandidateMeasured | BuildFailed | BenchmarkFailed | CandidatePruned


class Known(msgspec.Struct, frozen=True):
    """Outcome of one configuration in earlier runs."""

    config: Config
    code_key: str
    facts: StaticFacts
    outcome: Outcome


def known_of(state: State) -> Iterator[Known]:
    """Yield the lasting outcomes of a run: measurements, and failures that would happen again."""
    for entry in state.entries.values():
        outcome = state.outcome(entry.index)
        if outcome is None or not entry.key:
            continue
        if isinstance(outcome, BuildFailed | BenchmarkFailed) and outcome.kind not in LASTING:
            continue
        yield Known(dict(entry.config), entry.code_key, entry.facts or StaticFacts(), outcome)


def history(header: RunStarted, configs: Sequence[Config], known: Mapping[str, Known]) -> list[Event]:
    """Return the journal of a run that has recorded `known` and has yet to try the rest of `configs`.

    A candidate is aliased to the first one with the same code, as in the run that measured it.
    """
    events: list[Event] = [header]
    codes: dict[str, int] = {}

    def add(event: Event) -> None:
        events.append(msgspec.structs.replace(event, seq=len(events), time=header.time, mono=0.0))

    for index, config in enumerate(configs):
        key = config_key(config)
        if (found := known.get(key)) is None:
            continue
        add(CandidateProposed(seq=0, time=0, mono=0, index=index, key=key, config=config))
        if found.code_key:
            lowered = CandidateLowered(
                seq=0, time=0, mono=0, index=index, code_key=found.code_key, facts=found.facts, seconds=0.0
            )
            add(lowered)
            first = codes.setdefault(found.code_key, index)
            if first != index:
                add(CandidateAliased(seq=0, time=0, mono=0, index=index, same_as=first))
                continue
        add(msgspec.structs.replace(found.outcome, index=index))
    return events

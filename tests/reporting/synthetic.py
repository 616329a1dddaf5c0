"""Sets of problems with known latencies: their results, made of events, and matrices of random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from event_streams import Stream

from atune.journal.result import Result
from atune.model.candidate import config_key
from atune.reporting.sets import RegretMatrix


def stream_of(
    arguments: Mapping[str, Any],
    latencies: Mapping[int, Sequence[float]],
    final: Mapping[int, Sequence[float]] | None = None,
    reference: Sequence[float] | None = None,
    ties: tuple[int, ...] = (),
    **header: Any,
) -> Stream:
    """Return the events of a run: configuration ``block=index`` by index with its samples in ms, none if it failed."""
    stream = Stream(total=len(latencies))
    stream.events[0] = msgspec.structs.replace(stream.events[0], arguments=dict(arguments), **header)
    stream.ready()
    for index, samples in latencies.items():
        stream.candidate(index, *samples)
    if final is not None:
        stream.final(dict(final), reference, ties)
    return stream.finished()


def run_of(*args: Any, **header: Any) -> Result:
    """Return the result of `stream_of`."""
    return Result.from_events(stream_of(*args, **header).events)


def matrix_of(
    regret: Sequence[Sequence[float | None]], problems: Sequence[dict[str, Any]] | None = None
) -> RegretMatrix:
    """Return a matrix of these regrets by row and column; without `problems` they are M=1, 2, 4, …"""
    columns = list(zip(*regret, strict=True))
    known = [[(r, row) for row, r in enumerate(column) if r is not None] for column in columns]
    return RegretMatrix(
        problems=tuple(problems or [{"M": 2**i} for i in range(len(columns))]),
        configs=tuple({"block": row} for row in range(len(regret))),
        regret=tuple(map(tuple, regret)),
        winners=tuple(min(column)[1] for column in known),
    )


def key(index: int) -> str:
    return config_key({"block": index})

"""Count of a space before compiling: its candidates, and the points that each constraint refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from atune.model.candidate import config_key, normalise
from atune.workload.definition import Workload
from atune.workload.fingerprint import fingerprint, lambda_body
from atune.workload.listing import candidates_of

MOST_POINTS = 100_000
"""Most points examined."""
MOST_S = 20.0
"""Seconds after which no further point is examined."""


class Refusals(msgspec.Struct, frozen=True):
    """Number of points that a constraint refuses first. Constraints are asked in order."""

    constraint: str
    count: int


class SpaceSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a workload's space.

    `points`: number before constraints; None if a generator has more than were examined. `looked_at`: points for
    which constraints were asked: all if `exact`, else a part. For a large space with axes, they are drawn evenly.
    """

    workload: str
    arguments: dict[str, Any]
    fingerprint: str
    """The workload's, as in a journal's header."""
    points: int | None
    looked_at: int
    admitted: int
    exact: bool
    refusals: tuple[Refusals, ...] = ()
    keys: tuple[str, ...] = ()
    """Keys of the candidates, in their order. Empty if not all were examined."""

    @property
    def candidates(self) -> int | None:
        """Number of candidates: counted if `exact`, else estimated from the share among the examined points."""
        if self.exact:
            return self.admitted
        return None if self.points is None else round(self.points * self.admitted / max(1, self.looked_at))


def survey(workload: Workload, most: int = MOST_POINTS, most_s: float = MOST_S) -> SpaceSurvey:
    """Count the space of `workload`. Examines at most `most` points, for at most `most_s` seconds.

    Raises `SpaceError` like tuning if an examined configuration does not fit the kernel.
    """
    points = workload.space.points(workload.arguments, most)
    size, until = None if points.cut else points.size, time.monotonic() + most_s
    refused, keys, looked_at = [0] * len(workload.space.where), [], 0
    for raw in points.given() if points.size <= most else map(points.raw, points.drawn(seed=0)):
        if looked_at == most or time.monotonic() > until:
            break
        looked_at += 1
        if (first := points.refusing(raw)) is None:
            keys.append(config_key({name: normalise(value, name) for name, value in raw.items()}))
        else:
            refused[first] += 1
    exact = looked_at == size
    if exact and keys:
        candidates_of(workload)  # raises if a candidate does not fit the kernel
    return SpaceSurvey(
        workload=workload.name,
        arguments=workload.arguments,
        fingerprint=fingerprint(workload),
        points=size,
        looked_at=looked_at,
        admitted=len(keys),
        exact=exact,
        refusals=tuple(map(Refusals, map(words_of, workload.space.where), refused)),
        keys=tuple(keys) if exact else (),
    )


def words_of(constraint: Callable[..., Any]) -> str:
    """Return a constraint as readable text: a lambda's source, or another function's name and place."""
    code = getattr(constraint, "__code__", None)
    name = getattr(constraint, "__name__", type(constraint).__name__)
    if code is None:
        return str(name)
    if name != "<lambda>":
        return f"{name} ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})"
    parameters = ", ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    try:
        return f"lambda {parameters}: {' '.join(lambda_body(code).split())}"
    except OSError:
        return f"lambda {parameters} (line {code.co_firstlineno})"

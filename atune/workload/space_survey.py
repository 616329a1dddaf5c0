"""A space counted before anything is compiled: how many candidates it has, and which constraint refuses the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from atune.model.candidate import config_key, normalise
from atune.workload.fingerprint import fingerprint, lambda_body

if TYPE_CHECKING:
    from atune.workload.workload import Workload

MOST_POINTS = 100_000
"""Points that are looked at."""
MOST_S = 20.0
"""Seconds after which no further point is looked at."""


class Refusals(msgspec.Struct, frozen=True):
    """Points that a constraint is the first to refuse, in the order in which constraints are asked."""

    constraint: str
    count: int


class SpaceSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload's space holds.

    `points`: before constraints; None where a generator has more than were looked at. `looked_at`: points of which
    constraints were asked: all, where `exact`, else some; of a large space with axes, drawn evenly.
    """

    workload: str
    arguments: dict[str, Any]
    fingerprints: tuple[str, ...]
    """As journals may have it."""
    prints: tuple[str, ...]
    """The same without the problem, as the result cache may have it."""
    points: int | None
    looked_at: int
    admitted: int
    exact: bool
    refusals: tuple[Refusals, ...] = ()
    keys: tuple[str, ...] = ()
    """Of the candidates, in their order; empty where not all were looked at."""

    @property
    def candidates(self) -> int | None:
        """How many there are: counted where `exact`, else estimated by the share of those looked at."""
        if self.exact:
            return self.admitted
        return None if self.points is None else round(self.points * self.admitted / max(1, self.looked_at))


def survey(workload: Workload, most: int = MOST_POINTS, most_s: float = MOST_S) -> SpaceSurvey:
    """Count the space of `workload`, looking at `most` points at most, and for `most_s` seconds at most.

    Raises `SpaceError` where a configuration does not fit the kernel, as tuning does, as far as it looks.
    """
    points = workload.space.points(workload.arguments, most)
    size, until = None if points.cut else points.size, time.monotonic() + most_s
    refused, keys, looked_at = [0] * len(workload.space.where), [], 0
    for raw in points.given() if points.size <= most else points.drawn(seed=0):
        if looked_at == most or time.monotonic() > until:
            break
        looked_at += 1
        if (first := points.refusing(raw)) is None:
            keys.append(config_key({name: normalise(value, name) for name, value in raw.items()}))
        else:
            refused[first] += 1
    exact = looked_at == size
    if exact and keys:
        workload.candidates()  # says what does not fit the kernel
    return SpaceSurvey(
        workload=workload.name,
        arguments=workload.arguments,
        fingerprints=tuple(fingerprint(workload, verbatim=verbatim) for verbatim in (False, True)),
        prints=tuple(fingerprint(workload, problem=False, verbatim=verbatim) for verbatim in (False, True)),
        points=size,
        looked_at=looked_at,
        admitted=len(keys),
        exact=exact,
        refusals=tuple(map(Refusals, map(words_of, workload.space.where), refused)),
        keys=tuple(keys) if exact else (),
    )


def words_of(constraint: Callable[..., Any]) -> str:
    """Return a constraint as people know it: a lambda by its text, others by name and place."""
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

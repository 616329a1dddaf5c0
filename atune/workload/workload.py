"""A workload's description: its candidates, which are all of its space in order or a draw from a large one.

A workload reaches the workers as a `WorkloadRef`: its file and name, or its pickled functions with their source text.
Others import from here what names, loads, describes and sends one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from atune.errors import SpaceError, WorkloadError
from atune.model.candidate import BASELINE, Candidate, Config, config_key, normalise, space_hash
from atune.model.space import LARGE
from atune.workload.definition import Fit, Workload, meant
from atune.workload.fingerprint import fingerprint, kernel_fingerprint, lambda_body
from atune.workload.pickling import FileRef, PickleRef, WorkloadRef, load, parse_file_ref, ship

__all__ = [
    "FileRef",
    "PickleRef",
    "Workload",
    "WorkloadRef",
    "WorkloadSpec",
    "describe",
    "fingerprint",
    "head",
    "load",
    "parse_file_ref",
    "ship",
]

LOOKS, ENOUGH = 500_000, 1_000
"""After this many looks no more is drawn if so many candidates were found."""
MOST_LOOKS = 5_000_000
"""Looks at drawn points after which no more is drawn, however few were found."""


class WorkloadSpec(msgspec.Struct, frozen=True):
    """Description of a workload for the engine: plain data without code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    """The candidates in order: all of the space, or a draw from a large one."""
    default: int | None
    """Index of the default configuration, `BASELINE` where the space does not list it; None where there is none."""
    fingerprint: str
    flops: float | None = None
    bytes: float | None = None
    code: str = ""
    """`fingerprint` without the problem."""
    problem: Any = None
    """What tells this problem from others: the arguments with the kernel's defaults, or a caller's own key."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of the parameters that the space sets."""
    space: str = ""
    """SHA-256 over the configurations' keys in order; empty while they are not known."""
    points: int | None = None
    """Points of a space, before its constraints, of which the configurations are a draw; None if they are all."""
    remarks: tuple[str, ...] = ()
    """Remarks on the space for the user."""
    layout_axes: tuple[str, ...] = ()
    """Names of the axes that lay out fragments and loops."""
    baseline: Config | None = None
    """The default configuration, where the space does not list it."""
    refused: str = ""
    """Why the baseline must not win: which constraint refuses it; empty where none does."""
    no_default: str = ""
    """Why there is no default configuration; empty where there is."""
    asks: tuple[str, ...] = ()
    """Arguments of the problem that the space's functions take."""

    @property
    def default_config(self) -> Config | None:
        """The default configuration; None where there is none."""
        if self.default is None or self.default == BASELINE:
            return self.baseline
        return self.configs[self.default]

    @property
    def total(self) -> int:
        """Number of candidates."""
        return len(self.configs)


def head(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Describe `workload` without its space, and call none of its functions. Raises `WorkloadError`."""
    return WorkloadSpec(
        name=workload.name,
        origin=origin,
        arguments=workload.arguments,
        configs=(),
        default=None,
        fingerprint=fingerprint(workload),
        code=fingerprint(workload, problem=False),
        flops=workload.flops,
        bytes=workload.bytes,
    )


def describe(workload: Workload, origin: str = "", seed: int = 0) -> WorkloadSpec:
    """Enumerate and fingerprint `workload`; of a large space `seed` draws candidates.

    Raises `SpaceError` and `WorkloadError`.
    """
    return with_space(head(workload, origin), workload, seed)


def with_space(spec: WorkloadSpec, workload: Workload, seed: int = 0) -> WorkloadSpec:
    """Return `spec` with the candidates of `workload`, and what is known of its space. Raises as `describe`."""
    candidates = Candidates(workload, seed)
    configs = tuple(candidate.config for candidate in candidates.listed() if candidate is not None)
    return candidates.complete(msgspec.structs.replace(spec, configs=configs))


class Candidates:
    """The candidates of `workload`, in order. Creating this object asks no constraint.

    Of a space of more than `LARGE` points they are a draw: its default configuration, then what `seed` draws and
    constraints admit, `LARGE` at most. Raises `SpaceError` and `WorkloadError` for configurations that do not fit the
    kernel.
    """

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self.workload, self._seed = workload, seed
        self._fit = Fit(workload)
        self.points = workload.space.points(workload.arguments)
        self.large = self.points.size > LARGE
        self._keys: list[str] = []
        self._first: Config = {}
        self._default: int | None = None

    def listed(self) -> Iterator[Candidate | None]:
        """Yield every candidate, in order; None for a drawn point that is none, as there may be many in a row.

        Raises `SpaceError` for duplicates and for an empty space.
        """
        seen: dict[str, int] = {}
        for config in self._drawn() if self.large else self.points.walk():
            if config is None:
                yield None
                continue
            index = len(seen)
            self._fit.check(config, f"Workload {self.workload.name}, config {index}")
            candidate = Candidate(index, config_key(config), config)
            if candidate.key in seen:
                raise SpaceError(
                    f"Workload {self.workload.name}, config {index}: {config} occurs twice, first as config "
                    f"{seen[candidate.key]}"
                )
            seen[candidate.key] = index
            self._first = self._first or config
            self._keys.append(candidate.key)
            if self._default is None and self._fit.default_key(config) == candidate.key:
                self._default = index
            yield candidate
        if not seen:
            raise self.workload.space.empty(self.workload.arguments)

    def _drawn(self) -> Iterator[Config | None]:
        points, found = self.points, set[int]()
        default = self._fit.default(points.plain(0))
        first = None if default is None else points.place(default)
        for looks, place in enumerate(chain([] if first is None else [first], points.drawn(self._seed))):
            if len(found) == LARGE or looks >= (LOOKS if len(found) >= ENOUGH else MOST_LOOKS):
                return
            new = place not in found and points.admits(points.raw(place))
            found.update([place] if new else [])
            yield points.plain(place) if new else None

    def complete(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return `spec` with what is known of the space once all was listed, except the configurations.

        Raises `WorkloadError` if the default that was given has other names than the space's configurations.
        """
        default, baseline, no_default = self._default, None, ""
        if default is None:
            default, baseline, no_default = self._baseline()
        return msgspec.structs.replace(
            spec,
            default=default,
            baseline=baseline,
            refused="" if baseline is None else self._refused(baseline),
            no_default=no_default,
            problem=self._fit.problem() if self.workload.key is None else self.workload.key,
            kernel=kernel_fingerprint(self.workload.kernel, without_defaults=self._fit.names),
            space=space_hash(self._keys),
            points=self.points.size if self.large else None,
            remarks=self._remarks(),
            layout_axes=self.points.layout_axes,
            asks=self.workload.space.asks(self.workload.arguments),
        )

    def _baseline(self) -> tuple[int | None, Config | None, str]:
        """Return the default that the space does not list, with its index; or why there is none."""
        given, axes = self.workload.default, self.points.axes
        if given is not None and (why := wrong_names(given, axes)):
            raise WorkloadError(f"Workload {self.workload.name}: the default {given} does not fit the space: {why}")
        if why := self._fit.no_default(self._first, axes):
            return None, None, why
        config = self._fit.default(self._first)
        return (None, None, "the default is no plain data") if config is None else (BASELINE, config, "")

    def _refused(self, baseline: Config) -> str:
        """Return which constraint refuses the baseline, or raises for it; empty where all admit it."""
        if not (where := self.workload.space.where):
            return ""
        place = self.points.place(baseline)
        raw = self._fit.given_default(self._first) if place is None else self.points.raw(place)
        try:
            first = self.points.refusing(raw)
        except SpaceError as error:
            return str(error)
        return "" if first is None else f"the constraint {constraint_text(where[first])} refuses it"

    def _remarks(self) -> tuple[str, ...]:
        if self.large:
            return (
                f"the space has {self.points.size:,} points: the run searches {len(self._keys):,} candidates that its "
                "seed draws",
            )
        if not self.points.cut:
            return ()
        return (
            f"the space's generator gives more than {self.points.size:,} configurations: those after them are left "
            "out; give axes and constraints, of which any part can be tried",
        )


def wrong_names(default: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
    """Return why `default` is no configuration of these axes, and what was probably meant; empty if it is one."""
    if unknown := [name for name in default if name not in axes]:
        return f"it has no axis {unknown[0]!r}; its axes are {', '.join(axes)}{meant(unknown[0], axes)}"
    if lacking := [name for name in axes if name not in default]:
        return f"the default has no {lacking[0]!r}; give a value of every axis"
    return ""


def candidates_of(workload: Workload) -> list[Candidate]:
    """Enumerate the space, or draw from a large one. Raises `SpaceError` for what does not fit the kernel."""
    return [candidate for candidate in Candidates(workload).listed() if candidate is not None]


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
        refusals=tuple(map(Refusals, map(constraint_text, workload.space.where), refused)),
        keys=tuple(keys) if exact else (),
    )


def constraint_text(constraint: Callable[..., Any]) -> str:
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

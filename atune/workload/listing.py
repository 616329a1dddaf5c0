"""A workload's candidates: all of its space in order, or a draw from a large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from atune.errors import SpaceError, WorkloadError
from atune.model.candidate import (
    COMPILE_FLAGS,
    PASS_CONFIGS,
    RESERVED,
    Candidate,
    Config,
    check_reserved,
    config_key,
    normalise,
    space_hash,
)
from atune.model.points import Points
from atune.model.space import LARGE
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.introspect import signature_of

if TYPE_CHECKING:
    from atune.workload.workload import Workload

LOOKS, ENOUGH = 500_000, 1_000
"""After this many looks no more is drawn if so many candidates were found."""
MOST_LOOKS = 5_000_000
"""Looks at drawn points after which no more is drawn, however few were found."""


class Listing(msgspec.Struct, frozen=True):
    """Description of a workload's space: its configurations, and what is known of it."""

    configs: tuple[Config, ...] = ()
    space: str = ""
    """SHA-256 over the candidates' keys in order."""
    default: int | None = None
    points: int | None = None
    """Points of a space, before its constraints, of which the configurations are a draw; None if they are all."""
    remarks: tuple[str, ...] = ()
    """Remarks on the space for the user."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of the parameters that the space sets."""
    layout_axes: tuple[str, ...] = ()
    """Names of the axes that lay out fragments and loops."""


class Candidates:
    """The candidates of `workload`, in order. Creating this object asks no constraint.

    Of a space of more than `LARGE` points they are a draw: its default configuration, then what `seed` draws and
    constraints admit, `LARGE` at most. Raises `SpaceError` and `WorkloadError` for configurations that do not fit the
    kernel.
    """

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self.workload, self._seed = workload, seed
        self._fit = _Fit(workload)
        self.points = workload.space.points(workload.arguments)
        self.large = self.points.size > LARGE
        self._keys: list[str] = []
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
            self._keys.append(candidate.key)
            if self._default is None and self.is_default(candidate):
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

    def is_default(self, candidate: Candidate) -> bool:
        """Tell whether a candidate is the default configuration."""
        return self._fit.default_key(candidate.config) == candidate.key

    def described(self, configs: tuple[Config, ...] = ()) -> Listing:
        """Describe the space with `configs`, once all was listed. Raises `WorkloadError` if it lacks the default."""
        self.check_default(self._default)
        return Listing(
            configs,
            space_hash(self._keys),
            self._default,
            self.points.size if self.large else None,
            self._remarks(),
            kernel_fingerprint(self.workload.kernel, without_defaults=self._fit.names),
            self.points.layout_axes,
        )

    def check_default(self, default: int | None) -> None:
        """Raise `WorkloadError` if a default was given and the space lacks it."""
        if default is None and self.workload.default is not None:
            why = why_not_held(self.workload.default, self.points)
            raise WorkloadError(
                f"Workload {self.workload.name}: the default {self.workload.default} is not in the space: {why}"
            )

    def admitted(self, configs: Iterable[Config], *, around: bool = False) -> list[Config]:
        """Return those of `configs` that the space has, also if they were not drawn; or the neighbours of `configs`."""
        if around:
            near = (other for config in configs for other in self.points.neighbours(config))
            return list({config_key(other): other for other in near}.values())
        return [config for config in configs if self.points.place(config) is not None]

    def _remarks(self) -> tuple[str, ...]:
        if self.large:
            return (
                f"the space has {self.points.size:,} points: the run searches {len(self._keys):,} candidates that its "
                "seed draws, and with a prior the neighbours of the best estimates",
            )
        if not self.points.cut:
            return ()
        return (
            f"the space's generator gives more than {self.points.size:,} configurations: those after them are left "
            "out; give axes and constraints, of which any part can be tried",
        )


def listing(workload: Workload, seed: int = 0) -> Listing:
    """Enumerate the space of `workload`, or draw from a large one. Raises `SpaceError` and `WorkloadError`."""
    candidates = Candidates(workload, seed)
    return candidates.described(tuple(c.config for c in candidates.listed() if c is not None))


def check_names(workload: Workload) -> None:
    """Raise `SpaceError` or `WorkloadError` where the kernel does not take an axis, or an argument of the problem.

    Asks no function of the user's: axes that are computed go by their names, and configurations that are computed are
    looked at once they are.
    """
    if (fit := _fit_of(workload)) is not None:
        for number, names in workload.space.names():
            fit.check_known(names, f"Workload {workload.name}, config {number}")


def check_config(workload: Workload, config: Mapping[str, Any]) -> None:
    """Raise `SpaceError` where the kernel does not take a name of `config`, which need not be of the space."""
    if (fit := _fit_of(workload)) is not None:
        fit.check_known(config, f"Workload {workload.name}")


def _fit_of(workload: Workload) -> _Fit | None:
    try:
        return _Fit(workload)
    except (TypeError, ValueError):
        return None  # a kernel whose signature Python cannot tell


def why_not_held(default: Mapping[str, Any], points: Points) -> str:
    """Return why a space does not hold `default`, in words that say what was meant."""
    axes = points.axes
    if unknown := [name for name in default if name not in axes]:
        return f"it has no axis {unknown[0]!r}; its axes are {', '.join(axes)}{meant(unknown[0], axes)}"
    if lacking := [name for name in axes if name not in default]:
        return f"the default has no {lacking[0]!r}; give a value of every axis"
    for name, value in default.items():
        if value not in axes[name]:
            values = [repr(one) for one in axes[name][:SHOWN_VALUES]]
            more = "" if len(axes[name]) <= SHOWN_VALUES else ", …"
            return f"{name}={value!r} is none of its values {', '.join(values)}{more}; add it, or give one of these"
    return "a constraint refuses it, or it is no configuration of the list"


SHOWN_VALUES = 12
"""Values of an axis that a message lists."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the name that is most like `name`; empty where none is."""
    lowered = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.7)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


class _Fit:
    """Checks that configurations fit the kernel's parameters, and finds the default among them."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        parameters = signature_of(workload.kernel).parameters
        self._parameters = parameters
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._required = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        self._fitting: set[tuple[str, ...]] = set()
        """Names of configurations that fit."""
        self._default_keys: dict[tuple[object, ...], str] = {}
        for name in workload.arguments:
            if name not in parameters and not self._takes_any:
                symbolic = "; a symbolic dimension (T.dynamic) has its size from inputs"
                raise WorkloadError(
                    f"Workload {workload.name}: the kernel takes no argument {name!r}; it takes {', '.join(parameters)}"
                    f"{meant(name, parameters) or symbolic}"
                )

    @property
    def names(self) -> set[str]:
        """Names in the configurations that were checked."""
        return {name for names in self._fitting for name in names}

    def check(self, config: Config, where: str) -> None:
        """Raise `SpaceError`, naming `where`, for a configuration that does not fit the kernel."""
        if (names := tuple(config)) not in self._fitting:
            self._check_names(config, where)
            self._fitting.add(names)
        for name in config.keys() & RESERVED:
            check_reserved(name, config[name], where)

    def check_known(self, names: Iterable[str], where: str) -> None:
        """Raise `SpaceError`, naming `where`, for a name of the space that the kernel does not take."""
        arguments = self._workload.arguments
        wrong = (n for n in names if n not in self._parameters and n not in RESERVED and not self._takes_any)
        if unknown := sorted(wrong):
            raise SpaceError(
                f"{where}: the kernel takes no argument {unknown[0]!r}; it takes "
                f"{', '.join(n for n in self._parameters if n not in arguments)}{meant(unknown[0], self._parameters)}"
            )

    def _check_names(self, config: Config, where: str) -> None:
        names, arguments = config.keys() - RESERVED, self._workload.arguments
        self.check_known(names, where)
        if both := sorted(names & arguments.keys()):
            raise SpaceError(f"{where}: {both[0]!r} is an axis and a problem argument; give it in one place")
        if missing := sorted(self._required - names - arguments.keys()):
            raise SpaceError(
                f"{where}: {config} lacks {missing[0]!r}, which the kernel needs; add it there or to arguments"
            )

    def default(self, config: Mapping[str, Any]) -> Config | None:
        """Return the default among configurations with the names of `config`, or None if it is not plain data.

        An empty pass configuration has several spellings; the one of `config` is used.
        """
        given = self._workload.default
        if given is None:
            given = {n: self._parameters[n].default for n in config if n in self._parameters}
            # These mean the same: None, and a pass configuration without options.
            nothing: dict[str, Any] = {PASS_CONFIGS: config.get(PASS_CONFIGS) and {}, COMPILE_FLAGS: None}
            given |= {n: value for n, value in nothing.items() if n in config}
        try:
            return {name: normalise(value, name) for name, value in given.items()}
        except SpaceError:
            return None

    def default_key(self, config: Config) -> str:
        """Return the key of the result of `default`, or an empty text for None."""
        alike = (config.get(PASS_CONFIGS) is None, *config)
        if alike not in self._default_keys:
            default = self.default(config)
            self._default_keys[alike] = "" if default is None else config_key(default)
        return self._default_keys[alike]

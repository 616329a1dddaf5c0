"""A workload's candidates: listed in order, or looked up by place if the space is too large to list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
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
from atune.model.grid import AxisValues
from atune.model.points import Points, Product
from atune.model.space import LARGE
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.introspect import signature_of

if TYPE_CHECKING:
    from atune.workload.workload import Workload

MOST_LISTED = 4_000_000
"""Most points of a space that is enumerated for a journal whose run listed it."""


class Listing(msgspec.Struct, frozen=True):
    """Description of a workload's space: its configurations, or only its number of points."""

    configs: tuple[Config, ...] = ()
    space: str = ""
    """SHA-256 that identifies the space: over the candidates' keys, or over the axes of a large space."""
    default: int | None = None
    size: int | None = None
    """Points of a space that is too large to list, before its constraints."""
    remarks: tuple[str, ...] = ()
    """A remark on the space for the user."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of the parameters that the space sets."""
    axes: tuple[AxisValues, ...] = ()
    """Axes of a large space that is a product of axes."""
    layout_axes: tuple[str, ...] = ()
    """Names of a listed space's axes that lay out fragments and loops."""


class Candidates:
    """The candidates of `workload`. Creating this object calls none of its functions.

    A space of more than `LARGE` points is `large`. It is not enumerated, and a candidate's index is its place in the
    product of the axes. `whole` lists it up to `MOST_LISTED` points, and raises `SpaceError` above. Raises
    `SpaceError` and `WorkloadError` for configurations that do not fit the kernel.
    """

    def __init__(self, workload: Workload, *, whole: bool = False) -> None:
        self.workload = workload
        self._fit = _Fit(workload)
        self.points = workload.space.points(workload.arguments, MOST_LISTED if whole else LARGE)
        self.large = self.points.size > LARGE and not whole
        if whole and self.points.size > MOST_LISTED:
            raise SpaceError(
                f"Workload {workload.name}: the space has {self.points.size:,} points, and no more than "
                f"{MOST_LISTED:,} are listed: give its axes fewer values"
            )
        if self.large and isinstance(self.points, Product):
            if twice := self.points.twice():
                raise SpaceError(f"Workload {workload.name}: {twice}; give each value once")
            self._fit.check(self.points.plain(0), f"Workload {workload.name}, config 0")

    def listed(self) -> Iterator[Candidate]:
        """Yield every candidate, in order. Raises `SpaceError` for duplicates and for an empty space."""
        seen: dict[str, int] = {}
        for _, config in self.points.walk():
            index = len(seen)
            candidate = self._made(index, config, index)
            if candidate.key in seen:
                raise SpaceError(
                    f"Workload {self.workload.name}, config {index}: {config} occurs twice, first as config "
                    f"{seen[candidate.key]}"
                )
            seen[candidate.key] = index
            yield candidate
        if not seen:
            raise self.workload.space.empty(self.workload.arguments)

    def at(self, place: int) -> Candidate | None:
        """Return the candidate of a large space at `place`, or None if a constraint refuses it."""
        config = self.points.at(place)
        return None if config is None else self._made(place, config, place)

    def is_default(self, candidate: Candidate) -> bool:
        """Tell whether a candidate is the default configuration."""
        return self._fit.default_key(candidate.config) == candidate.key

    def overview(self) -> Listing:
        """Describe a large space without enumerating it. Raises `WorkloadError` if it lacks the given default."""
        points, default = self.points, None
        config = self._fit.default(points.plain(0))
        if config is not None and (isinstance(points, Product) or self.workload.default is not None):
            default = points.place(config)
        self.check_default(default)
        axes = points.plain_axes.items() if isinstance(points, Product) else ()
        kept = tuple(AxisValues.of(name, values) for name, values in axes)
        return Listing((), points.identity, default, points.size, self.remarks(), self.kernel(), kept)

    def check_default(self, default: int | None) -> None:
        """Raise `WorkloadError` if a default was given and the space lacks it."""
        if default is None and self.workload.default is not None:
            why = why_not_held(self.workload.default, self.points)
            raise WorkloadError(
                f"Workload {self.workload.name}: the default {self.workload.default} is not in the space: {why}"
            )

    def remarks(self) -> tuple[str, ...]:
        """Return the remark on the space for the user, or an empty text."""
        if not self.points.cut:
            return ()
        return (
            f"the space's generator gives more than {self.points.size:,} configurations: those after them are left "
            "out; give axes and constraints, of which any part can be tried",
        )

    def kernel(self) -> str:
        """Return the kernel's fingerprint without the defaults of parameters that the configurations set."""
        return kernel_fingerprint(self.workload.kernel, without_defaults=self._fit.names)

    def _made(self, index: int, config: Config, place: int) -> Candidate:
        self._fit.check(config, f"Workload {self.workload.name}, config {place}")
        return Candidate(index, config_key(config), config)


def listing(workload: Workload, *, whole: bool = False) -> Listing:
    """Enumerate the space of `workload`, or describe a large one. Raises `SpaceError` and `WorkloadError`."""
    candidates = Candidates(workload, whole=whole)
    if candidates.large:
        return candidates.overview()
    found = list(candidates.listed())
    default = next((c.index for c in found if candidates.is_default(c)), None)
    candidates.check_default(default)
    configs, identity = tuple(c.config for c in found), space_hash(c.key for c in found)
    layouts = candidates.points.layout_axes
    return Listing(configs, identity, default, None, candidates.remarks(), candidates.kernel(), layout_axes=layouts)


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

"""The points of a space for one problem: count, read at a place, draw and walk them without enumeration."""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from atune.errors import SpaceError
from atune.model.candidate import Config, config_key, normalise
from atune.model.grid import Grid, Positions, text_of
from atune.model.layouts import LayoutAxis
from atune.model.permutation import Permutation
from atune.model.questions import Question

MOST_POINTS = 2**63 - 1
"""Larger indices become floating-point numbers in a journal."""
SAMPLED_KEYS = 1000
"""Number of configurations that identify a long list."""


class Points(ABC):
    """Places ``0 … size-1`` in a stable order. Constraints refuse some of them: `size` is an upper bound.

    Configurations are plain values, as in candidates and journals. Constraints see the values as given. Methods that
    call the user's constraints raise `SpaceError` if a constraint raises.
    """

    size: int
    cut = False
    """Whether a generator yielded more, which was not read."""

    def __init__(self, where: Sequence[Question]) -> None:
        self._where = where

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """The values of each name, in the order given."""

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes that lay out fragments and loops."""
        return ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """A SHA-256 that identifies these points, without constraints and without enumeration."""

    @abstractmethod
    def raw(self, place: int) -> Config:
        """Return the configuration at `place` as it was given, without checking constraints."""

    @abstractmethod
    def _plain(self, place: int, raw: Config) -> Config:
        """Return the configuration at `place` in plain values."""

    @abstractmethod
    def _find(self, config: Config) -> int | None:
        """Return the place of a configuration of plain values, without checking constraints."""

    def plain(self, place: int) -> Config:
        """Return the configuration at `place` in plain values, without checking constraints."""
        return self._plain(place, self.raw(place))

    def at(self, place: int) -> Config | None:
        """Return the configuration at `place`; None if a constraint refuses it."""
        raw = self.raw(place)
        return self._plain(place, raw) if self.admits(raw) else None

    def admits(self, raw: Mapping[str, Any]) -> bool:
        """Tell whether every constraint admits a configuration, given in the form that constraints see."""
        return all(question.ask(raw) for question in self._where)

    def refusing(self, raw: Mapping[str, Any]) -> int | None:
        """Return the first constraint that refuses a configuration; None if none does."""
        return next((number for number, question in enumerate(self._where) if not question.ask(raw)), None)

    def place(self, config: Mapping[str, Any]) -> int | None:
        """Return the place of `config`; None if it is no point of the space, or a constraint refuses it."""
        place = self._find({name: normalise(value, name) for name, value in config.items()})
        return None if place is None or not self.admits(self.raw(place)) else place

    def given(self) -> Iterator[Config]:
        """Yield every configuration in order, as it was given, without checking constraints."""
        return map(self.raw, range(self.size))

    def drawn(self, seed: int) -> Iterator[Config]:
        """Yield the configurations of `given` in a random-looking order that `seed` decides."""
        shuffled = Permutation(self.size, seed)
        return (self.raw(shuffled[position]) for position in range(self.size))

    def walk(self) -> Iterator[tuple[int, Config]]:
        """Yield each admitted place, in order, with its configuration."""
        for place, raw in enumerate(self.given()):
            if self.admits(raw):
                yield place, self._plain(place, raw)

    def sample(self, seed: int) -> Iterator[int]:
        """Yield each admitted place once, in a random-looking order that `seed` decides."""
        shuffled = Permutation(self.size, seed)
        for position in range(self.size):
            if self.admits(self.raw(place := shuffled[position])):
                yield place

    def neighbours(self, place: int) -> Iterator[int]:
        """Yield, for each axis and direction, the nearest place that constraints admit."""
        here = self.plain(place)
        for name, values in self.axes.items():
            if name not in here:
                continue
            at = self._positions.of(name, here[name])
            assert at is not None, "the value at a place is one of its axis"
            for way in (range(at - 1, -1, -1), range(at + 1, len(values))):
                for step in way:
                    there = self._find({**here, name: normalise(values[step], name)})
                    if there is not None and self.admits(self.raw(there)):
                        yield there
                        break

    @cached_property
    def _positions(self) -> Positions:
        return Positions({name: _plain_values(name, values) for name, values in self.axes.items()})


class Product(Points):
    """All combinations of the values of axes, the last axis varying fastest.

    Raises `SpaceError` for more points than a journal can number.
    """

    def __init__(self, axes: Mapping[str, Sequence[Any]], where: Sequence[Question]) -> None:
        super().__init__(where)
        self._axes = axes
        self._plain_axes = {normalise(str(name), "Space"): _plain_values(name, v) for name, v in axes.items()}
        self.size = math.prod(map(len, axes.values()))
        lengths = list(map(len, axes.values()))
        strides = [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]
        self._raw_steps = [(n, v, s, len(v)) for (n, v), s in zip(self._axes.items(), strides, strict=True)]
        self._plain_steps = [(n, v, s, len(v)) for (n, v), s in zip(self._plain_axes.items(), strides, strict=True)]
        if self.size > MOST_POINTS:
            shape = " × ".join(map(str, lengths[:8])) + (" × …" if len(lengths) > 8 else "")
            raise SpaceError(
                f"Space: {len(axes)} axes ({shape}) have more than 2**63 points, "
                "which no journal numbers: give fewer axes, or fewer values"
            )

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        return self._axes

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes that lay out fragments and loops."""
        return tuple(name for name, values in self._axes.items() if isinstance(values, LayoutAxis))

    @property
    def plain_axes(self) -> Mapping[str, Sequence[Any]]:
        """The axes in plain values, as in candidates."""
        return self._plain_axes

    @property
    def identity(self) -> str:
        return _digest([[name, list(values)] for name, values in self._plain_axes.items()])

    def given(self) -> Iterator[Config]:
        return _combinations(self._axes)

    def walk(self) -> Iterator[tuple[int, Config]]:
        both = zip(self.given(), _combinations(self._plain_axes), strict=True)
        return ((place, plain) for place, (raw, plain) in enumerate(both) if self.admits(raw))

    def raw(self, place: int) -> Config:
        return {name: values[place // step % length] for name, values, step, length in self._raw_steps}

    def _plain(self, place: int, raw: Config) -> Config:
        return {name: values[place // step % length] for name, values, step, length in self._plain_steps}

    def _find(self, config: Config) -> int | None:
        return self._grid.find(config)

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self._plain_axes)

    @cached_property
    def _positions(self) -> Positions:
        return self._grid.positions

    def twice(self) -> str:
        """Return the text of a value that an axis has twice; empty if none."""
        for name, places in self._grid.positions.by_axis.items():
            values = self._plain_axes[name]
            if len(places) < len(values):
                again = next(value for i, value in enumerate(values) if places[text_of(value)] != i)
                return f"axis {name!r} has {again!r} twice"
        return ""


class Listed(Points):
    """Configurations one by one, such as a list. `cut`: a generator yielded more, which was not read."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], where: Sequence[Question], *, cut: bool = False) -> None:
        super().__init__(where)
        self._configs, self.size, self.cut = configs, len(configs), cut

    @cached_property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        found: dict[str, dict[bytes, Any]] = {}
        for place in range(self.size):
            for name, value in self.plain(place).items():
                found.setdefault(name, {}).setdefault(text_of(value), value)
        return {name: tuple(values.values()) for name, values in found.items()}

    @property
    def identity(self) -> str:
        step = max(1, self.size // SAMPLED_KEYS)
        keys = [config_key(self.plain(place)) for place in range(0, self.size, step)]
        return _digest([self.size, keys])

    def raw(self, place: int) -> Config:
        config = self._configs[place]
        if not isinstance(config, Mapping):
            raise SpaceError(f"Space: config {place} is {config!r}; a config is a dict of arguments")
        return dict(config)

    def _plain(self, place: int, raw: Config) -> Config:
        where = f"Space: config {place}"
        return {normalise(str(n), where): normalise(v, f"{where}: {n!r}") for n, v in raw.items()}

    def _find(self, config: Config) -> int | None:
        return self._places.get(config_key(config))

    @cached_property
    def _places(self) -> dict[str, int]:
        places = reversed(range(self.size))  # of two equal ones, the first
        return {config_key(self.plain(place)): place for place in places}


def _plain_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, range) else tuple(normalise(v, f"Space: axis {name!r}") for v in values)


def _combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    names = tuple(axes)
    return (dict(zip(names, values, strict=True)) for values in itertools.product(*axes.values()))


def _digest(parts: Iterable[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(parts), order="deterministic")).hexdigest()

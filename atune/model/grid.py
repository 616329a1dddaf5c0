"""The points of a product of axes, by place, without constraints and without enumeration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from atune.model.candidate import Config

STEPS = 2
"""Neighbours of a point in each direction along an axis, because constraints may refuse the first."""


class AxisValues(msgspec.Struct, frozen=True):
    """One axis as plain data: its `values`, or the `span` (start, stop, step) of a range."""

    name: str
    values: tuple[Any, ...] = ()
    span: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> AxisValues:
        if isinstance(values, range):
            return cls(name, span=(values.start, values.stop, values.step))
        return cls(name, tuple(values))

    @property
    def plain(self) -> Sequence[Any]:
        return self.values if self.span is None else range(*self.span)


class Positions:
    """Finds plain values on axes. Keys are texts, because True, 1 and 1.0 are three values, and journals have lists."""

    def __init__(self, axes: Mapping[str, Sequence[Any]]) -> None:
        self._axes = axes
        self.by_axis = {
            name: {text_of(value): position for position, value in reversed(list(enumerate(values)))}
            for name, values in axes.items()
            if not isinstance(values, range)
        }

    def of(self, name: str, value: Any) -> int | None:
        """Return the first position of a value on the axis `name`; None if the axis lacks it."""
        values = self._axes[name]
        if isinstance(values, range):
            return values.index(value) if type(value) is int and value in values else None
        return self.by_axis[name].get(text_of(value))


class Grid:
    """Places ``0 … size-1`` of a product of axes, the last one varying fastest. Digits are positions on the axes."""

    def __init__(self, axes: Mapping[str, Sequence[Any]]) -> None:
        self.axes = axes
        self.lengths = [len(values) for values in axes.values()]
        self.size = math.prod(self.lengths)

    def digits(self, place: int) -> tuple[int, ...]:
        """Return the position of a place on each axis."""
        found = []
        for length in reversed(self.lengths):
            place, digit = divmod(place, length)
            found.append(digit)
        return tuple(reversed(found))

    def place(self, digits: Sequence[int]) -> int:
        """Return the place that has these `digits`."""
        place = 0
        for digit, length in zip(digits, self.lengths, strict=True):
            place = place * length + digit
        return place

    def config(self, place: int) -> Config:
        """Return the configuration at a place, in plain values, without checking constraints."""
        both = zip(self.axes.items(), self.digits(place), strict=True)
        return {name: values[digit] for (name, values), digit in both}

    def find(self, config: Mapping[str, Any]) -> int | None:
        """Return the place of a configuration of plain values, without checking constraints; None if it has none."""
        if config.keys() != self.axes.keys():
            return None
        digits = [self.positions.of(name, config[name]) for name in self.axes]
        return None if None in digits else self.place([digit for digit in digits if digit is not None])

    @cached_property
    def positions(self) -> Positions:
        return Positions(self.axes)

    def neighbours(self, place: int) -> Iterator[int]:
        """Yield neighbouring places along each axis, up to `STEPS` in each direction, the nearest of each axis
        first."""
        here = self.digits(place)
        for axis, length in enumerate(self.lengths):
            for step in range(1, STEPS + 1):
                for digit in (here[axis] - step, here[axis] + step):
                    if 0 <= digit < length:
                        yield self.place((*here[:axis], digit, *here[axis + 1 :]))


def grid_of(axes: Sequence[AxisValues]) -> Grid | None:
    """Return the grid of these axes; None without axes."""
    return Grid({axis.name: axis.plain for axis in axes}) if axes else None


def text_of(value: Any) -> bytes:
    """Return a text that tells a plain value from others of another type or content."""
    return msgspec.json.encode(value, order="deterministic")

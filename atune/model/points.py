"""The points of a space for one problem: counted, read at a place, drawn, and found, without enumeration."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from atune.errors import SpaceError
from atune.model.candidate import Config, config_key, normalise
from atune.model.layouts import LayoutAxis

SHUFFLED = 1_000_000
"""Up to this many points are shuffled as a list, to draw them; of more, a draw may repeat a point."""


class UserCallback:
    """A function of the user's. Its signature is read once, however often it is called.

    `what` names the call in messages, from the values that the function was offered in addition to the problem's.
    """

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any], what: Callable[[Any], str]) -> None:
        self._function, self._arguments, self._what = function, arguments, what
        try:
            parameters = tuple(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # builtins without a signature
            parameters = ()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = tuple(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self._required = {
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def takes(self, name: str) -> bool:
        """Tell whether the function takes an argument of this name."""
        return self._takes_all or name in self._names

    def ask(self, values: Mapping[str, Any]) -> Any:
        """Return the answer for `values` and the problem's arguments.

        Raises `SpaceError` if the function needs a value that is missing, or raises.
        """
        available = {**self._arguments, **values}
        wanted = available if self._takes_all else {name: available[name] for name in self._names if name in available}
        try:
            return self._function(**wanted)
        except Exception as error:
            if missing := [name for name in self._names if name in self._required and name not in available]:
                there = ", ".join(available) or "nothing"
                raise SpaceError(
                    f"Space: {self._what(values)} needs {', '.join(missing)}; available: {there}"
                ) from None
            raise SpaceError(f"Space: {self._what(values)} raised {type(error).__name__}: {error}") from error


class Points(ABC):
    """Places ``0 … size-1`` in a stable order. Constraints refuse some of them: `size` is an upper bound.

    Configurations are plain values, as in candidates and journals. Constraints see the values as given. Methods that
    call the user's constraints raise `SpaceError` if a constraint raises.
    """

    size: int
    cut = False
    """Whether a generator yielded more, which was not read."""

    def __init__(self, where: Sequence[UserCallback]) -> None:
        self._where = where

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """The values of each name, in the order given."""

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes that lay out fragments and loops."""
        return ()

    @abstractmethod
    def raw(self, place: int) -> Config:
        """Return the configuration at `place` as it was given, without checking constraints."""

    @abstractmethod
    def plain(self, place: int) -> Config:
        """Return the configuration at `place` in plain values, without checking constraints."""

    @abstractmethod
    def place(self, config: Config) -> int | None:
        """Return the place of a configuration of plain values, without checking constraints; None if it is no point."""

    def admits(self, raw: Mapping[str, Any]) -> bool:
        """Tell whether every constraint admits a configuration, given in the form that constraints see."""
        return self.refusing(raw) is None

    def serves(self, config: Config, *, unlisted: bool) -> bool:
        """Tell whether constraints admit a configuration of plain values; unless `unlisted`, it must be a point."""
        place = self.place(config)
        return (unlisted or place is not None) and self.admits(config if place is None else self.raw(place))

    def refusing(self, raw: Mapping[str, Any]) -> int | None:
        """Return the first constraint that refuses a configuration; None if none does."""
        return next((number for number, question in enumerate(self._where) if not question.ask(raw)), None)

    def given(self) -> Iterator[Config]:
        """Yield every configuration in order, as it was given, without checking constraints."""
        return map(self.raw, range(self.size))

    def drawn(self, seed: int) -> Iterator[int]:
        """Yield places in a random order that `seed` decides: each once, or of more than `SHUFFLED` without an end."""
        rng = random.Random(seed)
        if self.size <= SHUFFLED:
            order = list(range(self.size))
            rng.shuffle(order)
            return iter(order)
        return iter(lambda: rng.randrange(self.size), None)

    def walk(self) -> Iterator[Config]:
        """Yield each admitted configuration, in order."""
        return (self.plain(place) for place, raw in enumerate(self.given()) if self.admits(raw))


class Product(Points):
    """All combinations of the values of axes, the last axis varying fastest."""

    def __init__(self, axes: Mapping[str, Sequence[Any]], where: Sequence[UserCallback]) -> None:
        super().__init__(where)
        self._axes = axes
        plain_axes = {normalise(str(name), "Space"): _plain_values(name, v) for name, v in axes.items()}
        self.size = math.prod(map(len, axes.values()))
        lengths = list(map(len, axes.values()))
        strides = [math.prod(lengths[i + 1 :]) for i in range(len(lengths))]
        self._raw_steps = [(n, v, s, len(v)) for (n, v), s in zip(axes.items(), strides, strict=True)]
        self._plain_steps = [(n, v, s, len(v)) for (n, v), s in zip(plain_axes.items(), strides, strict=True)]

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        return self._axes

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes that lay out fragments and loops."""
        return tuple(name for name, values in self._axes.items() if isinstance(values, LayoutAxis))

    def given(self) -> Iterator[Config]:
        names = tuple(self._axes)
        return (dict(zip(names, values, strict=True)) for values in itertools.product(*self._axes.values()))

    def raw(self, place: int) -> Config:
        return {name: values[place // step % length] for name, values, step, length in self._raw_steps}

    def plain(self, place: int) -> Config:
        return {name: values[place // step % length] for name, values, step, length in self._plain_steps}

    def place(self, config: Config) -> int | None:
        if config.keys() != self._axes.keys():
            return None
        found = [(_position(values, config[name]), step) for name, values, step, _ in self._plain_steps]
        return None if any(at is None for at, _ in found) else sum((at or 0) * step for at, step in found)


class Listed(Points):
    """Configurations one by one, such as a list. `cut`: a generator yielded more, which was not read."""

    def __init__(
        self, configs: Sequence[Mapping[str, Any]], where: Sequence[UserCallback], *, cut: bool = False
    ) -> None:
        super().__init__(where)
        self._configs, self.size, self.cut = configs, len(configs), cut

    @cached_property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        found: dict[str, dict[bytes, Any]] = {}
        for place in range(self.size):
            for name, value in self.plain(place).items():
                found.setdefault(name, {}).setdefault(text_of(value), value)
        return {name: tuple(values.values()) for name, values in found.items()}

    def raw(self, place: int) -> Config:
        config = self._configs[place]
        if not isinstance(config, Mapping):
            raise SpaceError(f"Space: config {place} is {config!r}; a config is a dict of arguments")
        return dict(config)

    def plain(self, place: int) -> Config:
        where = f"Space: config {place}"
        return {normalise(str(n), where): normalise(v, f"{where}: {n!r}") for n, v in self.raw(place).items()}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {config_key(self.plain(place)): place for place in reversed(range(self.size))}

    def place(self, config: Config) -> int | None:
        return self._places.get(config_key(config))


def text_of(value: Any) -> bytes:
    """Return a plain value as text, which tells apart what Python takes for equal, such as True and 1."""
    return msgspec.json.encode(value, order="deterministic")


def _position(values: Sequence[Any], value: Any) -> int | None:
    if isinstance(values, range):
        return values.index(value) if type(value) is int and value in values else None
    return next((at for at, one in enumerate(values) if text_of(one) == text_of(value)), None)


def _plain_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, range) else tuple(normalise(v, f"Space: axis {name!r}") for v in values)

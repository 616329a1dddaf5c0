"""The set of configurations to search, in a stable order."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atune.errors import SpaceError
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, check_reserved, normalise
from atune.model.layouts import LayoutAxis
from atune.model.points import Listed, Points, Product, UserCallback

Constraint = Callable[..., Any]
LARGE = 100_000
"""Most candidates of a space: of more points the seed draws this many, and a generator is read up to here."""
SMALL = 500
"""Points that can be enumerated within a few milliseconds."""
NO_SERIES = (str, bytes, Mapping, set, frozenset)
"""Types that are iterable, and no series of values: the order of a set differs between processes."""
Configs = Iterable[Mapping[str, Any]] | Callable[..., Iterable[Mapping[str, Any]]]


class Space:
    """Configurations of a kernel: Cartesian axes, a fixed list, a generator, or a callable of the problem.

        Space(block_M=[64, 128], block_N=[64, 128], where=lambda block_M, block_N: block_M <= block_N)
        Space([{"block": 64}, {"block": 128}])
        Space(lambda M, N: ({"block": b} for b in (32, 64) if M % b == 0))
        Space(block=lambda N: [b for b in (32, 64, 128) if b <= N])

    Axes are kernel arguments, or two reserved names. ``pass_configs`` is a dict of TileLang pass configuration for that
    candidate, or None. ``compile_flags`` is a list of its compiler's flags instead of `CompileSettings.flags`, or None.

    `where` is one constraint or several. Each takes configuration values and problem arguments by name, and a false
    answer drops the configuration. Configurations come in the order of the given axes, the last one varying fastest. A
    generator is read once, when the workload is first described, and up to `LARGE` configurations.
    """

    def __init__(
        self,
        configs: Configs | Mapping[str, Any] | None = None,
        /,
        *,
        where: Constraint | Sequence[Constraint] = (),
        **axes: Any,
    ) -> None:
        if isinstance(configs, Mapping):  # Space({"where": [...]}) for names that clash with a parameter
            axes = {**configs, **axes}
            configs = None
        if configs is not None and axes:
            raise SpaceError("Space: give a list of configs or axes, not both")
        if configs is None and not axes:
            raise SpaceError("Space is empty: give axes, such as Space(block=[32, 64]), or a list of configs")
        if configs is not None and not callable(configs) and not isinstance(configs, Iterable):
            raise SpaceError(f"Space: configs must be a list, a generator or a callable, got {type(configs).__name__}")
        self._configs = configs
        self._cut = False
        """Whether a generator has more configurations than were read."""
        self._axes = axes
        self.of_call = False
        """Whether a decorated kernel's function made it for one call, of whose arguments it may have asked any."""
        self.where: tuple[Constraint, ...] = (
            tuple(where) if isinstance(where, Sequence) and not isinstance(where, str) else (where,)
        )
        for constraint in self.where:
            if not callable(constraint):
                raise SpaceError(f"Space: a constraint must be callable, got {constraint!r}")
        for name, values in axes.items():
            if not callable(values):
                self._axes[name] = _axis(name, values)
        if isinstance(configs, Sequence):
            for position, config in enumerate(configs):
                for name, value in config.items() if isinstance(config, Mapping) else ():
                    normalise(value, f"Space: config {position}: {name!r}")
                    check_reserved(name, value, f"Space: config {position}")

    def __repr__(self) -> str:
        """Return what made it, its values shortened; none of the user's functions is called."""
        if self.listed is not None:
            given = [f"{len(self.listed)} configurations"]
        elif self._configs is not None:
            given = [_name_of(self._configs)]
        else:
            given = [f"{n}={_name_of(v) if callable(v) else reprlib.repr(list(v))}" for n, v in self._axes.items()]
        where = [f"where={', '.join(map(_name_of, self.where))}"] if self.where else []
        return f"Space({', '.join(given + where)})"

    @property
    def axes(self) -> dict[str, Any]:
        """The axes, or the functions that compute them, by name; empty for a list or a function of configurations."""
        return dict(self._axes)

    def names(self) -> Iterator[tuple[int | None, tuple[str, ...]]]:
        """Yield the axes' names with None, or those that listed configurations have, each with the first one's number.

        Asks no function of the user's: nothing for configurations that are computed.
        """
        if self._configs is None:
            yield None, tuple(self._axes)
        elif isinstance(self._configs, Sequence):
            seen: set[tuple[str, ...]] = set()
            for number, config in enumerate(self._configs):
                if isinstance(config, Mapping) and (names := tuple(config)) not in seen:
                    seen.add(names)
                    yield number, names

    @property
    def listed(self) -> Sequence[Any] | None:
        """The configurations that were given as a list; None for axes, and for a function or a generator not read."""
        return self._configs if isinstance(self._configs, Sequence) else None

    def __getstate__(self) -> dict[str, Any]:
        # A generator cannot be pickled; its configurations can.
        self._read()
        return self.__dict__

    def walk(self, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield every configuration for the problem `arguments`, in order, as it was given.

        Raises `SpaceError` if none is left, a configuration is no mapping, or a user's callable raises.
        """
        points, found = self.points(arguments), False
        for raw in points.given():
            if points.admits(raw):
                found = True
                yield raw
        if not found:
            raise self.empty(arguments)

    def points(self, arguments: Mapping[str, Any], most: int = LARGE) -> Points:
        """Return the space for the problem `arguments`, without enumerating it.

        `most`: how many configurations of a generator are read; the rest is omitted. Raises `SpaceError` if a user's
        callable raises, or gives no configurations or values.
        """
        where = [UserCallback(c, arguments, lambda values: f"constraint on {dict(values)}") for c in self.where]
        if self._configs is None:
            return Product({name: self._values(name, v, arguments) for name, v in self._axes.items()}, where)
        self._read()
        configs: Any = self._configs
        if callable(configs):
            configs = UserCallback(configs, arguments, lambda values: "configs").ask({})
        if isinstance(configs, NO_SERIES) or not isinstance(configs, Iterable):
            raise SpaceError(f"Space: configs gave {configs!r}, and not a series of dicts")
        if isinstance(configs, Sequence):
            return Listed(configs, where, cut=self._cut)
        found, cut = _read(configs, most)
        return Listed(found, where, cut=cut)

    def empty(self, arguments: Mapping[str, Any]) -> SpaceError:
        """Return the error for a space without configurations."""
        why = "no configuration satisfies the constraints" if self.where else "it has no configuration"
        problem = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return SpaceError(f"Space is empty: {why}{f' for {problem}' if problem else ''}")

    @property
    def computed(self) -> bool:
        """Whether what it lists depends on the problem."""
        return any(map(callable, (self._configs, *self._axes.values())))

    def asks(self, arguments: Iterable[str]) -> tuple[str, ...]:
        """Return which of the problem's `arguments` its constraints, computed axes and configurations take."""
        if self.of_call:
            return tuple(arguments)
        functions = (*self.where, *filter(callable, (self._configs, *self._axes.values())))
        asked = [UserCallback(function, {}, str) for function in functions]
        return tuple(name for name in arguments if any(one.takes(name) for one in asked))

    @property
    def stands_at_once(self) -> bool:
        """Whether it can be enumerated at once: it is small, and its values call no function of the user's."""
        if self.where or self.computed:
            return False
        if self._configs is None:
            return math.prod(map(len, self._axes.values())) <= SMALL
        return isinstance(self._configs, Sequence) and len(self._configs) <= SMALL

    @staticmethod
    def _values(name: str, values: Any, arguments: Mapping[str, Any]) -> Sequence[Any]:
        if not callable(values):
            found: Sequence[Any] = values
            return found
        return _axis(name, UserCallback(values, arguments, lambda _: f"axis {name!r}").ask({}))

    def _read(self) -> None:
        """Read a generator, which can be read once, and keep its configurations."""
        if isinstance(self._configs, Iterator):
            self._configs, self._cut = _read(self._configs, LARGE)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _read(configs: Iterable[Any], most: int) -> tuple[list[Any], bool]:
    """Return up to `most` of `configs`, and whether there are more."""
    found: list[Any] = []
    try:
        found.extend(itertools.islice(configs, most + 1))
    except Exception as error:
        raise SpaceError(f"Space: the generator of configs raised after {len(found)}: {error!r}") from error
    return found[:most], len(found) > most


def _axis(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, NO_SERIES) or not isinstance(values, Iterable):
        such = {PASS_CONFIGS: "[None, {'tl.enable_fast_math': True}]", COMPILE_FLAGS: "[None, ['-O2']]"}.get(
            name, "[1, 2]"
        )
        raise SpaceError(f"Space: axis {name!r} is {values!r}; an axis is a list of values, such as {name}={such}")
    found = values if isinstance(values, (range, LayoutAxis)) else tuple(values)
    if not found:
        raise SpaceError(f"Space is empty: axis {name!r} has no values")
    where = f"Space: axis {name!r}"
    for value in (found[0], found[-1]) if isinstance(found, range) else found:
        normalise(value, where)  # only checked: constraints see what was given
        check_reserved(name, value, where)
    return found

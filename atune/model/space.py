"""The space of configurations to search, and the points of a space for a problem, in a stable order."""

from __future__ import annotations

import inspect
import itertools
import linecache
import math
import random
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from atune.errors import SpaceError, asked, message_of, name_and_message, type_of
from atune.model.candidate import (
    COMPILE_FLAGS,
    PASS_CONFIGS,
    Config,
    as_written,
    check_reserved,
    config_key,
    forms,
    key_of,
    normalise,
    shown,
)
from atune.model.layouts import LayoutAxis
from atune.model.options import meant

T = TypeVar("T")
Constraint = Callable[..., Any]
LARGE = 100_000
"""Largest number of candidates. A larger space is sampled. A generator that yields more candidates is refused."""
SMALL = 500
"""Number of points that can be enumerated within a few milliseconds."""
NO_SERIES = (str, bytes, Mapping, set, frozenset)
"""Iterable types that are refused as a series of values. Sets have no stable order."""
Configs = Iterable[Mapping[str, Any]] | Callable[..., Iterable[Mapping[str, Any]]]
SHUFFLED = 1_000_000
"""Points of a space up to this size are drawn from a shuffled list. In a larger space, a point may be drawn twice."""


class Space:
    """Configurations of a kernel: axes, a list, a generator, or a function of the problem.

        Space(block_M=[64, 128], block_N=[64, 128], where=lambda block_M, block_N: block_M <= block_N)
        Space([{"block": 64}, {"block": 128}])
        Space(lambda M, N: ({"block": b} for b in (32, 64) if M % b == 0))
        Space(block=lambda N: [b for b in (32, 64, 128) if b <= N])

    Each axis is an argument of the kernel, or has one of two reserved names. ``pass_configs`` is for the candidate's
    TileLang pass configuration, which is a dict or None. ``compile_flags`` is for a list of flags that replaces
    `CompileSettings.flags`, or None.

    `where` is a constraint or several constraints. A constraint takes values of the configuration and arguments of the
    problem by name, and returns True, or False to drop the configuration. Configurations come in the order of the axes,
    with the last axis varying fastest. A generator is read immediately, and may yield at most 100,000 configurations.
    Raises `SpaceError`.
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
        self._configs = configs if configs is None or callable(configs) else _series(configs)
        self._axes = axes
        self.of_call = False
        """Whether a decorated kernel made the space for one call, so that the space may depend on all arguments."""
        self.where: tuple[Constraint, ...] = (
            tuple(where) if isinstance(where, Sequence) and not isinstance(where, str) else (where,)
        )
        for constraint in self.where:
            if not callable(constraint):
                raise SpaceError(f"Space: a constraint must be callable, got {constraint!r}")
        for name, values in axes.items():
            if not callable(values):
                self._axes[name] = _axis(name, values)
        seen: dict[Any, Any] = {}
        for position, config in enumerate(self.listed or ()):
            plain = {}
            for name, value in config.items() if isinstance(config, Mapping) else ():
                plain[name] = normalise(value, f"Space: config {position}: {name!r}")
                check_reserved(name, value, f"Space: config {position}")
            _refuse_second(seen, plain, config, f"Space: config {position}")

    def __repr__(self) -> str:
        """Return the space as an expression with shortened values. Calls none of the user's functions."""
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
        """The values of each axis by name, or a function that computes them; empty if the space has no axes."""
        return dict(self._axes)

    def names(self) -> Iterator[tuple[int | None, tuple[str, ...]]]:
        """For axes, yield None with the names of the axes.

        For a list, yield each set of names with the index of the first configuration that has it. Calls none of the
        user's functions, and therefore yields nothing if the configurations are computed.
        """
        if self._configs is None:
            yield None, tuple(self._axes)
        seen: set[tuple[str, ...]] = set()
        for number, config in enumerate(self.listed or ()):
            if isinstance(config, Mapping) and (names := tuple(config)) not in seen:
                seen.add(names)
                yield number, names

    @property
    def listed(self) -> Sequence[Any] | None:
        """The configurations from a list or a generator; None if the space has axes or computes its configurations."""
        return None if callable(self._configs) else self._configs

    def points(self, arguments: Mapping[str, Any]) -> Points:
        """Return the points of the space for the problem `arguments`, without enumerating them.

        Raises `SpaceError` if a user's function raises, or returns no configurations or values, or too many.
        """
        where = [UserCallback(c, arguments, lambda values: f"constraint on {dict(values)}") for c in self.where]
        if self._configs is None:
            return Product({name: self._values(name, v, arguments) for name, v in self._axes.items()}, where)
        if callable(self._configs):
            return Listed(_series(UserCallback(self._configs, arguments, lambda values: "configs").ask({})), where)
        return Listed(self._configs, where)

    def empty(self, arguments: Mapping[str, Any], refused: Iterable[str]) -> SpaceError:
        """Return the error for an empty space. `refused`: for each constraint, how many points it refused, as text."""
        why = "no configuration satisfies the constraints" if self.where else "it has no configuration"
        problem = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        lines = [f"Space is empty: {why}{f' for {problem}' if problem else ''}", *refused]
        negative = (name for name, value in arguments.items() if isinstance(value, (int, float)) and value < 0)
        lines += [f"{name} is negative, but a size must be 0 or more" for name in negative]
        return SpaceError("\n  ".join(lines))

    @property
    def computed(self) -> bool:
        """Whether configurations or values of axes are computed from the problem."""
        return any(map(callable, (self._configs, *self._axes.values())))

    def asks(self, arguments: Iterable[str]) -> tuple[str, ...]:
        """Return those names in `arguments` that are parameters of the space's functions, including constraints."""
        if self.of_call:
            return tuple(arguments)
        functions = (*self.where, *filter(callable, (self._configs, *self._axes.values())))
        callbacks = [UserCallback(function, {}, str) for function in functions]
        return tuple(name for name in arguments if any(callback.takes(name) for callback in callbacks))

    @property
    def stands_at_once(self) -> bool:
        """Whether the space can be enumerated quickly, because it is small and calls none of the user's functions."""
        if self.where or self.computed:
            return False
        return (math.prod(map(len, self._axes.values())) if self.listed is None else len(self.listed)) <= SMALL

    @staticmethod
    def _values(name: str, values: Any, arguments: Mapping[str, Any]) -> Sequence[Any]:
        if not callable(values):
            given: Sequence[Any] = values
            return given
        return _axis(name, UserCallback(values, arguments, lambda _: f"axis {name!r}").ask({}))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _series(configs: Any) -> Sequence[Any]:
    """Return configurations as a list. A generator is read to its end."""
    if isinstance(configs, NO_SERIES) or not isinstance(configs, Iterable):
        raise SpaceError(f"Space: configs must be a list or another series of dicts, got {configs!r}")
    listed, most = list[Any](), len(configs) if isinstance(configs, Sequence) else LARGE

    def raised(error: BaseException) -> SpaceError:
        return SpaceError(f"Space: the generator raised after {len(listed)} configs: {name_and_message(error)}")

    asked(lambda: listed.extend(itertools.islice(configs, most + 1)), raised)
    if len(listed) > most:
        raise SpaceError(f"Space: the generator yields more than {LARGE:,} configs; give axes and constraints instead")
    return [as_written(dict(config)) if isinstance(config, Mapping) else config for config in listed]


def _refuse_second(seen: dict[bytes, Any], plain: Any, value: Any, where: str) -> None:
    """Raise `SpaceError` if a different value with the same plain form was `seen`, because the kernels may differ."""
    first = seen.setdefault(key_of(plain), value)
    if forms(first) != forms(value):
        raise SpaceError(
            f"{where}: {shown(first)} and {shown(value)} are both {shown(plain)} in a journal, which cannot tell them "
            "apart. Give only one of the two, or a string for each, which the kernel looks up"
        )


def _axis(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, NO_SERIES) or not isinstance(values, Iterable):
        example = {PASS_CONFIGS: "[None, {'tl.enable_fast_math': True}]", COMPILE_FLAGS: "[None, ['-O2']]"}.get(
            name, "[1, 2]"
        )
        raise SpaceError(f"Space: axis {name!r} is {values!r}; an axis is a list of values, such as {name}={example}")
    raised = lambda error: SpaceError(f"Space: axis {name!r} raised {name_and_message(error)}")  # noqa: E731
    listed = values if isinstance(values, (range, LayoutAxis)) else asked(lambda: tuple(values), raised)
    if not listed:
        raise SpaceError(f"Space is empty: axis {name!r} has no values")
    where, seen = f"Space: axis {name!r}", dict[bytes, Any]()
    for value in (listed[0], listed[-1]) if isinstance(listed, range) else listed:
        plain = normalise(value, where)
        check_reserved(name, value, where)
        _refuse_second(seen, plain, value, where)
    return listed if isinstance(listed, (range, LayoutAxis)) else tuple(map(as_written, listed))


# ---- points


class UserCallback:
    """A function of the user, whose signature is read only once.

    `what` takes the values that a call adds to the problem, and returns a description of the call for messages.
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
        """Return whether the function takes an argument called `name`."""
        return self._takes_all or name in self._names

    def ask(self, values: Mapping[str, Any]) -> Any:
        """Call the function with those `values` and arguments of the problem that it takes, and return its answer.

        Raises `SpaceError` if the function raises, or if a value that it needs is missing.
        """
        return self._asked(values, lambda wanted: self._function(**wanted))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the answer is True. Raises like `ask`, and also for an answer other than True or False."""
        return self._asked(values, lambda wanted: yes_or_no(self._function(**wanted)))

    def _asked(self, values: Mapping[str, Any], question: Callable[[dict[str, Any]], T]) -> T:
        available = {**self._arguments, **values}
        wanted = available if self._takes_all else {name: available[name] for name in self._names if name in available}

        def raised(error: BaseException) -> SpaceError:
            place = defined(self._function)
            if missing := [name for name in self._names if name in self._required and name not in available]:
                there = f"{', '.join(available) or 'nothing'}{meant(missing[0], available)}"
                needs = f"needs {', '.join(missing)}; available: {there}"
                return SpaceError(f"Space: {self._what(values)} {needs}{place}")
            said = message_of(error) if isinstance(error, NoAnswer) else f"raised {name_and_message(error)}"
            return SpaceError(f"Space: {self._what(wanted)} {said}{place}")

        return asked(lambda: question(wanted), raised)


class NoAnswer(TypeError):
    """Raised if a user's function returned something other than True or False."""


def yes_or_no(answer: Any) -> bool:
    """Return the answer of a user's function as a bool.

    The answer may also be a numpy or torch array with a single boolean. Raises `NoAnswer` for anything else. None, a
    number, a generator or a coroutine also has a truth value, but is not an answer.
    """
    if isinstance(answer, bool):
        return answer
    if str(getattr(answer, "dtype", "")) in ("bool", "torch.bool") and math.prod(answer.shape) == 1:
        return bool(answer.item())
    if inspect.iscoroutine(answer):
        answer.close()  # otherwise, Python warns that nobody awaited the coroutine
    bool(answer)  # if this raises, its message is more helpful
    returned = "None" if answer is None else f"{shown(answer)}, {type_of(answer)}"
    raise NoAnswer(f"returned {returned}, but must return True or False")


def defined(function: Any) -> str:
    """Return the lines by which a traceback would show where a function is defined; empty if the place is unknown."""
    inner = getattr(function, "func", function)  # of functools.partial
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return ""
    source = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f'\n  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}\n    {source}'.rstrip()


class Points(ABC):
    """Configurations at the places ``0 … size-1``, in a stable order. `size` includes refused configurations.

    Plain configurations have values as in candidates and journals. Raw configurations, for constraints and kernels,
    have values `as_written`. Methods that call constraints raise `SpaceError` if a constraint raises or does not return
    a bool.
    """

    size: int

    def __init__(self, where: Sequence[UserCallback]) -> None:
        self._where = where
        self.refused = [0] * len(where)
        """For each constraint, how many configurations it refused after all earlier constraints admitted them."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """For each name, all values as the user wrote them."""

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes whose values are layouts of fragments or loops."""
        return tuple(name for name, values in self.axes.items() if isinstance(values, LayoutAxis))

    @abstractmethod
    def raw(self, place: int) -> Config:
        """Return the configuration at `place`, with the values as the user wrote them. Constraints are not checked."""

    @abstractmethod
    def plain(self, place: int) -> Config:
        """Return the configuration at `place`, with plain values. Constraints are not checked."""

    @abstractmethod
    def place(self, config: Config) -> int | None:
        """Return a plain configuration's place, without checking constraints; None if the space does not have it."""

    def admits(self, raw: Mapping[str, Any]) -> bool:
        """Return whether every constraint admits a raw configuration."""
        return self.refusing(raw) is None

    def serves(self, config: Config, *, unlisted: bool) -> bool:
        """Return whether constraints admit a plain configuration. Unless `unlisted` is True, the space must list it."""
        place = self.place(config)
        return (unlisted or place is not None) and self.admits(config if place is None else self.raw(place))

    def refusing(self, raw: Mapping[str, Any]) -> int | None:
        """Return the number of the first constraint that refuses a raw configuration, or None if no constraint does."""
        first = next((number for number, question in enumerate(self._where) if not question.holds(raw)), None)
        if first is not None:
            self.refused[first] += 1
        return first

    def given(self) -> Iterator[Config]:
        """Yield every raw configuration in order. Constraints are not checked."""
        return map(self.raw, range(self.size))

    def drawn(self, seed: int) -> Iterator[int]:
        """Yield places in a random order that depends on `seed`. In a space larger than `SHUFFLED`, places repeat
        without end."""
        rng = random.Random(seed)
        if self.size <= SHUFFLED:
            order = list(range(self.size))
            rng.shuffle(order)
            return iter(order)
        return iter(lambda: rng.randrange(self.size), None)

    def walk(self) -> Iterator[Config]:
        """Yield in order each configuration that the constraints admit, with plain values."""
        return (self.plain(place) for place, raw in enumerate(self.given()) if self.admits(raw))


class Product(Points):
    """All combinations of the axes' values. The last axis varies fastest."""

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
        steps = [(_position(values, as_written(config[name])), step) for name, values, step, _ in self._plain_steps]
        return None if any(at is None for at, _ in steps) else sum((at or 0) * step for at, step in steps)


class Listed(Points):
    """A list of configurations."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], where: Sequence[UserCallback]) -> None:
        super().__init__(where)
        self._configs, self.size = configs, len(configs)

    @cached_property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        axes: dict[str, dict[bytes, Any]] = {}
        for place in range(self.size):
            for name, value in self.raw(place).items():
                axes.setdefault(name, {}).setdefault(key_of(value), value)
        return {name: tuple(values.values()) for name, values in axes.items()}

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


def _position(values: Sequence[Any], value: Any) -> int | None:
    if isinstance(values, range):
        return values.index(value) if type(value) is int and value in values else None
    return next((at for at, other in enumerate(values) if key_of(other) == key_of(value)), None)


def _plain_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, range) else tuple(normalise(v, f"Space: axis {name!r}") for v in values)

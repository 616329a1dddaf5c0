"""The set of configurations to search, in a stable order; and its points for one problem, without enumeration."""

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
"""Most candidates of a space: of more points the seed draws this many. A generator gives no more."""
SMALL = 500
"""Points that can be enumerated within a few milliseconds."""
NO_SERIES = (str, bytes, Mapping, set, frozenset)
"""Types that are iterable, and no series of values: the order of a set differs between processes."""
Configs = Iterable[Mapping[str, Any]] | Callable[..., Iterable[Mapping[str, Any]]]
SHUFFLED = 1_000_000
"""Up to this many points are shuffled as a list, to draw them; of more, a draw may repeat a point."""


class Space:
    """Configurations of a kernel: Cartesian axes, a fixed list, a generator, or a callable of the problem.

        Space(block_M=[64, 128], block_N=[64, 128], where=lambda block_M, block_N: block_M <= block_N)
        Space([{"block": 64}, {"block": 128}])
        Space(lambda M, N: ({"block": b} for b in (32, 64) if M % b == 0))
        Space(block=lambda N: [b for b in (32, 64, 128) if b <= N])

    Axes are kernel arguments, or two reserved names. ``pass_configs`` is a dict of TileLang pass configuration for that
    candidate, or None. ``compile_flags`` is a list of its compiler's flags instead of `CompileSettings.flags`, or None.

    `where` is one constraint or several. Each takes configuration values and problem arguments by name, and answers
    True, or False to drop the configuration. Configurations come in the order of the given axes, the last one varying
    fastest. A generator is read at once. It gives `LARGE` configurations at most.
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
        one_form: dict[Any, Any] = {}
        for position, config in enumerate(self.listed or ()):
            plain = {}
            for name, value in config.items() if isinstance(config, Mapping) else ():
                plain[name] = normalise(value, f"Space: config {position}: {name!r}")
                check_reserved(name, value, f"Space: config {position}")
            _refuse_second(one_form, plain, config, f"Space: config {position}")

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
        seen: set[tuple[str, ...]] = set()
        for number, config in enumerate(self.listed or ()):
            if isinstance(config, Mapping) and (names := tuple(config)) not in seen:
                seen.add(names)
                yield number, names

    @property
    def listed(self) -> Sequence[Any] | None:
        """The configurations that were given one by one; None for axes and for a function."""
        return None if callable(self._configs) else self._configs

    def points(self, arguments: Mapping[str, Any]) -> Points:
        """Return the space for the problem `arguments`, without enumerating it.

        Raises `SpaceError` if a user's callable raises, or gives no configurations or values, or too many.
        """
        where = [UserCallback(c, arguments, lambda values: f"constraint on {dict(values)}") for c in self.where]
        if self._configs is None:
            return Product({name: self._values(name, v, arguments) for name, v in self._axes.items()}, where)
        if callable(self._configs):
            return Listed(_series(UserCallback(self._configs, arguments, lambda values: "configs").ask({})), where)
        return Listed(self._configs, where)

    def empty(self, arguments: Mapping[str, Any], refused: Iterable[str]) -> SpaceError:
        """Return the error for a space without configurations. `refused`: how many each constraint refused."""
        why = "no configuration satisfies the constraints" if self.where else "it has no configuration"
        problem = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        lines = [f"Space is empty: {why}{f' for {problem}' if problem else ''}", *refused]
        negative = (name for name, value in arguments.items() if isinstance(value, (int, float)) and value < 0)
        lines += [f"{name} is negative, which no size may be" for name in negative]
        return SpaceError("\n  ".join(lines))

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
        return (math.prod(map(len, self._axes.values())) if self.listed is None else len(self.listed)) <= SMALL

    @staticmethod
    def _values(name: str, values: Any, arguments: Mapping[str, Any]) -> Sequence[Any]:
        if not callable(values):
            found: Sequence[Any] = values
            return found
        return _axis(name, UserCallback(values, arguments, lambda _: f"axis {name!r}").ask({}))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _series(configs: Any) -> Sequence[Any]:
    """Return configurations one by one; a generator is read."""
    if isinstance(configs, NO_SERIES) or not isinstance(configs, Iterable):
        raise SpaceError(f"Space: configs gave {configs!r}, and not a series of dicts")
    found, most = list[Any](), len(configs) if isinstance(configs, Sequence) else LARGE

    def raised(error: BaseException) -> SpaceError:
        return SpaceError(f"Space: the generator of configs raised after {len(found)}: {name_and_message(error)}")

    asked(lambda: found.extend(itertools.islice(configs, most + 1)), raised)
    if len(found) > most:
        raise SpaceError(f"Space: the generator gives more than {LARGE:,} configs; give axes and constraints instead")
    return [as_written(dict(one)) if isinstance(one, Mapping) else one for one in found]


def _refuse_second(seen: dict[bytes, Any], plain: Any, value: Any, where: str) -> None:
    """Raise `SpaceError` if another value was `seen` with the same plain form, of which a kernel may make another."""
    first = seen.setdefault(key_of(plain), value)
    if forms(first) != forms(value):
        raise SpaceError(
            f"{where}: {shown(first)} and {shown(value)} are both {shown(plain)} in a journal, so that it cannot tell "
            "them apart: give one of them, or a text for each that the kernel looks up"
        )


def _axis(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, NO_SERIES) or not isinstance(values, Iterable):
        such = {PASS_CONFIGS: "[None, {'tl.enable_fast_math': True}]", COMPILE_FLAGS: "[None, ['-O2']]"}.get(
            name, "[1, 2]"
        )
        raise SpaceError(f"Space: axis {name!r} is {values!r}; an axis is a list of values, such as {name}={such}")
    raised = lambda error: SpaceError(f"Space: axis {name!r} raised {name_and_message(error)}")  # noqa: E731
    found = values if isinstance(values, (range, LayoutAxis)) else asked(lambda: tuple(values), raised)
    if not found:
        raise SpaceError(f"Space is empty: axis {name!r} has no values")
    where, one_form = f"Space: axis {name!r}", dict[bytes, Any]()
    for value in (found[0], found[-1]) if isinstance(found, range) else found:
        plain = normalise(value, where)
        check_reserved(name, value, where)
        _refuse_second(one_form, plain, value, where)
    return found if isinstance(found, (range, LayoutAxis)) else tuple(map(as_written, found))


# ---- points


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
        return self._asked(values, lambda wanted: self._function(**wanted))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Tell whether the answer is True. Raises as `ask` does, also where the answer is neither True nor False."""
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
    """A function that must answer yes or no answered something else."""


def yes_or_no(answer: Any) -> bool:
    """Return what a function of the user's answered: True, False, or one element of numpy's or torch's booleans.

    Raises `NoAnswer`, which says what it answered, for anything else, such as None, a number, a generator or a
    coroutine, whose truth says nothing about the question.
    """
    if isinstance(answer, bool):
        return answer
    if str(getattr(answer, "dtype", "")) in ("bool", "torch.bool") and math.prod(answer.shape) == 1:
        return bool(answer.item())
    if inspect.iscoroutine(answer):
        answer.close()  # or Python warns that nobody awaited it
    bool(answer)  # what that raises says more
    raise NoAnswer(f"answered {shown(answer)}, {type_of(answer)}, and must answer True or False")


def defined(function: Any) -> str:
    """Return where a function is defined, as lines of a traceback; empty where that is unknown."""
    inner = getattr(function, "func", function)  # of functools.partial
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return ""
    source = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f'\n  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}\n    {source}'.rstrip()


class Points(ABC):
    """Places ``0 … size-1`` in a stable order. Constraints refuse some of them: `size` is an upper bound.

    Configurations are plain values, as in candidates and journals. Constraints and kernels get them `as_written`.
    Methods that call the user's constraints raise `SpaceError` if a constraint raises, or answers neither yes nor no.
    """

    size: int

    def __init__(self, where: Sequence[UserCallback]) -> None:
        self._where = where
        self.refused = [0] * len(where)
        """How many configurations each constraint refused first."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """The values of each name, in the order given."""

    @property
    def layout_axes(self) -> tuple[str, ...]:
        """Names of the axes that lay out fragments and loops."""
        return tuple(name for name, values in self.axes.items() if isinstance(values, LayoutAxis))

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
        first = next((number for number, question in enumerate(self._where) if not question.holds(raw)), None)
        if first is not None:
            self.refused[first] += 1
        return first

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
        found = [(_position(values, as_written(config[name])), step) for name, values, step, _ in self._plain_steps]
        return None if any(at is None for at, _ in found) else sum((at or 0) * step for at, step in found)


class Listed(Points):
    """Configurations one by one, such as a list."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], where: Sequence[UserCallback]) -> None:
        super().__init__(where)
        self._configs, self.size = configs, len(configs)

    @cached_property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        found: dict[str, dict[bytes, Any]] = {}
        for place in range(self.size):
            for name, value in self.raw(place).items():
                found.setdefault(name, {}).setdefault(key_of(value), value)
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


def _position(values: Sequence[Any], value: Any) -> int | None:
    if isinstance(values, range):
        return values.index(value) if type(value) is int and value in values else None
    return next((at for at, one in enumerate(values) if key_of(one) == key_of(value)), None)


def _plain_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, range) else tuple(normalise(v, f"Space: axis {name!r}") for v in values)

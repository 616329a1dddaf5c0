"""The set of configurations to search, enumerated in a stable order."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atune.errors import SpaceError
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, check_reserved, normalise

Constraint = Callable[..., Any]
Configs = Iterable[Mapping[str, Any]] | Callable[..., Iterable[Mapping[str, Any]]]


class Space:
    """Configurations of a kernel: Cartesian axes, a fixed list, a generator, or a callable of the problem.

        Space(block_M=[64, 128], block_N=[64, 128], where=lambda block_M, block_N: block_M <= block_N)
        Space([{"block": 64}, {"block": 128}])
        Space(lambda M, N: ({"block": b} for b in (32, 64) if M % b == 0))
        Space(block=lambda N: [b for b in (32, 64, 128) if b <= N])

    Axes are kernel arguments, or the reserved names ``pass_configs`` (a dict of TileLang pass configuration for that
    candidate, or None) and ``compile_flags`` (a list of its compiler's flags in place of `CompileSettings.flags`, or
    None). `where` is one constraint or several: each takes, by name, whichever configuration values and problem
    arguments it wants, and a false answer drops the configuration. The order is that of the axes as given, the last
    one varying fastest. A generator is read once, when the workload is first described.
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
        self._axes = axes
        self.where: tuple[Constraint, ...] = tuple(where) if isinstance(where, Sequence) else (where,)
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

    @property
    def axes(self) -> dict[str, Any]:
        """The axes, or what computes them, by name; empty where configurations are listed or computed as such."""
        return dict(self._axes)

    def __getstate__(self) -> dict[str, Any]:
        # A generator does not travel; what it yields does.
        self._read()
        return self.__dict__

    def configs(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return every configuration for the problem `arguments`, in order.

        Raises `SpaceError` when none is left, a configuration is no mapping or occurs twice, or a user's callable
        raises.
        """
        found = [config for config in self._candidates(arguments) if self._admits(config, arguments)]
        if not found:
            why = "no configuration satisfies the constraints" if self.where else "it has no configuration"
            raise SpaceError(f"Space is empty: {why} for {dict(arguments)}")
        return found

    def _candidates(self, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if self._configs is not None:
            self._read()
            configs = _ask("configs", self._configs, arguments) if callable(self._configs) else self._configs
            if isinstance(configs, (str, bytes, Mapping)) or not isinstance(configs, Iterable):
                raise SpaceError(f"Space: configs gave {configs!r}, and not a series of dicts")
            position = 0
            iterator = iter(configs)
            while True:
                try:
                    config = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    raise SpaceError(f"Space: the generator of configs raised after {position}: {error!r}") from error
                if not isinstance(config, Mapping):
                    raise SpaceError(f"Space: config {position} is {config!r}; a config is a dict of arguments")
                yield dict(config)
                position += 1
        axes = {n: _axis(n, _ask(f"axis {n!r}", v, arguments)) if callable(v) else v for n, v in self._axes.items()}
        if self._configs is None:
            for values in itertools.product(*axes.values()):
                yield dict(zip(axes, values, strict=True))

    def _read(self) -> None:
        """Read a generator, which can be read once, and keep what it gave."""
        if isinstance(self._configs, Iterator):
            found: list[Mapping[str, Any]] = []
            try:
                found.extend(self._configs)
            except Exception as error:
                raise SpaceError(f"Space: the generator of configs raised after {len(found)}: {error!r}") from error
            self._configs = found

    def _admits(self, config: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        return all(_ask(f"constraint on {dict(config)}", c, {**arguments, **config}) for c in self.where)


def _axis(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        such = {PASS_CONFIGS: "[None, {'tl.enable_fast_math': True}]", COMPILE_FLAGS: "[None, ['-O2']]"}.get(
            name, "[1, 2]"
        )
        raise SpaceError(f"Space: axis {name!r} is {values!r}; an axis is a list of values, such as {name}={such}")
    found = tuple(values)
    if not found:
        raise SpaceError(f"Space is empty: axis {name!r} has no values")
    where = f"Space: axis {name!r}"
    for value in found:  # only checked: constraints see what was given
        normalise(value, where)
        check_reserved(name, value, where)
    return found


def _ask(what: str, function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """Call the user's `function` with those of `available` that its parameters name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        parameters = ()  # type: ignore[assignment]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wanted = dict(available)
    else:
        wanted = {p.name: available[p.name] for p in parameters if p.name in available}
        missing = [
            p.name
            for p in parameters
            if p.name not in available and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL,)
        ]
        if missing:
            raise SpaceError(
                f"Space: {what} wants {', '.join(missing)}; there is only {', '.join(available) or 'nothing'}"
            )
    try:
        return function(**wanted)
    except Exception as error:
        raise SpaceError(f"Space: {what} raised {type(error).__name__}: {error}") from error

"""Analysis of one call of a kernel that tunes itself: the normal form of its arguments, its workload and its key."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from atune.api.cached_tune import Work
from atune.decorator.options import refuse_clash
from atune.decorator.presets import resolved
from atune.errors import UsageError
from atune.model.artifact import KernelParam
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, RESERVED, Config
from atune.model.settings import CompileSettings
from atune.model.space import Space
from atune.workload.workload import Workload

if TYPE_CHECKING:
    from atune.decorator.autotuned import Autotuned

_PLAIN = frozenset({int, float, str, bool, NoneType, bytes})


class Arguments:
    """A call's arguments by name. `given`: the caller's arguments in the signature's order, with extra ones last."""

    __slots__ = ("args", "given", "kwargs", "values")

    def __init__(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, extra: bool
    ) -> None:
        parameters = signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = {n: v for n, v in kwargs.items() if n in parameters or (takes_any and not extra)}
        unknown = {n: v for n, v in kwargs.items() if n not in known}
        if unknown and not extra:
            raise TypeError(f"the kernel takes no argument {next(iter(unknown))!r}; it takes {', '.join(parameters)}")
        bound = signature.bind_partial(*args, **known).arguments
        for name in list(bound):
            if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise UsageError(f"the kernel's *{name} cannot be tuned over: give its parameters names")
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(bound.pop(name))
        self.args, self.kwargs = args, dict(kwargs)
        self.given: dict[str, Any] = {**bound, **unknown}
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        everything = {**defaults, **self.given}
        self.values: dict[str, Any] = {n: everything[n] for n in (*parameters, *everything) if n in everything}
        """The arguments with the signature's defaults."""


def raw_key(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    describe: Callable[[Any], Any],
    tensor: type,
    at_run_time: Container[int | str] = (),
) -> Hashable:
    """Return a key of the call's form. It must be fast, because every call needs it.

    `tensor` is torch's tensor type. Tensors count by dtype, shape and strides, and `describe` returns the key of other
    objects. Values of different types differ, even if Python compares them equal. `at_run_time` holds positions and
    names of numbers that a compiled kernel takes at run time: only their type counts.
    """
    parts: list[Any] = []
    for i, value in enumerate(args):
        kind = type(value)
        if kind is tensor:
            parts += (value.dtype, value.shape, value.stride())
        elif kind in _PLAIN:
            parts += (kind, None if i in at_run_time else value)
        else:
            parts.append(describe(value))
    if kwargs:
        for name, value in sorted(kwargs.items()):
            kind = type(value)
            if kind is tensor:
                parts += (name, value.dtype, value.shape, value.stride())
            elif kind in _PLAIN:
                parts += (name, kind, None if name in at_run_time else value)
            else:
                parts += (name, describe(value))
    return tuple(parts)


def text_of(value: Any) -> str:
    """Return data as text that does not depend on the order of names."""
    return msgspec.json.encode(value, order="deterministic").decode()


class Call:
    """One analysed call: the work to tune for it, and its kernel.

    With tunable arguments of the caller's own (`explicit`), nothing is tuned, and the analysis ends there.
    """

    def __init__(self, owner: Autotuned, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.owner, self.options, stage = owner, owner.options, owner.frontend
        self.given = Arguments(owner.signature, args, kwargs, extra=owner.is_jit)
        self.space = self._space()
        self.tunables = tunables_of(self.space)
        refuse_clash(self.tunables, self.options.hints)
        owner.check_names(self.tunables | (self.options.hints.keys() - RESERVED))
        self.explicit = sorted(self.tunables & self.given.given.keys())
        self.eager = owner.is_eager(self.given, self._probes())
        if not self.eager:
            self._refuse_unknown(owner.parameters, "")
        if self.explicit:
            return
        self.names = stage.tensor_names(owner.kernel) if self.eager else ()
        self.tensors = {n: self.given.given[n] for n in self.names if n in self.given.given}
        plain = {n: v for n, v in self.given.values.items() if n not in self.names and n not in self.tunables}
        hints = resolved(self.options.hints, lambda: owner.where_to_run[0])
        self.hints = {n: v for n, v in hints.items() if n in RESERVED}
        plain.update({n: v for n, v in hints.items() if n not in RESERVED})
        self.arguments = {name: self._data(name, value) for name, value in plain.items()}
        if self.eager:
            sizes = stage.eager_dimensions(owner.kernel, self.tensors, plain, self._probes())
            self.arguments.update({name: self._data(name, size) for name, size in sizes.items()})
            self._refuse_unknown({*owner.parameters, *sizes}, f", and by name the dimensions {', '.join(sizes)}")
        if missing := owner.missing(self.arguments, self.tunables, self.names):
            raise TypeError(f"{owner.__name__} lacks the argument {missing[0]!r}")
        self._symbols_and_inputs()
        self.key = self.options.rule.apply(self.problem, self.given, stage.encode)
        self.key_text = text_of(self.key)

    def _space(self) -> Space:
        return self.owner.space_for(self.given.args, self.given.kwargs)

    def _data(self, name: str, value: Any) -> Any:
        """Return the value of an argument as data. Raises `UsageError` for other things."""
        return self.owner.frontend.encode(value, f"{self.owner.__name__}: argument {name!r}")

    def _probes(self) -> list[Config]:
        """Return configurations for tracing before the problem is known: the defaults, then those of the space."""
        axes = self.space.axes
        if not axes:
            return [{}, *itertools.islice(self.space.walk({}), 16)]
        fixed = {name: values for name, values in axes.items() if not callable(values)}
        return [{}, *({n: v[i % len(v)] for n, v in fixed.items()} for i in range(4))]

    def _refuse_unknown(self, known: Container[str], more: str) -> None:
        if unknown := sorted(name for name in self.given.given if name not in known):
            takes = f"it takes {', '.join(self.owner.signature.parameters)}{more}"
            raise TypeError(f"{self.owner.__name__} takes no argument {unknown[0]!r}; {takes}")

    def _symbols_and_inputs(self) -> None:
        """Find the symbolic dimensions, and the sizes and inputs to tune with."""
        options, stage = self.options, self.owner.frontend
        self.out_idx, self.inputs = options.workload.get("out_idx"), options.inputs
        symbolic = any(isinstance(v, dict) and stage.DYNAMIC in v for v in self.arguments.values())
        symbols: dict[str, int] = {}
        if self.eager or symbolic:
            found = stage.parameters_of(self.kernel, self.arguments, self.space.walk(self.arguments))
            params, returned = found or ([], ())
            if self.out_idx is None and returned:
                self.out_idx = returned
            tensors = [self.tensors.get(n) for n in self.names]
            known = {**options.symbols, **stage.bound_symbols(params, tensors)}
            wanted = stage.symbols_of(params)
            symbols = {name: known[name] for name in sorted(wanted & known.keys())}
            scalars = [t for p, t in zip(params, tensors, strict=False) if p.shape is None]
            if self.inputs is None and (wanted or any(p.shape is None for p in params)):
                self.inputs = self._drawn(params, symbols, scalars)
        if self.inputs == "call":
            if not self.tensors:
                raise UsageError("inputs='call' tunes on the call's tensors, but this call has none: give inputs")
            self.inputs = stage.call_inputs(list(self.tensors.values()))
        self.problem = {**self.arguments, **symbols}

    def _drawn(self, params: Sequence[KernelParam], symbols: Mapping[str, int], scalars: Sequence[Any]) -> Any:
        """Return inputs to draw. Raises `UsageError` where nothing tells a size or a number."""
        return self.owner.frontend.drawn_inputs(params, symbols, self.options.workload.get("supply"), scalars)

    def as_given(self, config: Config) -> Config:
        """Return a configuration of the space with the caller's own values."""
        return config

    @functools.cached_property
    def kernel(self) -> Any:
        owner = self.owner
        return owner.frontend.jit_function(owner.kernel, self.eager) if owner.is_jit else owner.kernel

    @functools.cached_property
    def compile(self) -> CompileSettings:
        settings: CompileSettings = self.options.run["compile"]
        flags = self.hints.get(COMPILE_FLAGS, getattr(self.owner.kernel, "compile_flags", None))
        if flags and settings.flags is None:
            flags = tuple(flags.split() if isinstance(flags, str) else flags)
            settings = msgspec.structs.replace(settings, flags=flags)
        return settings

    @functools.cached_property
    def workload(self) -> Workload:
        given = {name: value for name, value in self.options.workload.items() if name != "out_idx"}
        return Workload(
            self.kernel,
            self.space,
            arguments=self.arguments,
            inputs=self.inputs,
            out_idx=self.out_idx,
            pass_configs=self.hints.get(PASS_CONFIGS),
            **given,
        )

    @functools.cached_property
    def work(self) -> Work:
        where = {"target": self.owner.target, "devices": self.options.devices}
        return Work(self.workload, self.key, **{**self.options.run, "compile": self.compile, **where})


def tunables_of(space: Space) -> frozenset[str]:
    """Return the kernel's arguments that the space sets."""
    names = set(space.axes) or {name for config in space.walk({}) for name in config}
    return frozenset(names - RESERVED)

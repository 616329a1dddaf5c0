"""A kernel function, and one call of it: its arguments, its workload, its key, and what such calls do."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Number
from types import NoneType
from typing import Any

import msgspec

from atune.bundle.launch import refuse
from atune.errors import SpaceError, UsageError, type_of
from atune.frontends.api.blocking import in_time
from atune.frontends.api.cached_tune import CachedWork
from atune.frontends.api.tuner import discover
from atune.frontends.decorator.options import Options, as_space, check_hints, refuse_clash
from atune.model.artifact import KernelParam
from atune.model.candidate import COMPILE_FLAGS, DYNAMIC, PASS_CONFIGS, RESERVED, Config, describe_config, typed_text
from atune.model.device import Target, parse_target
from atune.model.settings import CompileSettings
from atune.model.space import Space
from atune.workers.storage.result_key import same_problem
from atune.workload.fingerprint import function_of, launch_hints
from atune.workload.workload import Workload, not_taken

PROBES = 16
"""Configurations that are tried for what is asked of a kernel before its tuning."""
_PLAIN = frozenset({int, float, str, bool, NoneType, bytes})


class Arguments:
    """A call's arguments by name. `given`: the caller's arguments in the signature's order, with extra ones last."""

    __slots__ = ("args", "given", "kwargs", "values")

    def __init__(self, kernel: TunableKernel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        parameters = kernel.signature.parameters
        known = {n: v for n, v in kwargs.items() if n in parameters or kernel.takes_any}
        unknown = {n: v for n, v in kwargs.items() if n not in known}
        bound = kernel.signature.bind_partial(*args, **known).arguments
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

    def ask(self, option: str, function: Callable[..., Any]) -> Any:
        """Call the user's `function`, which `option` gives, with the caller's arguments as they were written.

        Raises `UsageError` if it takes others.
        """
        with suppress(ValueError):  # a function whose signature Python does not know
            try:
                inspect.signature(function).bind(*self.args, **self.kwargs)
            except TypeError as error:
                raise UsageError(f"{option}: its function must take a call as it is written: {error}") from error
        return function(*self.args, **self.kwargs)


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
    for name, value in itertools.chain(enumerate(args), sorted(kwargs.items()) if kwargs else ()):
        kind = type(value)
        if kind is tensor:
            parts += (name, value.dtype, value.shape, value.stride())
        elif kind in _PLAIN:
            parts += (name, kind, None if name in at_run_time else value or repr(value))  # 0.0 is not -0.0
        else:
            parts += (name, describe(value))
    return tuple(parts)


Entry = Callable[..., Any]
"""The function that serves calls of one form. It takes the call's ``args`` and ``kwargs``."""


def launcher(kernel: Any, names: Sequence[str], signature: inspect.Signature, args: tuple[Any, ...]) -> Entry:
    """Return a function that calls `kernel` with the tensors of a call of the same form."""
    loader = importlib.import_module("atune.stages.measure.loader")
    run = loader.without_gradients(kernel.torch_function if hasattr(kernel, "torch_function") else kernel)
    places = {name: i for i, name in enumerate(signature.parameters) if i < len(args)}
    order = [(places.get(name), name, signature.parameters[name].default) for name in names]
    return lambda args, kwargs: run(*[kwargs.get(n, value) if i is None else args[i] for i, n, value in order])


class TunableKernel:
    """A kernel function: what is known of it before a call."""

    def __init__(self, kernel: Any) -> None:
        self.frontend = importlib.import_module("atune.stages.frontend.frontend")
        self.is_jit: bool = self.frontend.is_jit(kernel)
        function = function_of(kernel)
        self.kernel = kernel
        self.__name__: str = getattr(function, "__name__", "kernel")
        self.signature = inspect.signature(function)
        if next(iter(self.signature.parameters), "") == "self":
            raise UsageError(f"{self.__name__} is a method: put @atune.autotune above a function")
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())
        self.launch_hints = launch_hints(kernel)
        self._eager: bool | None = None if self.is_jit else False

    def data(self, value: Any, where: str) -> Any:
        """Return an argument as data. Raises `UsageError`, naming `where`, for other things."""
        return self.frontend.encode(value, where)

    def is_eager(self, given: Arguments, probes: Sequence[Config]) -> bool:
        """Tell whether a call runs the kernel; a lazy one is returned."""
        if self._eager is None:
            self._eager = self.frontend.is_eager(self.kernel, given.values, probes)
        return self._eager

    def means(self, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        """Tell whether arguments as data, which may leave defaults out, are these `arguments`."""
        left = ((n, p.default) for n, p in self.signature.parameters.items() if n in arguments and n not in given)
        defaults = {name: self.data(value, name) for name, value in left if value is not inspect.Parameter.empty}
        return same_problem({**defaults, **given}, arguments)

    def check_names(self, names: Iterable[str], more: Iterable[str] = ()) -> None:
        """Raise `SpaceError` if a name of an option is no argument of the kernel, and none of `more`."""
        known = dict.fromkeys([*self.signature.parameters, *more])
        unknown = sorted(set(names) - known.keys() - self.launch_hints)
        if unknown and not self.takes_any:
            raise SpaceError(f"{self.__name__} {not_taken(unknown[0], known)}")


class Call:
    """One analysed call: the work to tune for it, and its kernel.

    With tunable arguments of the caller's own (`explicit`), nothing is tuned, and the analysis ends there. Those that
    `do_not_specialize` names are no more than what a signature asks for, and are tuned.
    """

    def __init__(
        self, owner: TunableKernel, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.owner, self.options, stage = owner, options, owner.frontend
        self.hints = {
            name: value(self.target.arch or self.target.kind) if inspect.isfunction(value) else value
            for name, value in options.hints.items()
        }
        check_hints(self.hints)
        self.given = Arguments(owner, args, kwargs)
        self.space = self._space()
        names = set(self.space.axes) or {name for config in self.space.points({}).given() for name in config}
        refuse_clash(names - RESERVED, self.hints)
        self.tunables = frozenset(names - RESERVED - owner.launch_hints)
        hints = {name: value for name, value in self.hints.items() if name not in RESERVED}
        owner.check_names(self.tunables | hints.keys())
        self.explicit = sorted(self.tunables & self.given.given.keys() - options.leave_out)
        self.eager = owner.is_eager(self.given, self._probes())
        if not self.eager:
            self._refuse_unknown(owner.signature.parameters, "")
        self.names = stage.tensor_names(owner.kernel) if self.eager else ()
        if self.explicit:
            self.arguments = self.written = {**({} if owner.is_jit else hints), **self.given.given}
            return
        self.tensors = {n: self.given.values[n] for n in self.names if n in self.given.values}
        for name, tensor in self.tensors.items():
            refuse(f"{owner.__name__}: argument {name!r}", tensor)
            if not (hasattr(tensor, "stride") or isinstance(tensor, Number)):
                raise UsageError(f"{owner.__name__}: {name} must be a tensor, got {type_of(tensor)}")
        plain = {n: v for n, v in self.given.values.items() if n not in self.names and n not in self.tunables} | hints
        self.arguments, self.written, sizes = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        """The arguments as data, and as the kernel gets them, `tagged`."""
        self._take(plain)
        if self.eager:
            sizes = stage.eager_dimensions(owner.kernel, self.tensors, plain, self._probes())
            self._take(sizes)
        variadic = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        needed = [n for n, p in owner.signature.parameters.items() if p.default is p.empty and p.kind not in variadic]
        if lacking := [repr(name) for name in needed if name not in {*self.names, *self.arguments, *self.tunables}]:
            raise TypeError(f"{owner.__name__} lacks the argument{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
        self._symbols_and_inputs(sizes)
        self.key = self._key()
        counting = self.written if callable(options.key) else {n: v for n, v in self.written.items() if n in self.key}
        self.key_text = typed_text(self.key, counting)
        self.problem_text = typed_text(self.problem, self.written)
        self.launch: Call = self
        """The call that its winner is for; it has other arguments under `tune_on`."""

    def _space(self) -> Space:
        """Return the call's space. A function for the space gets the caller's own arguments. Raises `SpaceError`."""
        space = self.options.space
        if not isinstance(space, Space):
            space = copy.copy(as_space(self.given.ask("space", space), self.options.where))
            space.of_call = True
        return space

    def admits(self, config: Config) -> bool:
        """Tell whether the space has `config` for the call's sizes. The default need not be listed, only allowed.

        Raises `SpaceError` if a function of the space raises.
        """
        try:
            return in_time(lambda: self.workload.admits(config))
        except SpaceError as error:
            raise SpaceError(f"{self.owner.__name__} for {describe_config(self.problem)}: {error}") from None

    def _key(self) -> Any:
        """Return what the tuning is remembered under, as data."""
        key, leave_out, problem = self.options.key, self.options.leave_out, self.problem
        hints = {name: value for name, value in problem.items() if name in self.hints}
        if callable(key):
            return {"key": self.owner.frontend.encode(self.given.ask("key", key), "what key returned"), **hints}
        unknown = [("key", name) for name in key or () if name not in problem]
        unknown += [("do_not_specialize", name) for name in sorted(leave_out - problem.keys() - self.tunables)]
        for option, name in unknown:
            raise UsageError(f"{option}: there is no argument {name!r}; there is {', '.join(problem)}")
        return {name: problem[name] for name in key or problem if name not in leave_out} | hints

    def _take(self, values: Mapping[str, Any]) -> None:
        """Add arguments. A default that no call gave and that is no data, such as infinity, is left to the kernel."""
        for name, value in values.items():
            left = name in self.owner.signature.parameters and name not in {*self.given.given, *self.hints}
            if left and isinstance(value, float) and not math.isfinite(value):
                continue  # text stands for it in the drop-in
            with suppress(*((UsageError,) if left else ())):
                self.arguments[name] = self._data(name, value)
                self.written[name] = self._written(name, value)

    def _written(self, name: str, value: Any) -> Any:
        """Return a value as the kernel gets it; its plain form is the data for it."""
        return self.owner.frontend.tagged(value)

    def _data(self, name: str, value: Any) -> Any:
        return self.owner.data(value, f"{self.owner.__name__}: argument {name!r}")

    def _probes(self) -> list[Config]:
        """Return configurations for tracing before the problem is known: the defaults, then those of the space."""
        axes = self.space.axes
        if not axes:
            return [{}, *itertools.islice(self.space.points({}).given(), PROBES)]
        fixed = {name: values for name, values in axes.items() if not callable(values)}
        return [{}, *({n: v[i % len(v)] for n, v in fixed.items()} for i in range(4))]

    def _refuse_unknown(self, known: Container[str], more: str) -> None:
        unknown = sorted(name for name in self.given.given if name not in known)
        if unknown and not self.owner.takes_any:
            takes = f"it takes {', '.join(self.owner.signature.parameters)}{more}"
            raise TypeError(f"{self.owner.__name__} takes no argument {unknown[0]!r}; {takes}")

    def _symbols_and_inputs(self, sizes: Iterable[str]) -> None:
        """Find the symbolic dimensions, and the sizes and inputs to tune with. `sizes`: names of the others."""
        options, stage = self.options, self.owner.frontend
        self.inputs = options.inputs
        symbols: dict[str, int] = {}
        if self.eager or any(isinstance(v, dict) and DYNAMIC in v for v in self.arguments.values()):
            params = self._params = stage.parameters_of(self.kernel, self.written, self._admitted())
            tensors = [self.tensors.get(n) for n in self.names]
            wanted, known = stage.symbols_of(params), {**options.symbols}
            if self.eager:
                names, more = {*self.owner.signature.parameters, *sizes}, ", ".join(sorted({*sizes, *wanted}))
                self._refuse_unknown(names | wanted, more and f", and by name the dimensions {more}")
                for name in wanted & self.arguments.keys() - names:  # one kernel is for all sizes
                    size, _ = self.arguments.pop(name), self.written.pop(name)
                    if not isinstance(size, (int, dict)):
                        raise UsageError(f"{self.owner.__name__}: {name} must be a whole number, got {size!r}")
                    known |= {name: size} if isinstance(size, int) else {}
            known |= stage.bound_symbols(params, tensors)
            symbols = {name: known[name] for name in sorted(wanted & known.keys())}
            scalars = [t for p, t in zip(params, tensors, strict=False) if p.shape is None]
            if self.inputs is None and (wanted or any(p.shape is None for p in params)):
                self.inputs = self._drawn(params, symbols, scalars)
        if self.inputs == "call":
            if not self.tensors:
                raise UsageError("inputs='call' tunes on the call's tensors, but this call has none: give inputs")
            self.inputs = stage.CallInputs(list(self.tensors.values()))
        self.problem = {**self.arguments, **symbols}

    def _admitted(self) -> Iterator[Config]:
        """Yield the configurations that the constraints admit, as they were written. Raises `SpaceError`."""
        points = self.space.points(self.written)
        found = filter(points.admits, points.given())
        while (config := in_time(lambda: next(found, None))) is not None:
            yield config

    def refuse_misfit(self) -> None:
        """Raise what an eager kernel's call would raise after its tuning, if no configuration of a few can take it."""
        stage, tensors = self.owner.frontend, [self.tensors.get(name) for name in self.names]
        if (error := stage.misfit(self._params, tensors)) is not None:
            some = itertools.islice(self._admitted(), 1, PROBES)
            others = (stage.parameters_of(self.kernel, self.written, [config]) for config in some)
            if not any(each and stage.misfit(each, tensors) is None for each in others):
                raise error

    def _drawn(self, params: Sequence[KernelParam], symbols: Mapping[str, int], scalars: Sequence[Any]) -> Any:
        """Return inputs to draw. Raises `UsageError` where a size or a number is unknown."""
        return self.owner.frontend.drawn_inputs(params, symbols, scalars)

    def as_given(self, config: Config) -> Config:
        """Return a configuration of the space as it was written."""
        return self.workload.as_written(config)

    @functools.cached_property
    def asked_target(self) -> str:
        """The target as it was given; ``auto`` and ``cuda`` leave the rest to the devices."""
        return self.options.target or str(self.owner.frontend.target_text(getattr(self.owner.kernel, "target", None)))

    @functools.cached_property
    def target(self) -> Target:
        """The target that is compiled for. Devices are asked for only where they decide."""
        found = parse_target(self.asked_target)
        if found is not None and (found.kind != "cuda" or found.arch):
            return found
        return discover(self.asked_target, self.options.devices)[0]

    @functools.cached_property
    def kernel(self) -> Any:
        owner = self.owner
        as_it_is = self.explicit or not owner.is_jit
        return owner.kernel if as_it_is else owner.frontend.jit_function(owner.kernel, self.eager)

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
        found = Workload(
            self.kernel,
            self.space,
            arguments=self.written,
            inputs=self.inputs,
            pass_configs=self.hints.get(PASS_CONFIGS),
            **self.options.workload,
        )
        found.key, found.like_tilelang = self.key, self.options.jit is not None
        return found

    @functools.cached_property
    def work(self) -> CachedWork:
        where = {"target": self.asked_target, "devices": self.options.devices}
        return CachedWork(self.workload, **{**self.options.run, "compile": self.compile, **where})

"""A kernel function, a call as the user wrote it, and the tuning for the call: workload, plan and key."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Number
from typing import Any

import msgspec

from atune.bundle.launch import refuse
from atune.errors import SpaceError, UsageError, type_of
from atune.frontends.blocking import in_time
from atune.frontends.cached_tune import CachedWork
from atune.frontends.decorator_options import Options, as_space, check_hints, refuse_clash
from atune.frontends.tuner import RunPlan, find_target
from atune.model.artifact import KernelParam
from atune.model.candidate import COMPILE_FLAGS, DYNAMIC, PASS_CONFIGS, RESERVED, Config, describe_config, typed_text
from atune.model.device import Target, parse_target
from atune.model.space import Space
from atune.workers.result_key import same_problem
from atune.workload.fingerprint import function_of, launch_hints
from atune.workload.workload import Workload, not_taken

PROBES = 16
"""Largest number of configurations to trace before a tuning, to find the kernel's parameters."""

NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
"""The kinds of the parameters that a call can pass by name."""

Entry = Callable[..., Any]
"""A function that serves all calls of the same form. The function takes a call's ``args`` and ``kwargs``."""


def launcher(kernel: Any, names: Sequence[str], signature: inspect.Signature, args: tuple[Any, ...]) -> Entry:
    """Return an `Entry` that takes the tensors from a call's arguments and calls `kernel` with these tensors."""
    loader = importlib.import_module("atune.stages.loader")
    run = loader.without_gradients(kernel.torch_function if hasattr(kernel, "torch_function") else kernel)
    places = {name: i for i, name in enumerate(signature.parameters) if i < len(args)}
    order = [(places.get(name), name, signature.parameters[name].default) for name in names]
    return lambda args, kwargs: run(*[kwargs.get(n, value) if i is None else args[i] for i, n, value in order])


class Encoder:
    """Encodes a call's arguments for keys, journals and the kernel. This encoder takes only plain data."""

    def __init__(self, frontend: Any) -> None:
        self.frontend = frontend
        """The module `atune.stages.frontend`, which imports tilelang."""

    def data(self, value: Any, where: str) -> Any:
        """Return a value as plain data. If this is impossible, raise `UsageError` with `where` in the message."""
        return self.frontend.encode(value, where)

    def written(self, name: str, value: Any) -> Any:
        """Return a value in the form that is passed to the kernel."""
        return self.frontend.tagged(value)

    def space(self, call: Call, given: Any) -> Space:
        """Return the space of a call. The function `given` makes the space from the call's arguments."""
        space = copy.copy(as_space(call.ask("space", given), call.options.where))
        space.of_call = True
        return space

    def given(self, config: Config) -> Config:
        """Return a configuration with the values that the user wrote."""
        return config

    def kernel(self, kernel: Any) -> Any:
        """Return a kernel that takes values in the form that `written` returns."""
        return kernel


class TunableKernel:
    """A kernel function, and the facts about the function that do not depend on a call."""

    encoder: type[Encoder] = Encoder

    def __init__(self, kernel: Any) -> None:
        self.frontend = importlib.import_module("atune.stages.frontend")
        self.is_jit: bool = self.frontend.is_jit(kernel)
        function = function_of(kernel)
        self.kernel = kernel
        self.__name__: str = getattr(function, "__name__", "kernel")
        self.signature = inspect.signature(function)
        if next(iter(self.signature.parameters), "") == "self":
            raise UsageError(f"{self.__name__} is a method: put @atune.autotune above a function")
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())
        self.launch_hints = launch_hints(kernel)
        self.data = self.encoder(self.frontend).data
        self._eager: bool | None = None if self.is_jit else False

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two dictionaries: the arguments that a call passes, and all arguments in the order of the signature.

        Unknown arguments come last. Raises `TypeError` like Python, and `UsageError` if the signature has ``*args``.
        """
        parameters = self.signature.parameters
        known = {n: v for n, v in kwargs.items() if n in parameters or self.takes_any}
        unknown = {n: v for n, v in kwargs.items() if n not in known}
        bound = self.signature.bind_partial(*args, **known).arguments
        for name in list(bound):
            if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise UsageError(f"atune cannot tune a kernel that takes *{name}: give each parameter a name")
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(bound.pop(name))
        given = {**bound, **unknown}
        everything = {n: p.default for n, p in parameters.items() if p.default is not p.empty} | given
        return given, {n: everything[n] for n in (*parameters, *everything) if n in everything}

    def is_eager(self, values: Mapping[str, Any], probes: Sequence[Config]) -> bool:
        """Tell whether a call with these arguments runs the kernel. Otherwise the call returns the compiled kernel."""
        if self._eager is None:
            self._eager = self.frontend.is_eager(self.kernel, values, probes)
        return self._eager

    def means(self, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        """Tell whether `given`, plain data that may leave out defaults, means the same arguments as `arguments`."""
        left = ((n, p.default) for n, p in self.signature.parameters.items() if n in arguments and n not in given)
        defaults = {name: self.data(value, name) for name, value in left if value is not inspect.Parameter.empty}
        return same_problem({**defaults, **given}, arguments)

    def check_names(self, names: Iterable[str], more: Iterable[str] = ()) -> None:
        """Raise `SpaceError` if one of `names` is neither an argument of the kernel nor in `more`."""
        known = dict.fromkeys([*self.signature.parameters, *more])
        unknown = sorted(set(names) - known.keys() - self.launch_hints)
        if unknown and not self.takes_any:
            raise SpaceError(f"{self.__name__} {not_taken(unknown[0], known)}")


class Call:
    """A call as the user wrote it: the call's arguments, its space, and whether the call runs the kernel.

    A call that passes tunable arguments (`explicit`) is not tuned. If `do_not_specialize` names a tunable argument, the
    call passes the argument only because the signature requires it, so the argument is tuned nevertheless.
    """

    def __init__(
        self, owner: TunableKernel, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.owner, self.options, self.encoder = owner, options, owner.encoder(owner.frontend)
        self.hints = {
            name: value(self.target.arch or self.target.kind) if inspect.isfunction(value) else value
            for name, value in options.hints.items()
        }
        check_hints(self.hints)
        self.args, self.kwargs = args, dict(kwargs)
        self.given, self.values = owner.bound(args, kwargs)
        """Two dictionaries: the arguments that the call passes, and all arguments including the kernel's defaults."""
        fixed = isinstance(options.space, Space)
        self.space: Space = options.space if fixed else self.encoder.space(self, options.space)
        names = set(self.space.axes) or {name for config in self.space.points({}).given() for name in config}
        refuse_clash(names - RESERVED, self.hints)
        self.tunables = frozenset(names - RESERVED - owner.launch_hints)
        self.own_hints = {name: value for name, value in self.hints.items() if name not in RESERVED}
        """The hints that set arguments."""
        owner.check_names(self.tunables | self.own_hints.keys())
        self.explicit = sorted(self.tunables & self.given.keys() - options.leave_out)
        self.eager = owner.is_eager(self.values, self.probes())
        if not self.eager:
            self.refuse_unknown(owner.signature.parameters, "")
        self.names = owner.frontend.tensor_names(owner.kernel) if self.eager else ()
        """Names of the parameters that each call passes at run time."""

    def written(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to pass to the user's functions, as the user wrote them.

        If tilelang's tuner leaves arguments out of the key, return the other arguments as keywords, with defaults.
        """
        if not (self.options.like_tilelang and self.options.leave_out):
            return self.args, self.kwargs
        return (), {name: value for name, value in self.values.items() if name not in self.options.leave_out}

    def ask(self, option: str, function: Callable[..., Any]) -> Any:
        """Call the `function` that the user gave as `option`, with the arguments as the user wrote them.

        If `function` names an argument that the call leaves out, it gets the hint or the kernel's default, except in
        tilelang's tuner. Raises `UsageError` if `function` does not take these arguments.
        """
        args, kwargs = self.written()
        with suppress(ValueError):  # Python does not know the function's signature
            signature = inspect.signature(function)
            try:
                if not self.options.like_tilelang:
                    bound, left = signature.bind_partial(*args, **kwargs).arguments, {**self.values, **self.hints}
                    named = {n for n, p in signature.parameters.items() if p.kind in NAMED} - {*bound, *self.given}
                    kwargs = {**kwargs, **{name: left[name] for name in named & left.keys()}}
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise UsageError(f"{option}: the function must take the call's arguments: {error}") from error
        return function(*args, **kwargs)

    def sets_all(self, config: Config) -> bool:
        """Tell whether each tunable argument has a value in `config`, or a default other than None."""
        return all(name in config or self.values.get(name) is not None for name in self.tunables)

    def probes(self) -> list[Config]:
        """Return configurations to trace before the problem is known: some points of the space, and the defaults."""
        fixed = {name: values for name, values in self.space.axes.items() if not callable(values)}
        some = [{n: v[i % len(v)] for n, v in fixed.items()} for i in range(4)]
        if not self.space.axes:
            most = None if self.options.like_tilelang else PROBES
            some = [*map(self.encoder.given, itertools.islice(self.space.points({}).given(), most))]
        return [{}, *some] if self.sets_all({}) else some  # tilelang may crash if an argument is None

    def refuse_unknown(self, known: Container[str], more: str) -> None:
        """Raise `TypeError` if the call passes an argument that is not in `known`."""
        unknown = sorted(name for name in self.given if name not in known)
        if unknown and not self.owner.takes_any:
            takes = f"it takes {', '.join(self.owner.signature.parameters)}{more}"
            raise TypeError(f"{self.owner.__name__} takes no argument {unknown[0]!r}; {takes}")

    @functools.cached_property
    def asked_target(self) -> str:
        """The target as text. If the text is ``auto`` or ``cuda``, the devices determine the architecture."""
        return self.options.target or str(self.owner.frontend.target_text(getattr(self.owner.kernel, "target", None)))

    @functools.cached_property
    def target(self) -> Target:
        """The target to compile for. Devices are queried only if the target depends on them."""
        target = parse_target(self.asked_target)
        if target is not None and (target.kind != "cuda" or target.arch):
            return target
        return find_target(self.asked_target, self.options.plan.devices)[0]

    @functools.cached_property
    def plan(self) -> RunPlan:
        """The plan of the call's tuning, including the call's target and compiler flags."""
        plan = replace(self.options.plan, target=self.asked_target)
        flags = self.hints.get(COMPILE_FLAGS, getattr(self.owner.kernel, "compile_flags", None))
        if not flags or (settings := plan.settings.compile).flags is not None:
            return plan
        flags = tuple(flags.split() if isinstance(flags, str) else flags)
        return plan.with_settings(compile=msgspec.structs.replace(settings, flags=flags))

    @functools.cached_property
    def tuned(self) -> TunedCall:
        return TunedCall(self)


class TunedCall:
    """The tuning for a call: the tuning's workload and plan, and the key under which the winner is remembered.

    `launch`: the `TunedCall` with the call's own arguments, if `tune_on` gave this `TunedCall` other arguments. Raises
    `UsageError` if the call leaves nothing to tune.
    """

    def __init__(self, call: Call, launch: TunedCall | None = None) -> None:
        if call.explicit:
            given = "given" if launch is None else "given by tune_on"
            raise UsageError(f"{call.explicit[0]!r} is {given}, so nothing is tuned; leave this argument to the space")
        self.call, self.owner, self.options, self.launch = call, call.owner, call.options, launch or self
        owner, options = self.owner, self.options
        self.space = call.space
        self.tensors = {n: call.values[n] for n in call.names if n in call.values}
        for name, tensor in self.tensors.items():
            refuse(f"{owner.__name__}: argument {name!r}", tensor)
            if not (hasattr(tensor, "stride") or isinstance(tensor, Number)):
                raise UsageError(f"{owner.__name__}: {name} must be a tensor, got {type_of(tensor)}")
        if call.eager:  # a tensor cannot be the size of a dimension
            sizes_by_name = {name for name, value in call.given.items() if not hasattr(value, "stride")}
            call.refuse_unknown(owner.signature.parameters.keys() | sizes_by_name, "")
        plain = {n: v for n, v in call.values.items() if n not in call.names and n not in call.tunables}
        plain |= call.own_hints
        self.arguments, self.written, sizes = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        """The arguments as plain data, and the arguments in the form that is passed to the kernel."""
        self._take(plain)
        if call.eager:
            sizes = owner.frontend.eager_dimensions(owner.kernel, self.tensors, plain, call.probes())
            self._take(sizes)
            self._check_sizes(sizes.keys() & call.given.keys())
        variadic = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        needed = [n for n, p in owner.signature.parameters.items() if p.default is p.empty and p.kind not in variadic]
        if lacking := [repr(name) for name in needed if name not in {*call.names, *self.arguments, *call.tunables}]:
            raise TypeError(f"{owner.__name__} lacks the argument{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
        self.inputs = options.inputs
        self.problem = {**self.arguments, **self._symbols_and_inputs(sizes)}
        self.key = self._key()
        counting = self.written if callable(options.key) else {n: v for n, v in self.written.items() if n in self.key}
        self.key_text = typed_text(self.key, counting)
        self.problem_text = typed_text(self.problem, self.written)

    def admits(self, config: Config) -> bool:
        """Tell whether `config` is in the space for the call's sizes, or is a default that the constraints allow.

        Raises `SpaceError` if a function of the space raises an error.
        """
        try:
            return in_time(lambda: self.workload.admits(config))
        except SpaceError as error:
            raise SpaceError(f"{self.owner.__name__} for {describe_config(self.problem)}: {error}") from None

    def as_given(self, config: Config) -> Config:
        """Return a configuration of the space with the values that the user wrote."""
        return self.call.encoder.given(self.workload.as_written(config))

    def _key(self) -> Any:
        """Return the key under which the winner is remembered, as plain data."""
        key, leave_out, problem = self.options.key, self.options.leave_out, self.problem
        hints = {name: value for name, value in problem.items() if name in self.call.hints}
        if callable(key):
            return {"key": self.owner.frontend.encode(self.call.ask("key", key), "key's return value"), **hints}
        unknown = [("key", name) for name in key or () if name not in problem]
        if not self.options.like_tilelang:  # tilelang's tuner ignores unknown names
            lacking = leave_out - problem.keys() - self.call.tunables
            unknown += [("do_not_specialize", name) for name in sorted(lacking)]
        for option, name in unknown:
            raise UsageError(f"{option}: unknown argument {name!r}; the call has {', '.join(problem)}")
        return {name: problem[name] for name in key or problem if name not in leave_out} | hints

    def _take(self, values: Mapping[str, Any]) -> None:
        """Add arguments. If a default is not plain data (for example infinity), leave the argument to the kernel."""
        for name, value in values.items():
            left = name in self.owner.signature.parameters and name not in {*self.call.given, *self.call.hints}
            if left and isinstance(value, float) and not math.isfinite(value):
                continue  # the drop-in would encode it as text
            with suppress(*((UsageError,) if left else ())):
                self.arguments[name] = self.owner.data(value, f"{self.owner.__name__}: argument {name!r}")
                self.written[name] = self.call.encoder.written(name, value)

    def _check_sizes(self, names: Iterable[str]) -> None:
        """Raise `UsageError` if the size of a dimension is neither a whole number nor a symbolic variable."""
        for name in sorted(names):
            if isinstance(size := self.arguments[name], bool) or not isinstance(size, (int, dict)):
                raise UsageError(f"{self.owner.__name__}: {name} must be a whole number, got {size!r}")

    def _symbols_and_inputs(self, sizes: Iterable[str]) -> dict[str, int]:
        """Return the sizes of symbolic dimensions, and choose the tuning's inputs. `sizes`: names of dimensions."""
        call, options, stage = self.call, self.options, self.owner.frontend
        self.params: Sequence[KernelParam] = ()
        """The kernel's parameters, or an empty sequence if no parameter must be known before the tuning."""
        symbols: dict[str, int] = {}
        if call.eager or any(isinstance(v, dict) and DYNAMIC in v for v in self.arguments.values()):
            params = self.params = stage.parameters_of(self.kernel, self.written, self._admitted())
            tensors = [self.tensors.get(n) for n in call.names]
            wanted, known = stage.symbols_of(params), {**options.symbols}
            if call.eager:
                names, more = {*self.owner.signature.parameters, *sizes}, ", ".join(sorted({*sizes, *wanted}))
                call.refuse_unknown(names | wanted, more and f", and the dimensions {more} by name")
                self._check_sizes(given := wanted & self.arguments.keys() - names)
                for name in given:  # the kernel serves all sizes
                    size, _ = self.arguments.pop(name), self.written.pop(name)
                    known |= {name: size} if isinstance(size, int) else {}
            known |= stage.bound_symbols(params, tensors)
            symbols = {name: known[name] for name in sorted(wanted & known.keys())}
            scalars = [t for p, t in zip(params, tensors, strict=False) if p.shape is None]
            if self.inputs is None and (wanted or any(p.shape is None for p in params)):
                with suppress(*((UsageError,) if options.like_tilelang else ())):  # the run reports what is missing
                    self.inputs = stage.drawn_inputs(params, symbols, scalars)
        if self.inputs == "call":
            if not self.tensors:
                raise UsageError("inputs='call' tunes on the call's tensors, but this call has none: give inputs")
            self.inputs = stage.CallInputs(list(self.tensors.values()))
        return symbols

    def _admitted(self) -> Iterator[Config]:
        """Yield each configuration that the constraints admit, as the user wrote it. Raises `SpaceError`."""
        points = self.space.points(self.written)
        admitted = filter(points.admits, points.given())
        while (config := in_time(lambda: next(admitted, None))) is not None:
            yield config

    def refuse_misfit(self) -> None:
        """Before tuning, raise an error if the call's tensors fit none of the first few configurations."""
        stage, tensors = self.owner.frontend, [self.tensors.get(name) for name in self.call.names]
        if (error := stage.misfit(self.params, tensors)) is not None:
            some = itertools.islice(self._admitted(), 1, PROBES)
            others = (stage.parameters_of(self.kernel, self.written, [config]) for config in some)
            if not any(each and stage.misfit(each, tensors) is None for each in others):
                raise error

    @functools.cached_property
    def kernel(self) -> Any:
        """The workload's kernel function. The function takes arguments in the form that `Encoder.written` returns."""
        kernel, owner = self.owner.kernel, self.owner
        return self.call.encoder.kernel(
            owner.frontend.jit_function(kernel, self.call.eager) if owner.is_jit else kernel
        )

    @functools.cached_property
    def workload(self) -> Workload:
        workload = Workload(
            self.kernel,
            self.space,
            arguments=self.written,
            inputs=self.inputs,
            pass_configs=self.call.hints.get(PASS_CONFIGS),
            **self.options.workload,
        )
        workload.key, workload.like_tilelang = self.key, self.options.like_tilelang
        return workload

    @functools.cached_property
    def work(self) -> CachedWork:
        """The workload, its plan, and its key in the result cache."""
        return CachedWork(self.workload, self.call.plan)

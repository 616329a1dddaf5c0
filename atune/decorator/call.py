"""Analysis of one call of a kernel under `@atune.autotune`: its workload and its key."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from atune.api.cached_tune import Concurrent, Work
from atune.decorator.arguments import Arguments, KeyRule, text_of
from atune.decorator.files import Files
from atune.decorator.presets import copy_of, resolved
from atune.errors import SpaceError, UsageError
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, RESERVED, Config
from atune.model.settings import CompileSettings
from atune.model.space import Space
from atune.storage.result_cache import ResultCache
from atune.workload.workload import Workload

if TYPE_CHECKING:
    from atune.decorator.autotuned import Autotuned

OnMiss = Literal["tune", "default", "error"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of `@atune.autotune`."""

    space: Any
    where: tuple[Callable[..., Any], ...]
    rule: KeyRule
    hints: Mapping[str, Any]
    symbols: Mapping[str, int]
    inputs: Any
    tune_on: Callable[..., Any] | None
    workload: Mapping[str, Any]
    """Options of `Workload`."""
    run: Mapping[str, Any]
    """Options of `tune`."""
    target: str | None
    devices: tuple[str, ...]
    cache: ResultCache | None
    concurrent: Concurrent
    on_miss: OnMiss
    shipped: tuple[str, ...]
    files: Files = Files()


class Call:
    """One analysed call: the work to tune for it, and its kernel."""

    def __init__(self, owner: Autotuned, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.owner, options = owner, owner.options
        stage = owner.frontend
        self.given = Arguments(owner.signature, args, kwargs, extra=owner.is_jit)
        space = owner.space_for(args, kwargs)
        tunables = tunables_of(space)
        if clash := sorted(tunables & options.hints.keys()):
            raise SpaceError(f"{clash[0]!r} is a hint and an axis of the space; give it in one place")
        owner.check_names(tunables | (options.hints.keys() - RESERVED))
        self.explicit = sorted(tunables & self.given.given.keys())
        self.eager = owner.is_eager(self.given, space)
        if not self.eager and (unknown := sorted(self.given.given.keys() - owner.parameters)):
            raise TypeError(
                f"{owner.__name__} takes no argument {unknown[0]!r}; it takes {', '.join(owner.signature.parameters)}"
            )
        if self.explicit:
            return
        names = stage.tensor_names(owner.kernel) if self.eager else ()
        self.tensors = {n: self.given.given[n] for n in names if n in self.given.given}
        plain = {n: v for n, v in self.given.values.items() if n not in names and n not in tunables}
        hints = resolved(options.hints, owner.where_to_run[0])
        self.hints = {n: v for n, v in hints.items() if n in RESERVED}
        plain.update({n: v for n, v in hints.items() if n not in RESERVED})
        self.arguments = {n: stage.encode(v, f"{owner.__name__}: argument {n!r}") for n, v in plain.items()}
        if self.eager:
            sizes = stage.eager_dimensions(owner.kernel, self.tensors, plain, probes(space))
            self.arguments.update({n: stage.encode(v, f"{owner.__name__}: {n!r}") for n, v in sizes.items()})
            if unknown := sorted(self.given.given.keys() - owner.parameters - sizes.keys()):
                takes = (
                    f"it takes {', '.join(owner.signature.parameters)}, and by name the dimensions {', '.join(sizes)}"
                )
                raise TypeError(f"{owner.__name__} takes no argument {unknown[0]!r}; {takes}")
        if missing := owner.missing(self.arguments, tunables, names):
            raise TypeError(f"{owner.__name__} lacks the argument {missing[0]!r}")
        self.space, self.tunables, self.names = space, tunables, names
        self._symbols_and_inputs()
        self.key = options.rule.apply(self.problem, self.given, stage.encode)
        self.key_text = text_of(self.key)

    def _symbols_and_inputs(self) -> None:
        """Find the symbolic dimensions, and the sizes and inputs to tune with."""
        owner, options = self.owner, self.owner.options
        stage = owner.frontend
        self.out_idx = options.workload.get("out_idx")
        self.inputs = options.inputs
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
                supply = options.workload.get("supply")
                self.inputs = stage.drawn_inputs(params, symbols, supply, scalars)
        if self.inputs == "call":
            if not self.tensors:
                raise UsageError("inputs='call' tunes on the call's tensors, but this call has none: give inputs")
            self.inputs = stage.call_inputs(list(self.tensors.values()))
        self.problem = {**self.arguments, **symbols}

    @functools.cached_property
    def kernel(self) -> Any:
        owner = self.owner
        return owner.frontend.jit_function(owner.kernel, self.eager) if owner.is_jit else owner.kernel

    @functools.cached_property
    def compile(self) -> CompileSettings:
        settings: CompileSettings = self.owner.options.run["compile"]
        flags = self.hints.get(COMPILE_FLAGS, getattr(self.owner.kernel, "compile_flags", None))
        if flags and settings.flags is None:
            settings = copy_of(settings, flags=tuple(flags.split() if isinstance(flags, str) else flags))
        return settings

    @functools.cached_property
    def work(self) -> Work:
        options = self.owner.options
        given = {name: value for name, value in options.workload.items() if name != "out_idx"}
        workload = Workload(
            self.kernel,
            self.space,
            arguments=self.arguments,
            inputs=self.inputs,
            out_idx=self.out_idx,
            pass_configs=self.hints.get(PASS_CONFIGS),
            **given,
        )
        target, devices = self.owner.target, options.devices
        return Work(
            workload, self.key, **{**options.run, "compile": self.compile, "target": target, "devices": devices}
        )


def tunables_of(space: Space) -> frozenset[str]:
    """Return the kernel's arguments that the space sets."""
    names = set(space.axes) or {name for config in space.walk({}) for name in config}
    return frozenset(names - RESERVED)


def probes(space: Space) -> list[Config]:
    """Return configurations for tracing before the problem is known: the defaults, then those of the space."""
    axes = space.axes
    if not axes:
        return [{}, *itertools.islice(space.walk({}), 16)]
    fixed = {name: values for name, values in axes.items() if not callable(values)}
    return [{}, *({n: v[i % len(v)] for n, v in fixed.items()} for i in range(4))]

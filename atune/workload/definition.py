"""The work to tune: a kernel factory, its space, the problem, inputs and a reference."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from types import CodeType
from typing import Any, Unpack

from atune.errors import ArgumentMissing, NoSuchWorkload, SpaceError, WorkloadError
from atune.model.candidate import (
    COMPILE_FLAGS,
    PASS_CONFIGS,
    RESERVED,
    Config,
    check_reserved,
    config_key,
    normalise,
)
from atune.model.options import checked, complete, documents, refuse_unknown
from atune.model.space import Space
from atune.workload.options import WorkloadOptions, amount
from atune.workload.source_text import parse_module


@documents(WorkloadOptions)
class Workload:
    """A kernel to tune.

    Raises `WorkloadError` or `SpaceError` for arguments that cannot work, such as an axis that the kernel does not
    take. Raises `UsageError`, which is a TypeError too, for an unknown option.

    Parameters
    ----------
    kernel
        A function that returns a TileLang PrimFunc, plain or under `@tilelang.jit`. Its parameters are the problem's
        arguments and the configuration.
    space
        `Space`, or what `Space(...)` takes as its first argument.
    {options}
    """

    def __init__(self, kernel: Callable[..., Any], space: Space | Any, **options: Unpack[WorkloadOptions]) -> None:
        refuse_unknown("Workload", options, ["space", *WorkloadOptions.__annotations__])
        given: WorkloadOptions = complete("Workload", options, WorkloadOptions, WorkloadError)  # type: ignore[assignment]
        if (compiled := is_compiled(kernel)) or not callable(kernel):
            made = "compiled kernel" if compiled else type(kernel).__name__
            called = compiled or made == "PrimFunc"
            got = f"a {made}: do not call the function" if called else reprlib.repr(kernel)
            raise WorkloadError(f"Workload: kernel must be a function that returns a PrimFunc, got {got}")
        if why := tuned_by_calls(kernel):
            raise WorkloadError(f"Workload: the kernel {why}")
        problem = given["arguments"] or {}
        self.supply: str | None = given["supply"]
        self.amounts: dict[str, Any] = {name: given[name] for name in ("flops", "bytes")}
        """`flops` and `bytes` as they were given: numbers, or functions of the arguments."""
        self.flops, self.bytes = (amount(name, each, problem) for name, each in self.amounts.items())
        checked("Workload", {"flops": self.flops, "bytes": self.bytes}, WorkloadOptions, WorkloadError)
        self.kernel = kernel
        self.space = space if isinstance(space, Space) else Space(space)
        self.name: str = given["name"] or str(getattr(function_of(kernel), "__name__", "kernel"))
        self.arguments = self._plain(problem)
        self.key: Any = None
        """What the result is remembered under, as data; None for the problem."""
        self.inputs, self.reference, self.check, self.setup = (
            given["inputs"], given["reference"], given["check"], given["setup"],
        )  # fmt: skip
        self.out_idx = outputs_named(kernel, given["out_idx"])
        """The outputs that the caller or `@tilelang.jit` names; None where neither does."""
        self.kernels_out_idx = given["out_idx"] is None
        """Whether `out_idx` is the kernel's own. After a call, tilelang counts it from the front."""
        self.restore, self.zero = tuple(given["restore"] or ()), tuple(given["zero"] or ())
        self.rtol, self.atol, self.max_mismatched_ratio = given["rtol"], given["atol"], given["max_mismatched_ratio"]
        self.default = None if given["default"] is None else dict(given["default"])
        own = getattr(kernel, "pass_configs", None) or {}
        self.pass_configs: dict[str, Any] = {**own, **(given["pass_configs"] or {})}
        self.source = given["source"]
        check_names(self)

    def _plain(self, problem: Mapping[Any, Any]) -> dict[str, Any]:
        """Return arguments as plain data. Raises `SpaceError` for a value that is none."""
        where = {name: f"Workload {self.name}: argument {name!r}" for name in problem}
        return {normalise(name, where[name]): normalise(value, where[name]) for name, value in problem.items()}

    def at(self, arguments: Mapping[str, Any]) -> Workload:
        """Return this workload for another problem, in which `arguments` replace its own of the same names.

        `flops` and `bytes` that were given as numbers are unknown there. Raises `WorkloadError` for an argument that
        the kernel does not take, and `SpaceError` for one that is no plain data.
        """
        changed = {**self.arguments, **self._plain(arguments)}
        if changed == self.arguments:
            return self
        other = copy.copy(self)
        other.arguments, other.key = changed, None
        amounts = {name: amount(name, each, changed) for name, each in self.amounts.items() if callable(each)}
        checked("Workload", amounts, WorkloadOptions, WorkloadError)
        other.flops, other.bytes = (amounts.get(name) for name in self.amounts)
        check_names(other)
        return other

    def __repr__(self) -> str:
        """Return what made it, without what is drawn or left at its default; none of the user's functions is called."""
        parts = [f"arguments={self.arguments!r}"] if self.arguments else []
        functions = {"inputs": self.inputs, "reference": self.reference, "check": self.check}
        parts += [f"{n}={getattr(f, '__name__', '…')}" for n, f in functions.items() if f is not None]
        return f"Workload({', '.join([self.name, repr(self.space), *parts])})"


def outputs_named(kernel: Any, out_idx: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the outputs that `out_idx` names, else those that `@tilelang.jit` was given; None where nobody says."""
    named = getattr(kernel, "out_idx", None) if out_idx is None else out_idx
    return (named,) if isinstance(named, int) else None if named is None else tuple(named)


def is_compiled(kernel: Any) -> bool:
    """Tell whether `kernel` is a `tilelang.JITKernel`, in place of the function that makes it."""
    return hasattr(type(kernel), "prim_func") and hasattr(type(kernel), "adapter")


def is_autotuned(kernel: Any) -> bool:
    """Tell whether a kernel is under a tuning decorator. Its `workload_for` then returns a problem's workload."""
    return getattr(type(kernel), "is_autotuned", False) is True


def tuned_by_calls(kernel: Any) -> str:
    """Return why a kernel is tuned when it is called, and is no workload's; empty for others."""
    if is_autotuned(kernel):
        return (
            "is under @atune.autotune, which tunes by itself: call it, or give its .kernel, the function under the "
            "decorator"
        )
    if getattr(getattr(kernel, "func", None), "tensor_args", None):
        return "takes tensors (eager style): put @atune.autotune(space=…) above its @tilelang.jit, and call it"
    return ""


def parts_of(workload: Workload) -> list[tuple[str, Any]]:
    parts = [("kernel", workload.kernel), ("inputs", workload.inputs), ("reference", workload.reference)]
    parts += [("check", workload.check), ("setup", workload.setup)]
    parts += [(f"constraint {i}", c) for i, c in enumerate(workload.space.where)]
    return [(label, part) for label, part in parts if part is not None]


def functions_of(workload: Workload) -> list[Any]:
    return [f for _, part in parts_of(workload) if inspect.isfunction(f := function_of(part))]


def check_names(workload: Workload) -> None:
    """Raise `SpaceError` or `WorkloadError` where the kernel does not take an axis, or an argument of the problem.

    Asks no function of the user's: axes that are computed go by their names, and configurations that are computed are
    looked at once they are.
    """
    if (fit := _fit_of(workload)) is not None:
        for number, names in workload.space.names():
            place = "" if number is None else f", config {number}"
            fit.check_known(names, f"Workload {workload.name}{place}")


def check_config(workload: Workload, config: Mapping[str, Any]) -> None:
    """Raise `SpaceError` where the kernel does not take a name of `config`, which need not be of the space."""
    if (fit := _fit_of(workload)) is not None:
        fit.check_known(config, f"Workload {workload.name}")


def _fit_of(workload: Workload) -> Fit | None:
    try:
        return Fit(workload)
    except (TypeError, ValueError):
        return None  # a kernel whose signature Python does not know


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the name that is most like `name`; empty where none is."""
    lowered = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), list(lowered), n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def not_taken(name: str, parameters: Iterable[str]) -> str:
    """Return that a kernel takes no argument `name`, but `parameters`, and what to do."""
    known = list(parameters)
    return f"takes no argument {name!r}; it takes {', '.join(known)}{meant(name, known)}"


class Fit:
    """Checks that configurations fit the kernel's parameters, and finds the default among them."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        parameters = signature_of(workload.kernel).parameters
        self._parameters = parameters
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._required = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        self._fitting: set[tuple[str, ...]] = set()
        """Names of configurations that fit."""
        self._default_keys: dict[tuple[object, ...], str] = {}
        for name in workload.arguments:
            if name not in parameters and not self._takes_any:
                symbolic = "; a symbolic dimension (T.dynamic) has its size from inputs"
                raise NoSuchWorkload(
                    f"Workload {workload.name}: the kernel takes no argument {name!r}; it takes {', '.join(parameters)}"
                    f"{meant(name, parameters) or symbolic}"
                )

    @property
    def names(self) -> set[str]:
        """Names in the configurations that were checked."""
        return {name for names in self._fitting for name in names}

    def problem(self) -> dict[str, Any]:
        """Return the problem's arguments with the kernel's defaults, as far as these are plain data."""
        found, given = dict[str, Any](), self._workload.arguments
        for name, parameter in self._parameters.items():
            value = given.get(name, parameter.default)
            if name not in self.names and value is not parameter.empty:
                with suppress(SpaceError):
                    found[name] = normalise(value, name)
        return {**found, **given}

    def check(self, config: Config, where: str) -> None:
        """Raise `SpaceError`, naming `where`, for a configuration that does not fit the kernel."""
        if (names := tuple(config)) not in self._fitting:
            self._check_names(config, where)
            self._fitting.add(names)
        for name in config.keys() & RESERVED:
            check_reserved(name, config[name], where)

    def check_known(self, names: Iterable[str], where: str) -> None:
        """Raise `SpaceError`, naming `where`, for a name of the space that the kernel does not take."""
        arguments = self._workload.arguments
        wrong = (n for n in names if n not in self._parameters and n not in RESERVED and not self._takes_any)
        if unknown := sorted(wrong):
            free = (n for n in self._parameters if n not in arguments)
            raise SpaceError(f"{where}: the kernel {not_taken(unknown[0], free)}")

    def _check_names(self, config: Config, where: str) -> None:
        names, arguments = config.keys() - RESERVED, self._workload.arguments
        self.check_known(names, where)
        if both := sorted(names & arguments.keys()):
            raise SpaceError(f"{where}: {both[0]!r} is an axis and a problem argument; give it in one place")
        if missing := sorted(self._required - names - arguments.keys()):
            raise ArgumentMissing(
                f"{where}: {config} lacks {missing[0]!r}, which the kernel needs; add it there or to arguments"
            )

    def given_default(self, config: Mapping[str, Any]) -> Config:
        """Return the default among configurations with the names of `config`, in the values that were given.

        An empty pass configuration has several spellings; the one of `config` is used.
        """
        given = self._workload.default
        if given is None:
            given = {n: self._parameters[n].default for n in config if n in self._parameters}
            # These mean the same: None, and a pass configuration without options.
            nothing: dict[str, Any] = {PASS_CONFIGS: config.get(PASS_CONFIGS) and {}, COMPILE_FLAGS: None}
            given |= {n: value for n, value in nothing.items() if n in config}
        return given

    def default(self, config: Mapping[str, Any]) -> Config | None:
        """Return `given_default` in plain values, or None if it is not plain data."""
        try:
            return {name: normalise(value, name) for name, value in self.given_default(config).items()}
        except SpaceError:
            return None

    def no_default(self, config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> str:
        """Return why the kernel has no default with the names of `config`; empty if it has one, or one was given.

        A parameter whose default is None has none, unless that is one of its axis' values.
        """
        if self._workload.default is not None:
            return ""
        empty = inspect.Parameter.empty
        of = {n: p.default for n, p in self._parameters.items() if p.kind is not p.VAR_KEYWORD}
        values = {name: of.get(name, empty) for name in config if name not in RESERVED}
        lacking = [
            name
            for name, value in values.items()
            if value is empty or (value is None and not any(one is None for one in axes.get(name, ())))
        ]
        if lacking:
            return f"{' and '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no default value"
        return "" if self.default(config) is not None else "the default values are no plain data"

    def default_key(self, config: Config) -> str:
        """Return the key of the result of `default`, or an empty text for None."""
        alike = (config.get(PASS_CONFIGS) is None, *config)
        if alike not in self._default_keys:
            default = self.default(config)
            self._default_keys[alike] = "" if default is None else config_key(default)
        return self._default_keys[alike]


def function_of(kernel: Any) -> Any:
    """Return the Python function inside `@tilelang.jit`'s wrapper, or `kernel` itself."""
    inner = getattr(kernel, "func", None)
    own = getattr(kernel, "orig_func", None)  # a PrimFunc or a macro
    if inspect.isfunction(own) or isinstance(kernel, functools.partial):
        return own or kernel
    return getattr(inner, "orig_func", None) or (inner if inspect.isfunction(inner) else kernel)


def global_names(code: CodeType) -> Iterator[str]:
    """Return the global names that `code` and its inner functions use, such as the PrimFunc's."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from global_names(const)


def annotation_names(function: Any) -> list[str]:
    """Return the global names in the annotations of `function` and of its inner functions, from their source.

    Under ``from __future__ import annotations`` no code object uses them, but tilelang evaluates them. A name that is
    local to `function` is none of them, even if a script has a variable of that name.
    """
    try:
        tree = parse_module(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.expr):
            found.update((inner.id, None) for inner in ast.walk(annotation) if isinstance(inner, ast.Name))
    code = function.__code__
    return [name for name in found if name not in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}]


def signature_of(kernel: Any) -> inspect.Signature:
    """Return the parameters of `kernel`: those that it declares, or those of its function's signature."""
    own = getattr(kernel, "workload_signature", None)
    return own if isinstance(own, inspect.Signature) else inspect.signature(function_of(kernel))

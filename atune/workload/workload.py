"""Workloads, which are kernels with a space, a problem, inputs and a reference, and their description for the engine.

The description lists the candidates, which are all points of the space in order, or a sample from a large space.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import linecache
import re
import reprlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from types import ModuleType
from typing import Any, Unpack

import msgspec

from atune.errors import ArgumentMissing, SpaceError, UnknownArgument, WorkloadError, calling
from atune.model.candidate import (
    BASELINE,
    PASS_CONFIGS,
    RESERVED,
    Candidate,
    Config,
    as_written,
    check_reserved,
    config_key,
    forms_of,
    key_of,
    normalise,
    shown,
    space_hash,
    with_tuples,
    written_like,
)
from atune.model.options import checked, complete, documents, meant, refuse_unknown
from atune.model.space import LARGE, Points, Space
from atune.workload.fingerprint import (
    BY_NAME_ALONE,
    constraint_text,
    fingerprint,
    function_of,
    is_autotuned,
    is_compiled,
    kernel_fingerprint,
    launch_hints,
    parts_of,
    show_source,
    signature_of,
)
from atune.workload.torch_state import torch_state
from atune.workload.workload_options import WorkloadOptions, amount

ENOUGH_LOOKS, ENOUGH_FOUND = 500_000, 1_000
"""The drawing of points ends after `ENOUGH_LOOKS` points if at least `ENOUGH_FOUND` of them are candidates."""
MOST_LOOKS = 5_000_000
"""The drawing of points always ends after this number of points, even if few of the points are candidates."""


@documents(WorkloadOptions)
class Workload:
    """A kernel to tune, such as ``Workload(scale, Space(block=[64, 128]), arguments={"N": 4096}, reference=double)``.

    Raises `WorkloadError` or `SpaceError` for arguments that cannot work, for example if the kernel does not take an
    axis. For an unknown option, raises `UsageError`, which is also a TypeError.

    Parameters
    ----------
    kernel
        A function that returns a TileLang PrimFunc, plain or under `@tilelang.jit`. Its parameters are the problem's
        arguments and the configuration.
    space
        A `Space`, or the first argument of `Space(...)`.
    {options}
    """

    _first: Workload | None = None
    """The workload from which `at` made this workload; None if `at` did not make it."""

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
        """`flops` and `bytes` as given by the caller, which are numbers or functions of the arguments."""
        self.flops, self.bytes = (amount(name, each, problem) for name, each in self.amounts.items())
        checked("Workload", {"flops": self.flops, "bytes": self.bytes}, WorkloadOptions, WorkloadError)
        self.kernel = kernel
        frame, _ = calling()
        self._made_at = f'\n  File "{frame.f_code.co_filename}", line {frame.f_lineno}'  # the fingerprint ignores it
        self.space = space if isinstance(space, Space) else Space(space)
        self.name: str = given["name"] or str(getattr(function_of(kernel), "__name__", "kernel"))
        self.arguments = self._plain(problem)
        self.kernel_arguments = {str(name): as_written(value) for name, value in problem.items()}
        """The arguments for the kernel, as the user wrote them. `arguments` has the same values as plain data."""
        self.key: Any = None
        """Key of the result in the cache, as plain data. If the key is None, the problem is the key."""
        self.inputs, self.reference = given["inputs"], given["reference"]
        self.check, self.setup = given["check"], given["setup"]
        self.out_idx = outputs_named(kernel, given["out_idx"])
        """Positions of the outputs, given by the caller or by `@tilelang.jit`; None if no positions were given."""
        self.kernels_out_idx = given["out_idx"] is None
        """Whether `out_idx` comes from the kernel. tilelang makes its positions positive when the kernel is called."""
        self.like_tilelang = False
        """Whether tilelang's rules apply: functions are called as by its tuner, and only listed configurations may
        win."""
        self.restore, self.zero = tuple(given["restore"] or ()), tuple(given["zero"] or ())
        self.rtol, self.atol, self.max_mismatched_ratio = given["rtol"], given["atol"], given["max_mismatched_ratio"]
        self.default = None if given["default"] is None else dict(given["default"])
        own = getattr(kernel, "pass_configs", None) or {}
        self.pass_configs: dict[str, Any] = {**own, **(given["pass_configs"] or {})}
        if given["source"] is not None:
            show_source([part for _, part in parts_of(self)], given["source"])
        check_names(self)

    def _plain(self, problem: Mapping[Any, Any]) -> dict[str, Any]:
        """Return arguments as plain data. Raises `SpaceError` for a value that is not plain data."""
        where = {name: f"Workload {self.name}: argument {name!r}" for name in problem}
        return {normalise(name, where[name]): normalise(value, where[name]) for name, value in problem.items()}

    @contextmanager
    def placed(self) -> Generator[None, None, None]:
        """Add the line that made the workload to any error raised in the block, unless the error has a line already."""
        try:
            yield
        except (SpaceError, WorkloadError) as error:
            error.args = (str(error) + ("" if "\n  File " in str(error) else self._made_at),)
            raise

    def at(self, arguments: Mapping[str, Any]) -> Workload:
        """Return this workload for another problem, where `arguments` replace the arguments of the same names.

        If `flops` and `bytes` were given as numbers, they are unknown for the new problem. Raises `WorkloadError` if
        the kernel does not take an argument, and `SpaceError` if a value is not plain data.
        """
        changed = {**self.arguments, **self._plain(arguments)}
        if key_of(changed) == key_of(self.arguments):
            return self
        other = copy.copy(self)
        other.arguments, other.key, other._first = changed, None, self._first or self
        other.kernel_arguments = written_like(self.kernel_arguments, changed, arguments)
        vars(other).pop("_points", None)
        amounts = {name: amount(name, each, changed) for name, each in self.amounts.items() if callable(each)}
        checked("Workload", amounts, WorkloadOptions, WorkloadError)
        other.flops, other.bytes = amounts.get("flops"), amounts.get("bytes")  # a worker has no amounts
        check_names(other)
        return other

    def origin(self) -> str:
        """Return ``FILE.py:NAME``, where NAME is this workload's variable. In a script, a line must begin with NAME."""
        own, places = self._first or self, [""]
        for module in [*sys.modules.values()]:
            names = vars(module).copy() if isinstance(module, ModuleType) else {}
            held, file = [name for name, value in names.items() if value is own], names.get("__file__")
            if held and file and (top := str(names.get("__name__")).partition(".")[0]) not in BY_NAME_ALONE:
                text = "".join(linecache.getlines(file)) if top == "__main__" else "\n".join(held)
                places += [f"{file}:{name}" for name in held if re.search(rf"(?m)^{name}\b", text)]
        return max(places, key=lambda place: f'"{place.rpartition(":")[0]}"' in self._made_at)

    def as_written(self, config: Mapping[str, Any]) -> Config:
        """Return a plain configuration with the values that the user wrote, because the kernel gets these values.

        If the space is computed, the first call for a problem calls the user's functions. Raises `SpaceError`.
        """
        written = self._written(config)
        return with_tuples(config) if written is None else written

    def admits(self, config: Mapping[str, Any]) -> bool:
        """Tell whether the space has `config` for this problem.

        The default is included, unless a constraint refuses it. Raises `SpaceError` if a function in the space raises.
        """
        written = self._written(config)
        return written is not None and self._points[0].admits(written)

    def _written(self, config: Mapping[str, Any]) -> Config | None:
        points, fit = self._points
        if (place := points.place(dict(config))) is not None:
            return points.raw(place)
        return fit.given_default(config) if fit.default_key(dict(config)) == config_key(config) else None

    @cached_property
    def _points(self) -> tuple[Points, ConfigCheck]:
        return self.space.points(self.kernel_arguments), ConfigCheck(self)

    def __repr__(self) -> str:
        """Return the name, the space, and the options that were given. Calls none of the user's functions."""
        parts = [f"arguments={self.arguments!r}"] if self.arguments else []
        functions = {"inputs": self.inputs, "reference": self.reference, "check": self.check}
        parts += [f"{n}={getattr(f, '__name__', '…')}" for n, f in functions.items() if f is not None]
        return f"Workload({', '.join([self.name, repr(self.space), *parts])})"


def outputs_named(kernel: Any, out_idx: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the outputs' positions from `out_idx`, or else from `@tilelang.jit`; None if no positions are given."""
    named = getattr(kernel, "out_idx", None) if out_idx is None else out_idx
    return (named,) if isinstance(named, int) else None if named is None else tuple(named)


def tuned_by_calls(kernel: Any) -> str:
    """Return the reason that a workload cannot have a kernel that is tuned by calls; empty for any other kernel."""
    if is_autotuned(kernel):
        return "is a decorated kernel; call it, or its tune(…). For a Workload, pass its .kernel, the function under it"
    if getattr(getattr(kernel, "func", None), "tensor_args", None):
        return "takes tensors (eager style): put @atune.autotune(space=…) above its @tilelang.jit, and call it"
    return ""


def check_names(workload: Workload) -> None:
    """Raise `SpaceError` or `WorkloadError` if the kernel does not take an axis, or an argument of the problem.

    Calls none of the user's functions, and therefore checks only the names of computed axes. Computed configurations
    are checked when they are computed.
    """
    try:
        fit = ConfigCheck(workload)
    except (TypeError, ValueError):
        return  # Python does not know the kernel's signature
    for number, names in workload.space.names():
        place = "" if number is None else f", config {number}"
        fit.check_known(names, f"Workload {workload.name}{place}")


def not_taken(name: str, parameters: Iterable[str]) -> str:
    """Return a message, with a suggestion, which says that the kernel takes `parameters`, but no argument `name`."""
    known = list(parameters)
    return f"takes no argument {name!r}; it takes {', '.join(known) or 'none'}{meant(name, known)}"


def _expected(parameter: inspect.Parameter, value: Any, own: Any) -> str:
    """Return the type that a parameter expects, such as ``a number``, if `value` has another type; otherwise ``""``.

    The type comes from the annotation or the default of the parameter, or else from the `own` problem of the workload.
    """
    kind = (
        parameter.annotation if isinstance(parameter.annotation, str) else getattr(parameter.annotation, "__name__", "")
    )
    if kind == "int":
        return "a whole number" if value is None or isinstance(value, (str, float)) else ""
    untyped = parameter.annotation is parameter.empty and parameter.default is not None
    number = kind == "float" or (untyped and type(own) in (int, float))
    if (number and value is None) or (isinstance(value, str) and (number or type(parameter.default) in (int, float))):
        return "a number"
    return ""


class ConfigCheck:
    """A checker that tells whether configurations fit the kernel's parameters, and finds the default configuration."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        parameters = signature_of(workload.kernel).parameters
        self._parameters = parameters
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._no_arguments = RESERVED | launch_hints(workload.kernel)
        self._required = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        self._fitting: set[tuple[str, ...]] = set()
        """Tuples of axis names. Configurations with these names fit the kernel."""
        self._default_keys: dict[tuple[object, ...], str] = {}
        own = (workload._first or workload).arguments
        for name, value in workload.arguments.items():
            if name in self._no_arguments - RESERVED:
                check_reserved(name, value, f"Workload {workload.name}", hint=True)
            elif name not in parameters and not self._takes_any:
                other = "; a symbolic dimension (T.dynamic) gets its size from the inputs"
                raise UnknownArgument(
                    f"Workload {workload.name}: the kernel takes no argument {name!r}; it takes {', '.join(parameters)}"
                    f"{meant(name, parameters) or other}"
                )
            if name in parameters and (must := _expected(parameters[name], value, own.get(name))):
                raise WorkloadError(f"Workload {workload.name}: argument {name!r} must be {must}, got {shown(value)}")

    @property
    def names(self) -> set[str]:
        """All axis names of the configurations that were checked."""
        return {name for names in self._fitting for name in names}

    def problem(self) -> dict[str, Any]:
        """Return the problem's arguments, and the defaults of the kernel's other parameters if these are plain data."""
        values, given = dict[str, Any](), self._workload.arguments
        for name, parameter in self._parameters.items():
            value = given.get(name, parameter.default)
            if name not in self.names and value is not parameter.empty:
                with suppress(SpaceError):
                    values[name] = normalise(value, name)
        return {**values, **given}

    def check(self, config: Config, where: str) -> None:
        """Raise `SpaceError`, whose message begins with `where`, if a configuration does not fit the kernel."""
        if (names := tuple(config)) not in self._fitting:
            self._check_names(config, where)
            self._fitting.add(names)
        for name in config.keys() & self._no_arguments:
            check_reserved(name, config[name], where, hint=True)

    def check_known(self, names: Iterable[str], where: str) -> None:
        """Raise `SpaceError`, whose message begins with `where`, if the kernel does not take a name in the space."""
        arguments = self._workload.arguments
        wrong = (n for n in names if n not in {*self._parameters, *self._no_arguments} and not self._takes_any)
        if unknown := sorted(wrong):
            free = (n for n in self._parameters if n not in arguments)
            raise SpaceError(f"{where}: the kernel {not_taken(unknown[0], free)}")

    def _check_names(self, config: Config, where: str) -> None:
        names, arguments = config.keys() - RESERVED, self._workload.arguments
        self.check_known(names, where)
        if both := sorted(names & arguments.keys()):
            raise SpaceError(f"{where}: {both[0]!r} is both an axis and a problem argument; give it in one place")
        if missing := sorted(self._required - names - arguments.keys()):
            lacks = f"lacks {', '.join(map(repr, missing))}, which the kernel needs"
            raise ArgumentMissing(
                f"{where}: {config} {lacks}; add {'them' if missing[1:] else 'it'} to the config or to arguments"
            )

    def given_default(self, config: Mapping[str, Any]) -> Config:
        """Return the default configuration for the axis names in `config`, with the values that the user wrote.

        The default configuration has no launch hints. If its pass configuration is empty, it is written as in `config`.
        """
        given = self._workload.default
        if given is None:
            given = {n: self._parameters[n].default for n in config if n in self._parameters}
            # None means the same as a pass configuration without options.
            nothing = {**dict.fromkeys(self._no_arguments), PASS_CONFIGS: config.get(PASS_CONFIGS) and {}}
            given |= {n: value for n, value in nothing.items() if n in config}
        return given

    def default(self, config: Mapping[str, Any]) -> Config | None:
        """Return `given_default` as plain values, or None if one of its values is not plain data."""
        try:
            return {name: normalise(value, name) for name, value in self.given_default(config).items()}
        except SpaceError:
            return None

    def no_default(self, config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> str:
        """Return the reason that there is no default for the axis names in `config`; empty if there is a default.

        If the default of a parameter is None, the parameter has no default, unless its axis has the value None.
        """
        if self._workload.default is not None:
            return ""
        empty = inspect.Parameter.empty
        of = {n: p.default for n, p in self._parameters.items() if p.kind is not p.VAR_KEYWORD}
        values = {name: of.get(name, empty) for name in config if name not in self._no_arguments}
        lacking = [
            name
            for name, value in values.items()
            if value is empty or (value is None and not any(listed is None for listed in axes.get(name, ())))
        ]
        if lacking:
            return f"{' and '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no default value"
        return "" if self.default(config) is not None else "the default values are not plain data"

    def default_key(self, config: Config) -> str:
        """Return the key of the configuration that `default` returns for `config`; empty if `default` returns None."""
        alike = (config.get(PASS_CONFIGS) is None, *config)
        if alike not in self._default_keys:
            default = self.default(config)
            self._default_keys[alike] = "" if default is None else config_key(default)
        return self._default_keys[alike]


# ---- descriptions


class WorkloadSpec(msgspec.Struct, frozen=True):
    """A description of a workload for the engine, as plain data without code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    """The candidates in order, which are all points of the space, or a sample from a large space."""
    default: int | None
    """Index of the default configuration; `BASELINE` for a default outside the space; None if there is no default."""
    fingerprint: str
    flops: float | None = None
    bytes: float | None = None
    code: str = ""
    """`fingerprint` without the problem."""
    problem: Any = None
    """The identity of the problem: its arguments and the kernel's other defaults, or a key that the caller gave."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure only, without the defaults of parameters that the space sets."""
    space: str = ""
    """SHA-256 of the configurations' keys in order; empty while the configurations are not known."""
    points: int | None = None
    """Number of points in a space from which the configurations were drawn, before constraints. Otherwise None."""
    remarks: tuple[str, ...] = ()
    """Remarks about the space that the user should see."""
    layout_axes: tuple[str, ...] = ()
    baseline: Config | None = None
    """The default configuration if it is outside the space; otherwise None."""
    refused: str = ""
    """The reason that the baseline cannot win, such as a constraint that refuses it; empty if it can win."""
    no_default: str = ""
    """The reason that there is no default configuration; empty if there is a default configuration."""
    asks: tuple[str, ...] = ()
    """Those arguments of the problem that functions of the space take."""
    torch: dict[str, Any] = {}
    """The program's `torch_state`, if the inputs or the checks use functions of the user."""
    refusals: tuple[tuple[str, int], ...] = ()
    """For each constraint, how many points it refused after all earlier constraints admitted them."""

    @property
    def default_config(self) -> Config | None:
        if self.default is None or self.default == BASELINE:
            return self.baseline
        return self.configs[self.default]

    @property
    def total(self) -> int:
        """Number of candidates."""
        return len(self.configs)


def head(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Describe `workload` without its space. Calls none of the workload's functions. Raises `WorkloadError`."""
    judges = workload.reference, workload.check, workload.setup, workload.inputs
    return WorkloadSpec(
        name=workload.name,
        origin=origin,
        arguments=workload.arguments,
        configs=(),
        default=None,
        fingerprint=fingerprint(workload),
        code=fingerprint(workload, problem=False),
        flops=workload.flops,
        bytes=workload.bytes,
        torch=torch_state() if any(map(callable, judges)) else {},
    )


def describe(workload: Workload, origin: str = "", seed: int = 0) -> WorkloadSpec:
    """Enumerate and fingerprint `workload`. Raises `SpaceError` and `WorkloadError`."""
    return with_space(head(workload, origin), workload, seed)


def with_space(spec: WorkloadSpec, workload: Workload, seed: int = 0) -> WorkloadSpec:
    """Return `spec` with the candidates of `workload`, sampled by `seed` if there are too many. See `describe`."""
    candidates = Candidates(workload, seed)
    configs = tuple(candidate.config for candidate in candidates.listed() if candidate is not None)
    return candidates.complete(msgspec.structs.replace(spec, configs=configs))


class Candidates:
    """The candidates of `workload`, in order. No constraint is called until the candidates are listed.

    If the space has more than `LARGE` points, the default configuration comes first. The other candidates are the
    points that satisfy the constraints among points drawn with `seed`. There are at most `LARGE` candidates. Raises
    `SpaceError` or `WorkloadError` if a configuration does not fit the kernel.
    """

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self.workload, self._seed = workload, seed
        self._fit = ConfigCheck(workload)
        self.points = workload.space.points(workload.kernel_arguments)
        self.large = self.points.size > LARGE
        self._keys: list[str] = []
        self._first: Config = {}
        self._default: int | None = None

    def listed(self) -> Iterator[Candidate | None]:
        """Yield every candidate, in order.

        Yields None for drawn points that are not candidates, so that the caller can pause. Raises `SpaceError` for
        duplicates and for an empty space.
        """
        seen: dict[str, int] = {}
        for config in self._drawn() if self.large else self.points.walk():
            if config is None:
                yield None
                continue
            index = len(seen)
            self._fit.check(config, f"Workload {self.workload.name}, config {index}")
            candidate = Candidate(index, config_key(config), config)
            if candidate.key in seen:
                raise SpaceError(
                    f"Workload {self.workload.name}, config {index}: {config} occurs twice, first as config "
                    f"{seen[candidate.key]}"
                )
            seen[candidate.key] = index
            self._first = self._first or config
            self._keys.append(candidate.key)
            if self._default is None and self._fit.default_key(config) == candidate.key:
                self._default = index
            yield candidate
        if not seen:
            refused = [f"{n:,} refused by {text}" for text, n in self._refusals()]
            raise self.workload.space.empty(self.workload.arguments, refused)

    def _refusals(self) -> Iterator[tuple[str, int]]:
        return zip(map(constraint_text, self.workload.space.where), self.points.refused, strict=True)

    def _drawn(self) -> Iterator[Config | None]:
        points, taken = self.points, set[int]()
        default = self._fit.default(points.plain(0))
        first = None if default is None else points.place(default)
        for looks, place in enumerate(chain([] if first is None else [first], points.drawn(self._seed))):
            if len(taken) == LARGE or looks >= (ENOUGH_LOOKS if len(taken) >= ENOUGH_FOUND else MOST_LOOKS):
                return
            new = place not in taken and points.admits(points.raw(place))
            taken.update([place] if new else [])
            yield points.plain(place) if new else None

    def complete(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return `spec` with everything but the configurations that is known after all candidates were listed.

        Raises `WorkloadError` if the axes of the given default differ from those of the configurations.
        """
        default, baseline, no_default, refusals = self._default, None, "", tuple(self._refusals())
        if default is None:
            default, baseline, no_default = self._baseline()
        work = self.workload
        forms = {n: types for n, types in forms_of(work.kernel_arguments).items() if types != {"dtype"}}
        axes = {n: () if isinstance(values, range) else (*values,) for n, values in self.points.axes.items()}
        forms |= {**forms_of(work.default or {}), **forms_of(axes)}
        drawn = f"so the run searches {len(self._keys):,} candidates, drawn with its seed"
        return msgspec.structs.replace(
            spec,
            code=hashlib.sha256(key_of((spec.code, forms))).hexdigest() if forms else spec.code,
            default=default,
            baseline=baseline,
            refused="" if baseline is None else self._refused(baseline),
            no_default=no_default,
            problem=self._fit.problem() if self.workload.key is None else self.workload.key,
            kernel=kernel_fingerprint(self.workload.kernel, without_defaults=self._fit.names),
            space=space_hash(self._keys),
            points=self.points.size if self.large else None,
            remarks=(f"the space has {self.points.size:,} points, {drawn}",) if self.large else (),
            layout_axes=self.points.layout_axes,
            asks=self.workload.space.asks(self.workload.arguments),
            refusals=refusals,
        )

    def _baseline(self) -> tuple[int | None, Config | None, str]:
        """Return a default that the space lacks, with its index, or the reason that there is no default."""
        given, axes = self.workload.default, self.points.axes
        if given is not None and (why := wrong_names(given, axes)):
            raise WorkloadError(f"Workload {self.workload.name}: the default {given} does not fit the space: {why}")
        if why := self._fit.no_default(self._first, axes):
            return None, None, why
        config = self._fit.default(self._first)
        return (None, None, "the default is not plain data") if config is None else (BASELINE, config, "")

    def _refused(self, baseline: Config) -> str:
        """Return the reason that the baseline must not win: a constraint refuses it or raises. Empty if it may win."""
        if self.workload.like_tilelang or not (where := self.workload.space.where):
            return "configs does not list it" * self.workload.like_tilelang
        place = self.points.place(baseline)
        raw = self._fit.given_default(self._first) if place is None else self.points.raw(place)
        try:
            first = self.points.refusing(raw)
        except SpaceError as error:
            return str(error).partition("\n")[0]
        return "" if first is None else f"the constraint {constraint_text(where[first])} refuses it"


def wrong_names(default: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
    """Return the reason that `default` does not fit these axes, with a suggestion; empty if it fits."""
    if unknown := [name for name in default if name not in axes]:
        return f"the space has no axis {unknown[0]!r}; its axes are {', '.join(axes)}{meant(unknown[0], axes)}"
    if lacking := [name for name in axes if name not in default]:
        return f"the default has no {lacking[0]!r}; give a value for every axis"
    return ""


def candidates_of(workload: Workload) -> list[Candidate]:
    """Return a space's candidates, or a sample from a large space. Raises `SpaceError` if a candidate does not fit."""
    return [candidate for candidate in Candidates(workload).listed() if candidate is not None]

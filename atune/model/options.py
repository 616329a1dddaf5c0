"""Options. Each option is a field with an `option` in its type. Checks, help and flags are derived from the field."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import os
import re
import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Required, TypeVar, Union, get_args, get_origin

import msgspec

from atune.errors import UnknownOption, UsageError
from atune.model.candidate import as_written

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=msgspec.Struct)


def option(doc: str, **more: Any) -> msgspec.Meta:
    """Return the description of an option, which annotates the option's type. `more`: attributes of `Option`.

        class RunOptions(TypedDict, total=False):
            seed: Annotated[Natural, option("Seed of the strategy.", default=0, flag="--seed", metavar="N")]

    Quote each type that only type checkers import, but note that its values are not checked. The module of the
    TypedDict must not have ``from __future__ import annotations``, which would quote all types. The default of a
    setting stands next to its type.
    """
    return msgspec.Meta(description=doc, extra=more)


def described(group: type[Any], name: str) -> msgspec.Meta:
    """Return the description of an option of `group`, so that another group can have the same option."""
    meta: msgspec.Meta = get_args(group.__annotations__[name])[-1]
    return meta


SWITCH = (bool, bool | None)
"""The types of switches, which are options that are on or off."""
_TYPED = (*SWITCH, int, int | None, float, float | None)


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a group. The values are checked by type and bounds, or by the function `check`."""

    name: str
    hint: Any
    """The type with bounds."""
    kind: Any
    """The type without bounds, which `help` shows."""
    doc: str
    """The description, written like a docstring. The first sentence is the command line's help."""
    default: Any = None
    must: str = ""
    """What messages say about a wrong value: ``must be a string``. If this is empty, only numbers and bools are
    checked."""
    check: Callable[[str, Any], Any] | None = None
    """A function that takes the option's name, for messages, and a value. The function returns the value in its normal
    form, or raises `UsageError`."""
    measured: bool = False
    """Whether timings under different values of the option cannot be compared, because it affects measurements."""
    flag: str = ""
    """The option's name on the command line, or empty. A flag ``--skip-…`` switches off an option that is on by
    default. For exclusive flags, such as ``--quiet|--verbose``, the value is the name of the given flag."""
    metavar: str = ""
    repeat: bool = False
    """Whether the option may be given several times on the command line."""
    unset: str = ""
    """A description of the default, if the default is not a plain value."""
    page: str = ""
    """The page of the documentation that explains the option, such as ``search.md#the-prior``."""
    group: str = ""
    """The heading of the option in the command line's help."""

    def checked(self, where: str, value: Any, error: type[UsageError] = UsageError, *, strict: bool = True) -> Any:
        """Return the value in its normal form. Raises `error`, which names `where`, or the error that `check` raises.

        `strict`: whether a string is refused where a number is expected.
        """
        if value is None and self.default is None:
            return value
        if self.check is not None:
            return self.check(where, value)
        if self.must or self.kind in _TYPED:
            strict = strict or str(value).lower() == "null"  # msgspec reads this text as None
            return converted(where, value, self.hint, self.must, error, strict=strict)
        return value


Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
"""Zero or more, and finite."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a string"}
"""atune's words for the types that msgspec names in its messages."""


def converted(
    name: str, value: Any, kind: Any, must: str = "", error: type[UsageError] = UsageError, *, strict: bool = True
) -> Any:
    """Return `value` as msgspec converts it to the type `kind`. A mapping stays unchanged. `strict`: see msgspec.

    Raises `error` with a message made from `name` and `must`. Without `must`, msgspec's message says what was expected.
    """
    plain = as_written(value)  # numpy's numbers become Python's
    plain = float(plain) if isinstance(plain, float) else plain
    try:
        result = msgspec.convert(plain, kind, strict=strict)
    except msgspec.ValidationError as wrong:
        raise error(f"{name} {must or f'must be {_wanted(wrong)}'}, got {reprlib.repr(value)}") from None
    return value if isinstance(value, Mapping) else result


def _wanted(wrong: msgspec.ValidationError) -> str:
    """Return the expected type or range in words, taken from msgspec's message about a wrong value."""
    text = str(wrong)
    if not text.startswith("Expected "):
        return "within the range of numbers"
    text = re.sub(r", got .*| - at .*", "", text.removeprefix("Expected "))
    return re.sub("`(.*?)`", lambda kind: _WORDS.get(kind[1].removesuffix(" | null"), kind[1]), text)


def size(name: str, value: Any) -> int:
    """Return a size in bytes. The size may be a string such as ``4GiB``. Raises `UsageError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?|B?)\s*", str(value), re.IGNORECASE)
    n = 0 if match is None else int(float(match[1]) * 1024 ** (1 + "KMGT".index(match[2].upper()) if match[2] else 0))
    if n <= 0:
        raise UsageError(f"{name} must be a size, such as '4GiB' or '512MiB', got {reprlib.repr(value)}")
    return n


def path(name: str, value: Any) -> Any:
    """Return `value`. Raises `UsageError` unless `value` is a string or a `Path`."""
    if not (isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)):
        raise UsageError(f"{name} must be a path, got {value!r}")
    return value


def options_of(group: type[Any]) -> dict[str, Option]:
    """Return the options of a group by name. A group is a settings class, or a TypedDict of keywords."""
    if group not in _KNOWN:
        hints: dict[str, Any] = group.__annotations__
        defaults: dict[str, Any] = {}
        if issubclass(group, msgspec.Struct):
            fields = msgspec.structs.fields(group)
            hints, defaults = {f.name: f.type for f in fields}, {f.name: _default(f) for f in fields}
        _KNOWN[group] = {name: _option(name, hint, defaults) for name, hint in hints.items()}
    return _KNOWN[group]


_KNOWN: dict[type[Any], dict[str, Option]] = {}


def _option(name: str, hint: Any, defaults: Mapping[str, Any]) -> Option:
    """Make an option from its annotated type. `defaults`: the default values of settings, by name."""
    hint = get_args(hint)[0] if get_origin(hint) is Required else hint
    kind, *_, meta = get_args(hint)
    more = {"default": defaults[name]} if name in defaults else {}
    return Option(name=name, hint=hint, kind=_unbounded(kind), doc=meta.description, **meta.extra, **more)


def _unbounded(kind: Any) -> Any:
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    alternatives = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    bare = [get_args(hint)[0] if get_origin(hint) is Annotated else hint for hint in alternatives]
    return functools.reduce(operator.or_, bare)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


def checked(
    where: str, given: Mapping[str, Any], kind: type[Any], error: type[UsageError] = UsageError
) -> dict[str, Any]:
    """Return the options `given` for the group `kind`, with each value in its normal form.

    Raises `UnknownOption` for a name that is not in the group, and `error` for a wrong value. Messages name `where`.
    """
    options = options_of(kind)
    refuse_unknown(where, given, [*options])
    place = f"{where}: " if where else ""
    return {name: options[name].checked(f"{place}{name}", value, error) for name, value in given.items()}


def complete(
    where: str, given: Mapping[str, Any], kind: type[Any], error: type[UsageError] = UsageError
) -> dict[str, Any]:
    """Return a value for every option of the group `kind`: the checked value if it is `given`, or else the default."""
    defaults = {name: option.default for name, option in options_of(kind).items()}
    return defaults | checked(where, given, kind, error)


def documents(kind: type[Any]) -> Callable[[F], F]:
    """Return a decorator that documents ``**options: Unpack[kind]`` of a function or a class, for `help`.

    The decorator replaces the docstring's line ``{options}`` by a list of options, and adds them to the signature.
    """

    def decorate(function: F) -> F:
        options = options_of(kind).values()
        called: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        signature = inspect.signature(called)
        before = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.kind)
            for o in options
        ]
        called.__signature__ = signature.replace(parameters=[*before, *more])
        text = inspect.cleandoc(function.__doc__ or "").replace("{options}", "\n".join(map(_entry, options)))
        function.__doc__ = called.__doc__ = text
        return function

    return decorate


def _entry(option: Option) -> str:
    default = option.unset or ("" if option.default in (None, ()) else repr(option.default))
    return f"{option.name}\n{_wrapped(option.doc + (default and f' Default: {default}.'), '    ')}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 116, initial_indent=indent, subsequent_indent=indent)


if TYPE_CHECKING:
    _Refusing = msgspec.StructMeta
else:

    class _Refusing(type(msgspec.Struct)):
        """A metaclass that refuses wrong keywords, because a msgspec class cannot define `__init__`."""

        def __call__(cls, *values: Any, **options: Any) -> Any:
            refuse_unknown(cls.__name__, options, cls.__struct_fields__)
            return super().__call__(*values, **options)


class Settings(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Refusing):
    """A group of options, each with an `option` in its type, whose values are checked when an object is made."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        for name, value in checked(type(self).__name__, given, type(self)).items():
            if value is not given[name]:
                msgspec.structs.force_setattr(self, name, value)


def documented(kind: type[S]) -> type[S]:
    """Add the options of the settings class `kind` to its docstring. Returns the class."""
    options = [_wrapped(f"`{option.name}`: {option.doc}") for option in options_of(kind).values()]
    raises = "Raises `UsageError` for a wrong value, and for an unknown name, with a similar name as a suggestion."
    kind.__doc__ = "\n".join([f"{kind.__doc__}\n", *options, f"\n{raises}"])
    return kind


MEANT: dict[str, tuple[str, ...]] = {
    "answer": ("reference",), "args": ("arguments", "arg"), "benchmark_devices": ("devices",),
    "benchmark_multi_gpu": ("devices",), "cache_input_tensors": ("cache_inputs",), "compiler_options": ("flags",),
    "configs": ("space",), "cpu_count": ("workers",), "device": ("devices",), "disable_cache": ("store", "cache"),
    "early_config_prune": ("where",), "early_stop": ("adaptive",),
    "enable_grouped_compile": ("group_size",), "execution_backend": (), "group_compile_size": ("group_size",),
    "grouped_compile": ("group_size",), "iterations": ("n_repeat",), "manual_check_prog": ("check",),
    "max_fevals": ("budget",), "max_trials": ("budget",), "n_jobs": ("workers",), "n_trials": ("budget",),
    "num_workers": ("workers",), "params": ("arguments", "arg"), "perf_model": ("prior",), "pre_hook": ("setup",),
    "problem_size": ("arguments", "arg"), "prune_configs_by": ("where",), "ref": ("reference",),
    "ref_prog": ("reference",), "rep": ("n_repeat", "rep_ms"), "reset_to_zero": ("zero",),
    "restore_value": ("restore",), "restrictions": ("where",), "sampler": ("strategy",), "shape": ("arguments", "arg"),
    "skip_check": ("check",), "space": ("configs",), "supply_prog": ("inputs",), "supply_type": ("supply",),
    "time_limit": ("budget",), "timeout": ("benchmark_timeout_s", "compile_timeout_s"), "topk": ("budget",),
    "trials": ("budget",), "tune_params": ("space",), "use_pipeline": ("pipeline",),
    "verify": ("check",), "warmup": ("n_warmup", "warmup_ms"),
}  # fmt: skip
"""atune's names for options of tilelang's autotuner, Triton, Kernel Tuner and Optuna."""

_GROUPS = {
    "compile=CompileSettings({}=…)": ("atune.model.settings", "CompileSettings"),
    "benchmark=BenchmarkSettings({}=…)": ("atune.model.settings", "BenchmarkSettings"),
    "atune.tune(…, {}=…)": ("atune.frontends.run_options", "TuneOptions"),
    "atune.Workload(…, {}=…)": ("atune.workload.workload_options", "WorkloadOptions"),
    "@atune.autotune({}=…)": ("atune.frontends.decorator_options", "AutotuneOptions"),
}
"""For each group of options: how to write an option in Python, and the module and name of the group."""


def refuse_unknown(
    where: str, given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise `UnknownOption`, naming `where`, for the first `given` name that is not `known`.

    `elsewhere`: how to write each option that may be suggested. By default, every option of atune may be suggested.
    """
    for name in given:
        if name not in known:
            ways = python_ways() if elsewhere is None else elsewhere
            hint = likely(name, {option: repr(option) for option in known}, ways) or f"; known are {', '.join(known)}"
            raise UnknownOption(f"{where}: there is no option {name!r}{hint}")


def python_ways() -> dict[str, str]:
    """Return how each option of atune is written in Python, by name."""
    ways = {"where": "atune.Space(…, where=…)"}
    for way, (module, group) in _GROUPS.items():
        for name in getattr(importlib.import_module(module), group).__annotations__:
            ways.setdefault(name, way.format(name))
    return ways


def likely(name: str, known: Mapping[str, str], elsewhere: Mapping[str, str]) -> str:
    """Return a "did you mean" question that names options similar to `name`; empty if no option is similar.

    `known`: how to write each option that is allowed here. `elsewhere`: how to write each of the other options.
    """
    ways = {**elsewhere, **known}
    options = [option for option in (name, *MEANT.get(name, ())) if option in ways]
    options = [option for option in options if option in known] or options
    if not options and name not in MEANT:
        options = get_close_matches(name.lower(), [*known, *elsewhere], n=1, cutoff=0.7)
    return f"; did you mean {' or '.join(dict.fromkeys(ways[option] for option in options))}?" if options else ""


def meant(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question with the known name most similar to `name`; empty if no name is similar."""
    lowered = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), list(lowered), n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""

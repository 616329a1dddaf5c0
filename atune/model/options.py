"""Options: each is defined once, as a field with an `Option` in its type. Checks, help, flags and tables follow."""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
import re
import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Required, TypeVar, get_args, get_origin

import msgspec

from atune.errors import UnknownOption, UsageError
from atune.model.candidate import as_written

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """An option's description, in addition to its name, its type and a setting's default.

        class RunOptions(TypedDict, total=False):
            seed: Annotated[Natural, Option("Seed of the strategy.", default=0, flag="--seed", metavar="N")]

    Values are checked by their type and its `msgspec.Meta`, or by `check`.
    """

    doc: str
    """Sentences in the form of a docstring. The first is the help at the command line."""
    _: KW_ONLY
    default: Any = None
    """The default of a keyword. A setting has its default next to its type."""
    must: str = ""
    """The constraint in words, for the message, such as ``must be a text``. Without it, only bool and numbers are
    checked by their type."""
    check: Callable[[str, Any], Any] | None = None
    """Gets the place for messages and the value, and returns the value in its normal form, or raises `UsageError`."""
    measured: bool = False
    """Whether measurements that were made under another value are others."""
    flag: str = ""
    """The option of the command line, if it has one. ``--skip-…`` switches off what is on by default. Of flags that
    exclude each other, ``--quiet|--verbose``, each sets its own name."""
    metavar: str = ""
    action: str = ""
    """``repeat`` at the command line, where the type does not say so."""
    unset: str = ""
    """The default as text, where it is not a plain value."""
    page: str = ""
    """Where the pages say more, such as ``search.md#the-prior``."""
    group: str = ""
    """The heading in the command line's help."""


@dataclass(frozen=True)
class Field:
    """An option of a group."""

    name: str
    kind: Any
    """Its type. A class that only type checkers import is a stand-in of its name."""
    default: Any
    option: Option

    @property
    def bounded(self) -> Any:
        """Its type without None, with its bounds."""
        kinds = [kind for kind in get_args(self.kind) if kind is not NoneType] if self.optional else [self.kind]
        return kinds[0] if len(kinds) == 1 else self.kind

    @property
    def plain(self) -> Any:
        """Its type without None and bounds."""
        return get_args(self.bounded)[0] if get_origin(self.bounded) is Annotated else self.bounded

    @property
    def shown(self) -> Any:
        """Its type as `help` shows it."""
        return self.plain | None if self.optional else self.plain

    @property
    def optional(self) -> bool:
        return NoneType in get_args(self.kind)

    def checked(self, where: str, value: Any, error: type[UsageError] = UsageError) -> Any:
        """Return the value in its normal form. Raises `error`, or what the option's own check raises."""
        option, name = self.option, f"{where}: {self.name}" if where else self.name
        if value is None and (self.optional or self.default is None):
            return value
        if option.check is not None:
            return option.check(name, value)
        typed = option.must or self.plain in (bool, int, float)
        return converted(name, value, self.kind, option.must, error) if typed else value


Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
"""Zero or more."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
"""Zero or more, and finite."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a text"}
"""Types in words, by msgspec's name."""


def converted(name: str, value: Any, kind: Any, must: str = "", error: type[UsageError] = UsageError) -> Any:
    """Return `value` as msgspec converts it to the type `kind`; a mapping stays as it is.

    Raises `error` with `name` and what the value `must` be, or else what msgspec says.
    """
    plain = as_written(value)  # numpy's numbers are Python's
    plain = float(plain) if isinstance(plain, float) else plain
    try:
        found = msgspec.convert(plain, kind)
    except msgspec.ValidationError as wrong:
        raise error(f"{name} {must or f'must be {wanted(wrong)}'}, got {reprlib.repr(value)}") from None
    return value if isinstance(value, Mapping) else found


def wanted(wrong: msgspec.ValidationError) -> str:
    """Return what a value must be, in msgspec's message that it is not."""
    text = str(wrong)
    if not text.startswith("Expected "):
        return "within the range of numbers"
    text = re.sub(r", got .*| - at .*", "", text.removeprefix("Expected "))
    return re.sub("`(.*?)`", lambda kind: _WORDS.get(kind[1].removesuffix(" | null"), kind[1]), text)


def size(name: str, value: Any) -> int:
    """Return bytes, which may be given as a text such as ``4GiB`` or ``512MiB``. Raises `UsageError` for others."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?|B?)\s*", str(value), re.IGNORECASE)
    n = 0 if found is None else int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2].upper()) if found[2] else 0))
    if n <= 0:
        raise UsageError(f"{name} must be a size, such as '4GiB' or '512MiB', got {reprlib.repr(value)}")
    return n


def path(name: str, value: Any) -> Any:
    """Return `value`. Raises `UsageError` unless `value` is a path as a text or a `Path`."""
    if not (isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)):
        raise UsageError(f"{name} must be a path, got {value!r}")
    return value


def options_of(kind: type[Any]) -> dict[str, Field]:
    """Return the options of a group by name: of a settings class, or of a TypedDict of keywords."""
    if kind not in _KNOWN:
        _KNOWN[kind] = _options_of(kind)
    return _KNOWN[kind]


_KNOWN: dict[type[Any], dict[str, Field]] = {}


def _options_of(kind: type[Any]) -> dict[str, Field]:
    if issubclass(kind, msgspec.Struct):
        found = {field.name: (field.type, _default(field)) for field in msgspec.structs.fields(kind)}
    else:
        found = {name: (_evaluated(kind, hint), ...) for name, hint in kind.__annotations__.items()}
    fields = {}
    for name, (hint, default) in found.items():
        hint = get_args(hint)[0] if get_origin(hint) is Required else hint
        if get_origin(hint) is Annotated:
            kind_, *more = get_args(hint)
            [option] = [one for one in more if isinstance(one, Option)]
            bounds = [one for one in more if one is not option]
            kind_ = Annotated[(kind_, *bounds)] if bounds else kind_
            fields[name] = Field(name, kind_, option.default if default is ... else default, option)
    return fields


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


class _Names(dict[str, Any]):
    """A module's names. One that only type checkers import is a class without anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (), {"__module__": "builtins"})


def _evaluated(kind: type[Any], hint: Any) -> Any:
    if not isinstance(hint, ForwardRef):
        return hint
    module = sys.modules[str(hint.__forward_module__ or kind.__module__)]
    return eval(hint.__forward_arg__, vars(module), _Names(vars(module)))


def checked(
    where: str, given: Mapping[str, Any], kind: type[Any], error: type[UsageError] = UsageError
) -> dict[str, Any]:
    """Return the options `given` of the group `kind`, in their normal form.

    Raises `UnknownOption` for a name that the group lacks, and `error` for a wrong value. Messages name `where`.
    """
    refuse_unknown(where, given, [*kind.__annotations__])
    fields = options_of(kind)
    return {name: fields[name].checked(where, value, error) for name, value in given.items()}


def complete(
    where: str, given: Mapping[str, Any], kind: type[Any], error: type[UsageError] = UsageError
) -> dict[str, Any]:
    """Return all options of the group `kind`: those `given`, as `checked` does, and the defaults of the others."""
    defaults = {name: field.default for name, field in options_of(kind).items()}
    return defaults | checked(where, given, kind, error)


def documents(kind: type[Any]) -> Callable[[F], F]:
    """Return a decorator for a function, or a class, with ``**options: Unpack[kind]``: `help` shows each with its text.

    The line ``{options}`` of the docstring stands for them.
    """

    def decorate(function: F) -> F:
        fields = options_of(kind).values()
        called: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        before = [
            p for p in inspect.signature(called).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        more = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.shown)
            for one in fields
        ]
        called.__signature__ = inspect.signature(called).replace(parameters=[*before, *more])
        function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{options}", "\n".join(map(_entry, fields)))
        called.__doc__ = function.__doc__
        return function

    return decorate


def _entry(field: Field) -> str:
    default = field.option.unset or ("" if field.default in (None, ()) else repr(field.default))
    return f"{field.name}\n{_wrapped(field.option.doc + (default and f' Default: {default}.'), '    ')}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 116, initial_indent=indent, subsequent_indent=indent)


if TYPE_CHECKING:
    SettingsMeta = msgspec.StructMeta
else:

    class SettingsMeta(type(msgspec.Struct)):
        """Refuses a wrong keyword of a settings class, and documents its fields."""

        def __init__(cls, *made: Any, **options: Any) -> None:
            super().__init__(*made, **options)
            fields = [_wrapped(f"`{field.name}`: {field.option.doc}") for field in options_of(cls).values()]
            if fields:
                raises = "Raises `UsageError`, with a suggestion, for a wrong name or value."
                cls.__doc__ = "\n".join([f"{cls.__doc__}\n", *fields, f"\n{raises}"])

        def __call__(cls, *values: Any, **options: Any) -> Any:
            refuse_unknown(cls.__name__, options, cls.__struct_fields__)
            return super().__call__(*values, **options)


class Settings(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """A group of options, each with an `Option` in its type. They are checked when it is made."""

    def __post_init__(self) -> None:
        for name, field in options_of(type(self)).items():
            given = getattr(self, name)
            if (value := field.checked(type(self).__name__, given)) is not given:
                msgspec.structs.force_setattr(self, name, value)


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
"""atune's names for options of tilelang's tuner, Triton's, Kernel Tuner and Optuna."""

_GROUPS = {
    "compile=CompileSettings({}=…)": ("atune.model.settings", "CompileSettings"),
    "benchmark=BenchmarkSettings({}=…)": ("atune.model.settings", "BenchmarkSettings"),
    "atune.tune(…, {}=…)": ("atune.frontends.api.options", "TuneOptions"),
    "atune.Workload(…, {}=…)": ("atune.workload.options", "WorkloadOptions"),
    "@atune.autotune({}=…)": ("atune.frontends.decorator.options", "AutotuneOptions"),
}
"""How to write the options of each group, and where the group is defined."""


def refuse_unknown(
    where: str, given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise `UnknownOption`, naming `where`, for the first name of `given` that is not `known`.

    `elsewhere`: how to write the options of another place, by name, in place of the groups of `atune`.
    """
    for name in given:
        if name not in known:
            ways = python_ways() if elsewhere is None else elsewhere
            meant = likely(name, {option: repr(option) for option in known}, ways)
            hint = f"did you mean {' or '.join(meant)}?" if meant else f"there is {', '.join(known)}"
            raise UnknownOption(f"{where}: there is no option {name!r}; {hint}")


def python_ways() -> dict[str, str]:
    """Return how to write each option of `atune` in Python, by name."""
    ways = {"where": "atune.Space(…, where=…)"}
    for way, (module, group) in _GROUPS.items():
        for name in getattr(importlib.import_module(module), group).__annotations__:
            ways.setdefault(name, way.format(name))
    return ways


def likely(name: str, known: Mapping[str, str], elsewhere: Mapping[str, str]) -> list[str]:
    """Return how to write the options that `name` most likely means; nothing if no option is similar.

    `known`, `elsewhere`: how to write the options of this place and of others, by name.
    """
    ways = {**elsewhere, **known}
    alike = [option for option in (name, *MEANT.get(name, ())) if option in ways]
    if alike:
        return [ways[option] for option in alike if option in known] or [ways[option] for option in alike]
    near = [] if name in MEANT else get_close_matches(name.lower(), [*known, *elsewhere], n=1, cutoff=0.7)
    return [ways[option] for option in near]


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the name that is most like `name`; empty where none is."""
    lowered = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), list(lowered), n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""

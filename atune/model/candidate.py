"""A point of the space with its key, how points compared in other runs, and a problem with its distance to others."""

from __future__ import annotations

import enum
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

import msgspec

from atune.errors import SpaceError, type_of

Config = dict[str, Any]
PASS_CONFIGS = "pass_configs"
"""Reserved config key: the candidate's TileLang pass configuration, no argument of the kernel. None: no entry."""
COMPILE_FLAGS = "compile_flags"
"""Reserved config key: the candidate's compiler flags, instead of `CompileSettings.flags`."""
BASELINE = -1
"""Index of the default configuration where the space does not list it. It is measured as a baseline, and counts neither
among the space's candidates nor for a budget."""
RESERVED = frozenset({PASS_CONFIGS, COMPILE_FLAGS})
LAUNCH_HINTS = frozenset({"occupancy", "num_ctas"})
"""Config keys that a kernel's launch gets, where the kernel takes no argument of the name: blocks that a multiprocessor
must have room for, and blocks of a cluster. None: no hint."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1
"""Integers outside this range become floating-point numbers in a journal, and do not fit a message to a worker."""
MAX_NESTING = 60
"""Depth of nested lists and dicts in a value. A journal's line adds three levels, and at most 64 can be read."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One configuration. `index`: its place in the space's order, or `BASELINE`. `key` depends on the config alone."""

    index: int
    key: str
    config: Config


class Advice(msgspec.Struct, frozen=True):
    """Configurations to try first, because they were fast in another run. The journal's header keeps them."""

    source: str
    """The journal's path, ``result``, or ``cache`` and the result's key."""
    first: tuple[Config, ...] = ()
    """The fastest of this space's configurations there, the best first."""


def normalise(value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` as data that a journal keeps unchanged: sequences become tuples, and subclasses plain values.

    numpy's scalars, and enumerations of numbers or text, become their value. Allowed are None, bool, int, float, str
    and nested lists, tuples and string-keyed dicts of these. Raises `SpaceError`, naming `where`, for anything else,
    and for values that a journal cannot hold. Those are integers beyond 64 bits, numbers that are not finite, invalid
    Unicode, and nesting deeper than `MAX_NESTING`.
    """
    value = as_written(value, MAX_NESTING + 1)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int.__int__(value)
        if not MIN_INT <= value <= MAX_INT:
            raise SpaceError(f"{where}: an integer of {value.bit_length()} bits; a journal keeps 64: use a string")
        return value
    if isinstance(value, float):
        value = float.__float__(value)
        if not math.isfinite(value):
            raise SpaceError(f"{where}: {value!r} reads as None from a journal; use a string or None")
        return value
    if isinstance(value, str):
        value = str.__str__(value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise SpaceError(
                    f"{where}: {shown(value)} has a surrogate, which no file keeps; give text that is Unicode"
                ) from None
        return value
    if isinstance(value, (list, tuple, Mapping)) and depth == MAX_NESTING:
        raise SpaceError(f"{where}: nested deeper than {MAX_NESTING}, which a journal does not keep; use a string")
    if isinstance(value, (list, tuple)):
        return tuple(normalise(v, where, depth + 1) for v in value)
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {normalise(k, where, depth): normalise(v, where, depth + 1) for k, v in value.items()}
    raise SpaceError(
        f"{where}: {shown(value)} is {type_of(value)}; values must be None, bool, int, float, str, or lists, "
        "tuples and dicts of these. Name other things by a string, and look them up in the kernel"
    )


def as_written(value: Any, depth: int = 0) -> Any:
    """Return a value as constraints and kernels get it: as it was written, in lists and dicts of its own.

    numpy's scalars are Python's numbers there, too, because tilelang takes no others everywhere.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if depth > MAX_NESTING or type(value) not in (list, tuple, dict):
        return value
    if type(value) is dict:
        return {name: as_written(one, depth + 1) for name, one in value.items()}
    return type(value)(as_written(one, depth + 1) for one in value)


def written_like(own: Mapping[str, Any], plain: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `plain` arguments of another problem as the kernel gets them: in the types that they were `given` in.

    What was given plain, as a journal has it, gets the types of the first problem's `own` arguments.
    """
    same = {n: value for n, value in own.items() if key_of(value) == key_of(plain[n])}
    written = {n: as_written(value) for n, value in given.items() if forms(value)}
    return {**{n: _as_form(value, own.get(n)) for n, value in plain.items()}, **same, **written}


def _as_form(value: Any, form: Any) -> Any:
    """Return a plain value in the types of `form`: a list, a named tuple, an enumeration's member."""
    if isinstance(form, list | tuple) and isinstance(value, tuple) and len(value) == len(form):
        parts = [_as_form(*pair) for pair in zip(value, form, strict=True)]
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    if isinstance(form, enum.Enum) or (isinstance(form, str) and type(form) is not str):  # TileLang's dtypes are texts
        with suppress(ValueError, TypeError):
            return type(form)(value)
    return value


def forms(value: Any) -> frozenset[str]:
    """Return the names of the types in a value for which a plain form stands in keys and journals; none if it is plain.

    An enumeration's member and its number have one plain form, and may make two kernels of a function.
    """
    kind, inner = type(value), value.values() if isinstance(value, Mapping) else value
    found = frozenset[str]().union(*map(forms, inner)) if isinstance(value, list | tuple | Mapping) else frozenset()
    plain = value is None or kind in (bool, int, float, str, tuple, dict)
    return found if plain else found | {kind.__qualname__}


def forms_of(values: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the `forms` of values by name; only of those that are not plain, and that the kernel gets."""
    return {name: found for name, value in values.items() if name not in RESERVED and (found := forms(value))}


MUST_BE_PASS_CONFIGS = "must be a dict, such as {'tl.enable_fast_math': True}"


def check_reserved(name: str, value: Any, where: str, hint: bool = False) -> None:
    """Raise `SpaceError`, naming `where`, if a reserved `name` or a `hint` cannot be `value`. None is always right."""
    if value is None:
        return
    if name == PASS_CONFIGS and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise SpaceError(f"{where}: {PASS_CONFIGS} {MUST_BE_PASS_CONFIGS}, or None; got {shown(value)}")
    if name == COMPILE_FLAGS and not (isinstance(value, (list, tuple)) and all(isinstance(f, str) for f in value)):
        raise SpaceError(
            f"{where}: {COMPILE_FLAGS} must be a list of flags, such as ['-O2', '-ffast-math'], or None for those of "
            f"CompileSettings; got {shown(value)}"
        )
    if hint and name in LAUNCH_HINTS and (type(value) is not int or value < 1):
        raise SpaceError(f"{where}: {name} must be a number of blocks, 1 or more, or None; got {shown(value)}")


def shown(value: Any) -> str:
    """Return `value` for a message of one line, whatever its own `__repr__` does."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:200]}…"


def config_key(config: Mapping[str, Any]) -> str:
    """Return 16 hex digits that depend on `config`'s names and values, but not on their order."""
    return hashlib.sha256(key_of(config)).hexdigest()[:16]


def typed_text(value: Any, written: Mapping[str, Any]) -> str:
    """Return `key_of` as text; with a second line for the `forms` of the values `written` that are not plain."""
    found = forms_of(written)
    return b"\n".join(map(key_of, [value, found] if found else [value])).decode()


def key_of(value: Any) -> bytes:
    """Return data as text that does not depend on the order of names: equal for equal plain forms, and for no others.

    It tells apart what Python takes for equal, such as True and 1, or 0.0 and -0.0.
    """
    return msgspec.json.encode(value, order="deterministic", enc_hook=lambda other: normalise(other, "a key"))


def space_hash(keys: Iterable[str]) -> str:
    """Return the SHA-256 of candidates' keys in order."""
    return hashlib.sha256("".join(keys).encode()).hexdigest()


def with_tuples(config: Mapping[str, Any]) -> Config:
    """Return `config` with lists turned back into tuples, as the kernel is called. This undoes JSON and msgpack."""

    def tuples(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuples(v) for v in value)
        if isinstance(value, dict):
            return {k: tuples(v) for k, v in value.items()}
        return value

    if not any(isinstance(v, (list, dict)) for v in config.values()):
        return dict(config)
    return {k: tuples(v) for k, v in config.items()}


def numbered(configs: Iterable[Config]) -> list[Candidate]:
    """Return a candidate for each configuration, in their order."""
    return [Candidate(index, config_key(config), with_tuples(config)) for index, config in enumerate(configs)]


def describe_config(config: Config) -> str:
    """Return `config` as ``name=value`` parts, safe to print: no control characters, whoever wrote the journal."""
    return printable(", ".join(f"{name}={value!r}" for name, value in config.items()))


def shortened(text: str, most: int) -> str:
    """Return `text` in `most` characters, its middle left out where it is longer."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[-end:]}"


MOST_SHOWN = 5000
"""Most characters of a journal's text, wherever it is shown."""


def printable(text: str) -> str:
    """Return `text` as one line without control characters, and not too long: a journal may come from a stranger."""
    text = shortened(text, MOST_SHOWN)
    return "".join(c if c.isprintable() else " " for c in text)


DYNAMIC = "$dynamic"
"""Key of a dict that stands for a symbolic variable among a problem's arguments, such as ``{"$dynamic": "M"}``."""


class Problem(msgspec.Struct, frozen=True):
    """One problem: arguments of the kernel."""

    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """The arguments as text; equal for equal problems."""
        return config_key(self.arguments)

    def __str__(self) -> str:
        return describe_config(self.arguments)


def is_size(value: Any) -> bool:
    """Tell whether a problem's argument has a logarithm: a number above zero, and no flag."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the sum of the log2 ratios of two problems' sizes. Each other difference counts as one.

    Rounded, so that machines whose logarithms differ in their last digit find the same ties.
    """
    return round(math.fsum(_apart(one.get(name), other.get(name)) for name in {**one, **other}), 9)


def _apart(one: Any, other: Any) -> float:
    if key_of(one) == key_of(other):
        return 0.0
    return abs(math.log2(one / other)) if is_size(one) and is_size(other) else 1.0


FAILED_ALIKE = 8
"""So many must have been tried with a value of an axis before it is left for the end, because all failed alike."""


def failed_values(tried: Iterable[tuple[Iterable[tuple[Any, Any]], str]]) -> dict[tuple[Any, Any], tuple[int, str]]:
    """Return each pair of axis and value with which all that were tried failed alike, with how many did, and why.

    `tried`: each candidate's pairs with its reason, which is empty where it was measured.
    """
    found = defaultdict[tuple[Any, Any], Counter[str]](Counter)
    for pairs, reason in tried:
        for pair in pairs:
            found[pair][reason] += 1
    alike = {pair: next(iter(reasons.items())) for pair, reasons in found.items() if len(reasons) == 1}
    return {pair: (count, reason) for pair, (reason, count) in alike.items() if reason and count >= FAILED_ALIKE}

"""Plain data for candidates, their configurations and keys, advice from other runs, and problems."""

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
"""Reserved config key: the candidate's TileLang pass configuration, which the kernel does not get. It may be None."""
COMPILE_FLAGS = "compile_flags"
"""Reserved config key: the candidate's compiler flags, which replace `CompileSettings.flags`."""
FOREIGN = "$kernel"
"""Config key, between processes only, of the elaborated kernel of a stranger."""
BASELINE = -1
"""Index of the default configuration if it is outside the space. In that case, the default is measured as a baseline,
but neither the number of candidates nor the budget includes the baseline."""
RESERVED = frozenset({PASS_CONFIGS, COMPILE_FLAGS})
LAUNCH_HINTS = frozenset({"occupancy", "num_ctas"})
"""Config keys for hints about the launch, if the kernel has no argument of the same name. The hints are the number of
blocks that must fit on a multiprocessor, and the number of blocks in a cluster. None means that there is no hint."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1
"""Range of the integers that a journal and messages to workers can store exactly."""
MAX_NESTING = 60
"""Largest nesting of lists and dicts in a value. A journal's line has at most 64 levels, of which 3 are around the
value."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A configuration. `index`: the configuration's place in the space, or `BASELINE`. `key`: a digest of `config`."""

    index: int
    key: str
    config: Config


class Advice(msgspec.Struct, frozen=True):
    """Configurations that are tried first, because they were fast in another run. The journal's header keeps them."""

    source: str
    """The path of a journal, or ``result``, or ``cache`` with the key of the result."""
    first: tuple[Config, ...] = ()
    """Configurations that were fast in the other run and are also in this space, with the fastest first."""


def normalise(value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` as data that a journal stores unchanged. Sequences become tuples, subclasses become plain types.

    A numpy scalar, or a member of an enumeration of numbers or strings, becomes its value. Allowed values are None,
    bool, int, float, str, and nested lists, tuples and string-keyed dicts of these. Raises `SpaceError`, naming
    `where`, for any other value. A journal cannot store integers beyond 64 bits, infinity, NaN, invalid Unicode, or
    values nested deeper than `MAX_NESTING`, so these also raise.
    """
    value = as_written(value, MAX_NESTING + 1)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int.__int__(value)
        if not MIN_INT <= value <= MAX_INT:
            raise SpaceError(f"{where}: an integer of {value.bit_length()} bits, but a journal stores 64; use a string")
        return value
    if isinstance(value, float):
        value = float.__float__(value)
        if not math.isfinite(value):
            instead = "make it a parameter's default, or use a string"
            raise SpaceError(f"{where}: a journal cannot store {value!r}; {instead}")
        return value
    if isinstance(value, str):
        value = str.__str__(value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise SpaceError(
                    f"{where}: {shown(value)} has a surrogate, which a file cannot store; give valid Unicode"
                ) from None
        return value
    if isinstance(value, (list, tuple, Mapping)) and depth == MAX_NESTING:
        raise SpaceError(f"{where}: nested deeper than {MAX_NESTING}, which a journal cannot store; use a string")
    if isinstance(value, (list, tuple)):
        return tuple(normalise(v, where, depth + 1) for v in value)
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {normalise(k, where, depth): normalise(v, where, depth + 1) for k, v in value.items()}
    raise SpaceError(
        f"{where}: {shown(value)} is {type_of(value)}; values must be None, bool, int, float, str, or lists, "
        "tuples and dicts of these. For any other value, give a string that the kernel looks up"
    )


def as_written(value: Any, depth: int = 0) -> Any:
    """Return a copy of a user's value, with new lists and dicts, for constraints and kernels.

    A numpy scalar becomes a Python number, because tilelang accepts numpy's scalars only in some places.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if depth > MAX_NESTING or type(value) not in (list, tuple, dict):
        return value
    if type(value) is dict:
        return {name: as_written(item, depth + 1) for name, item in value.items()}
    return type(value)(as_written(item, depth + 1) for item in value)


def written_like(own: Mapping[str, Any], plain: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return another problem's `plain` arguments for the kernel, converted to the types of the user's own values.

    If an argument was `given` as a plain value, it gets the type of the same argument in the first problem, `own`.
    """
    same = {n: value for n, value in own.items() if key_of(value) == key_of(plain[n])}
    written = {n: as_written(value) for n, value in given.items() if forms(value)}
    return {**{n: _as_form(value, own.get(n)) for n, value in plain.items()}, **same, **written}


def _as_form(value: Any, form: Any) -> Any:
    """Return a plain value converted to the type of `form`, such as a list, a named tuple or an enumeration."""
    if isinstance(form, list | tuple) and isinstance(value, tuple) and len(value) == len(form):
        parts = [_as_form(*pair) for pair in zip(value, form, strict=True)]
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    if isinstance(form, enum.Enum) or (isinstance(form, str) and type(form) is not str):  # a dtype is a str
        with suppress(ValueError, TypeError):
            return type(form)(value)
    return value


def forms(value: Any) -> frozenset[str]:
    """Return the names of the types in `value` that keys and journals replace by plain types; empty if there are none.

    For example, an enumeration's member becomes its number, although member and number may lead to different kernels.
    """
    kind, inner = type(value), value.values() if isinstance(value, Mapping) else value
    names = frozenset[str]().union(*map(forms, inner)) if isinstance(value, list | tuple | Mapping) else frozenset()
    plain = value is None or kind in (bool, int, float, str, tuple, dict)
    return names if plain else names | {kind.__qualname__}


def forms_of(values: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the `forms` of values by name. Plain values, and values that the kernel does not get, are left out."""
    return {name: types for name, value in values.items() if name not in RESERVED and (types := forms(value))}


MUST_BE_PASS_CONFIGS = "must be a dict, such as {'tl.enable_fast_math': True}"


def check_reserved(name: str, value: Any, where: str, hint: bool = False) -> None:
    """Raise `SpaceError`, naming `where`, if a reserved `name` or a `hint` cannot have this `value`. None is valid."""
    if value is None:
        return
    if name == PASS_CONFIGS and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise SpaceError(f"{where}: {PASS_CONFIGS} {MUST_BE_PASS_CONFIGS}, or None; got {shown(value)}")
    if name == COMPILE_FLAGS and not (isinstance(value, (list, tuple)) and all(isinstance(f, str) for f in value)):
        raise SpaceError(
            f"{where}: {COMPILE_FLAGS} must be a list of flags, such as ['-O2', '-ffast-math'], or None for the "
            f"flags of CompileSettings; got {shown(value)}"
        )
    if hint and name in LAUNCH_HINTS and (type(value) is not int or value < 1):
        raise SpaceError(f"{where}: {name} must be a number of blocks, 1 or more, or None; got {shown(value)}")


def shown(value: Any) -> str:
    """Return `value` on one line, for a message. This function never fails, even if `__repr__` raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:200]}…"


def config_key(config: Mapping[str, Any]) -> str:
    """Return 16 hex digits that depend on the names and values in `config`, but not on their order."""
    return hashlib.sha256(key_of(config)).hexdigest()[:16]


def typed_text(value: Any, written: Mapping[str, Any]) -> str:
    """Return `key_of` as text. If values in `written` are not plain, the text has a second line with their `forms`."""
    types = forms_of(written)
    return b"\n".join(map(key_of, [value, types] if types else [value])).decode()


def key_of(value: Any) -> bytes:
    """Return a value as bytes. The bytes of two values are equal if, and only if, their plain forms are equal.

    The order of names in a dict does not matter. True and 1 have different bytes, and so do 0.0 and -0.0.
    """
    return msgspec.json.encode(value, order="deterministic", enc_hook=lambda other: normalise(other, "a key"))


def space_hash(keys: Iterable[str]) -> str:
    """Return the SHA-256 of all candidates' keys, in order."""
    return hashlib.sha256("".join(keys).encode()).hexdigest()


def with_tuples(config: Mapping[str, Any]) -> Config:
    """Return `config` with tuples instead of lists. Kernels need tuples, which JSON and msgpack turn into lists."""

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
    """Return a candidate for each configuration, in the same order."""
    return [Candidate(index, config_key(config), with_tuples(config)) for index, config in enumerate(configs)]


def describe_config(config: Config) -> str:
    """Return `config` as ``name=value`` parts without control characters, which a stranger's config may contain."""
    return printable(", ".join(f"{name}={value!r}" for name, value in config.items()))


def shortened(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. If the text is longer, its middle is left out."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[-end:]}"


MOST_SHOWN = 5000
"""Number of characters after which a text from a journal is shortened for display."""


def printable(text: str) -> str:
    """Return `text` on one short line without control characters, because the text may come from a stranger."""
    text = shortened(text, MOST_SHOWN)
    return "".join(c if c.isprintable() else " " for c in text)


DYNAMIC = "$dynamic"
"""Key of a dict that represents a symbolic variable in the arguments of a problem, such as ``{"$dynamic": "M"}``."""


class Problem(msgspec.Struct, frozen=True):
    """A problem to tune for. The problem is given by arguments of the kernel."""

    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """A digest of the arguments. Equal problems have equal digests."""
        return config_key(self.arguments)

    def __str__(self) -> str:
        return describe_config(self.arguments)


def is_size(value: Any) -> bool:
    """Return whether an argument of a problem is a positive number (but not a bool), so that it has a logarithm."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Return the sum of the log2 ratios of two problems' sizes, plus 1 for each other argument that differs.

    The sum is rounded, so that the last digit of a logarithm, which differs between machines, cannot break ties.
    """
    return round(math.fsum(_distance(a.get(name), b.get(name)) for name in {**a, **b}), 9)


def _distance(a: Any, b: Any) -> float:
    if key_of(a) == key_of(b):
        return 0.0
    return abs(math.log2(a / b)) if is_size(a) and is_size(b) else 1.0


FAILED_ALIKE = 8
"""If this many candidates with the same value of an axis failed for the same reason, the remaining candidates with this
value are tried last."""


def failed_values(tried: Iterable[tuple[Iterable[tuple[Any, Any]], str]]) -> dict[tuple[Any, Any], tuple[int, str]]:
    """Return each (axis, value) whose candidates all failed for one reason, with the candidates' number and the reason.

    `tried`: the pairs of each candidate, and the reason that it failed, or an empty text if it was measured.
    """
    counts = defaultdict[tuple[Any, Any], Counter[str]](Counter)
    for pairs, reason in tried:
        for pair in pairs:
            counts[pair][reason] += 1
    alike = {pair: next(iter(reasons.items())) for pair, reasons in counts.items() if len(reasons) == 1}
    return {pair: (count, reason) for pair, (reason, count) in alike.items() if reason and count >= FAILED_ALIKE}

"""One point of the space, and the stable key it has."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from atune.errors import SpaceError

Config = dict[str, Any]
PASS_CONFIGS = "pass_configs"
"""Reserved config key: TileLang pass configuration of that candidate, not an argument of the kernel."""
COMPILE_FLAGS = "compile_flags"
"""Reserved config key: the compiler's flags for that candidate, in place of `CompileSettings.flags`."""
RESERVED = frozenset({PASS_CONFIGS, COMPILE_FLAGS})


class Candidate(msgspec.Struct, frozen=True):
    """One configuration. `index` is its place in the space's order; `key` depends on the config alone."""

    index: int
    key: str
    config: Config


def normalise(value: Any, where: str) -> Any:
    """Return `value` as data that a journal keeps unchanged; sequences become tuples.

    Raises `SpaceError`, naming `where`, for anything but None, bool, int, float, str and nested lists, tuples and
    string-keyed dicts of these.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"{where}: {value!r} cannot be told from None in a journal; use a string or None")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(normalise(v, where) for v in value)
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: normalise(v, where) for k, v in value.items()}
    raise SpaceError(
        f"{where}: {value!r} is a {type(value).__name__}; values must be None, bool, int, float, str, or lists, "
        "tuples and dicts of these (name other things by a string and look them up in the kernel)"
    )


def config_key(config: Mapping[str, Any]) -> str:
    """Return 16 hex digits that depend on `config`'s names and values, and not on their order."""
    canonical = msgspec.json.encode(config, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:16]


def thaw(config: Mapping[str, Any]) -> Config:
    """Return `config` with lists turned back into tuples, as the kernel is called: undoes JSON and msgpack."""

    def tuples(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuples(v) for v in value)
        if isinstance(value, dict):
            return {k: tuples(v) for k, v in value.items()}
        return value

    if not any(isinstance(v, (list, dict)) for v in config.values()):
        return dict(config)
    return {k: tuples(v) for k, v in config.items()}

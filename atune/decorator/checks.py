"""Checks of `autotune`'s options when the decorator is made, so that a first call fails for none of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from atune.api.options import check_listener, check_settings
from atune.decorator.presets import ByArch
from atune.errors import SpaceError, UsageError
from atune.model.candidate import COMPILE_FLAGS, RESERVED, check_reserved
from atune.model.checks import path
from atune.model.device import parse_target
from atune.model.space import Constraint, Space
from atune.reporting.log import event_log
from atune.workload.values import check_values


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of `autotune`, by name. Raises `UsageError` and its branches."""
    inputs = options["inputs"]
    check_values("autotune", {**options, "inputs": None if isinstance(inputs, str) and inputs == "call" else inputs})
    check_listener(options["on_event"])
    check_settings(None, None, progress=options["progress"])
    for name in ("journal", "report"):
        path(name, options[name])
    if options["cache"] is None:
        raise UsageError("cache must be True for the user's, False for none, or a folder, got None")
    if not isinstance(options["cache"], bool):
        path("cache", options["cache"])
    _check_hints(options["hints"] or {})
    if options["log"] is not None:
        event_log(options["log"])
    if options["concurrent"] not in ("wait", "tune"):
        raise UsageError(f"concurrent: give 'wait' or 'tune', got {options['concurrent']!r}")
    check_on_miss(options["on_miss"])
    if options["target"] is not None:
        parse_target(options["target"])


def _check_hints(hints: Mapping[str, Any]) -> None:
    """Raise `SpaceError` for a wrong `pass_configs` or `compile_flags`. Flags may be a text, too."""
    for name in sorted(hints.keys() & RESERVED):
        for value in hints[name].every if isinstance(hints[name], ByArch) else (hints[name],):
            if not (name == COMPILE_FLAGS and isinstance(value, str)):
                check_reserved(name, value, "hints")


def check_on_miss(on_miss: object) -> None:
    """Raise `UsageError` unless `on_miss` says what to do where nothing is known."""
    if on_miss not in ("tune", "default", "error"):
        raise UsageError(f"on_miss: give 'tune', 'default' or 'error', got {on_miss!r}")


def checked_space(
    space: Any, where: Any, hints: Mapping[str, Any]
) -> tuple[Any, tuple[Constraint, ...], frozenset[str]]:
    """Return the space: a `Space`, a list of configurations, or a function; the constraints beside it; and its names.

    A `Space` has its constraints itself. The names are those that are known before a call. Raises `SpaceError` for what
    is no space, and for a hint that the space has too.
    """
    if space is None:
        raise SpaceError("autotune: give a space, such as @atune.autotune(space={'block_M': [64, 128]})")
    constraints = _constraints_of(where)
    if isinstance(space, Space) and constraints:
        raise SpaceError("where: give the constraints to the Space")
    if isinstance(space, Mapping):
        space, constraints = Space(space, where=constraints), ()
    known: Iterable[Iterable[str]] = ()
    if isinstance(space, Space):
        known = [names for _, names in space.names()]
    elif not callable(space):
        known = space = listed(space)
    names = frozenset(name for each in known for name in each)
    if clash := sorted(names & hints.keys()):
        raise SpaceError(f"{clash[0]!r} is a hint and an axis of the space; give it in one place")
    return space, constraints, names


def listed(space: Any) -> list[Any]:
    """Return the configurations of `space` as a list. Raises `SpaceError` if there is none, or one is no dict."""
    if isinstance(space, str) or not isinstance(space, Iterable):
        raise SpaceError(f"space: give axes, a list of configurations or a function that returns them, got {space!r}")
    found = [*space]
    for config in found or [None]:
        if not isinstance(config, Mapping):
            raise SpaceError(f"space: give dicts, such as [{{'block': 32}}, {{'block': 64}}], got {space!r}")
    return found


def paths(name: str, given: object) -> tuple[str, ...]:
    """Return one path, or several, as texts. Raises `UsageError`, naming the option, for anything else."""
    one = isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable)
    several: list[Any] = [given] if one else list(cast(Iterable[Any], given))
    for each in several:
        if each is None:
            raise UsageError(f"{name} must be a path, or a list of paths, got None")
        path(name, each)
    return tuple(os.fspath(each) for each in several)


def _constraints_of(where: Any) -> tuple[Any, ...]:
    """Return the constraints of `where`, one or several. Raises `SpaceError` for what cannot be called."""
    given = tuple(where) if isinstance(where, Sequence) and not isinstance(where, (str, bytes)) else (where,)
    for constraint in given:
        if not callable(constraint):
            raise SpaceError(f"where: a constraint must be callable, got {constraint!r}")
    return given

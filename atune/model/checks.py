"""Checks that settings share: numbers, switches, and the names of their fields."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from atune.errors import UsageError
from atune.model.options import refuse_unknown


def positive(where: str, name: str, value: float | None, *, optional: bool = False, integral: bool = False) -> None:
    if value is None and optional:
        return
    kind = "whole number" if integral else "number"
    fits = isinstance(value, int if integral else (int, float)) and not isinstance(value, bool)
    if value is None or not fits or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {name} must be a {kind} above zero, got {value!r}")


def whole(name: str, value: object) -> None:
    """Raise `UsageError` unless `value` is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, got {value!r}")


def path(name: str, value: object) -> None:
    """Raise `UsageError` unless `value` is a path as a text or a `Path`, or None."""
    if value is not None and not (isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)):
        raise UsageError(f"{name} must be a path, got {value!r}")


SAID = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
"""Texts that stand for True and False."""


def switches(settings: msgspec.Struct, *names: str) -> None:
    """Raise `UsageError` for the first of `names` in `settings` that is neither True nor False."""
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, bool):
            meant = SAID.get(str(value).lower())
            hint = "" if meant is None else f": did you mean {meant}?"
            raise UsageError(f"{type(settings).__name__}: {name} must be True or False, got {value!r}{hint}")


if TYPE_CHECKING:
    SettingsMeta = msgspec.StructMeta
else:

    class SettingsMeta(type(msgspec.Struct)):
        """Refuses a wrong keyword of a settings class, and suggests the right one, of this class or another."""

        classes: ClassVar[list[SettingsMeta]] = []

        def __init__(cls, *made: Any, **options: Any) -> None:
            super().__init__(*made, **options)
            SettingsMeta.classes.append(cls)

        def __call__(cls, *values: Any, **options: Any) -> Any:
            elsewhere = {name: f"{c.__name__}({name}=…)" for c in SettingsMeta.classes for name in c.__struct_fields__}
            refuse_unknown(cls.__name__, options, cls.__struct_fields__, elsewhere)
            return super().__call__(*values, **options)

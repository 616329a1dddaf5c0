"""Checks that settings share: numbers, switches, and the names of their fields."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import msgspec

from atune.errors import UsageError
from atune.model.options import documented_fields, options_of, refuse_unknown


def positive(where: str, name: str, value: float | None, *, optional: bool = False, integral: bool = False) -> None:
    if value is None and optional:
        return
    kind = "whole number" if integral else "number"
    fits = isinstance(value, int if integral else (int, float)) and not isinstance(value, bool)
    if value is None or not fits or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {name} must be a {kind} above zero, got {value!r}")


def path(name: str, value: object) -> None:
    """Raise `UsageError` unless `value` is a path as a text or a `Path`, or None."""
    if value is not None and not (isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)):
        raise UsageError(f"{name} must be a path, got {value!r}")


if TYPE_CHECKING:
    SettingsMeta = msgspec.StructMeta
else:

    class SettingsMeta(type(msgspec.Struct)):
        """Refuses a wrong keyword of a settings class, and documents its fields."""

        def __init__(cls, *made: Any, **options: Any) -> None:
            super().__init__(*made, **options)
            if fields := documented_fields(cls):
                raises = "Raises `UsageError`, with a suggestion, for a wrong name or value."
                cls.__doc__ = f"{cls.__doc__}\n\n{fields}\n\n{raises}"

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

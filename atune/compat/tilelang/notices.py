"""Warnings of the drop-in, each shown once per program, and errors that old code catches too."""

from __future__ import annotations

import warnings

from atune.errors import InputsMissing, NoWinner, SpaceError, UsageError


class CompatWarning(UserWarning):
    """A parameter of tilelang's tuner that means something else here; the message says what happens instead."""


class ConfigError(SpaceError, ValueError):
    """The configurations do not fit the kernel, or there are none. A ValueError too, as tilelang's tuner raises."""


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. A ValueError too, as tilelang's tuner raises."""


class ScalarMissing(InputsMissing, ValueError):
    """A scalar parameter of the kernel has no value. A ValueError too, as tilelang's tuner raises."""


class TuningFailed(NoWinner, RuntimeError):
    """No configuration worked. A RuntimeError too, as tilelang's tuner raises; `result` holds every record."""


_said: set[str] = set()


def warn_once(subject: str, message: str) -> None:
    """Warn about `subject`, the first time that it comes up in this program."""
    if subject not in _said:
        _said.add(subject)
        warnings.warn(f"{subject}: {message}", CompatWarning, stacklevel=4)


def forget_warnings() -> None:
    """Warn again about everything; for tests."""
    _said.clear()

"""Warnings of the drop-in, each shown once per program, and errors that old code catches too."""

from __future__ import annotations

from atune.errors import InputsMissing, SpaceError, UsageError
from atune.journal.result import NoWinner
from atune.model.notices import warn_caller


class CompatWarning(UserWarning):
    """A parameter of tilelang's tuner that means something else here; the message says what happens instead."""


class ConfigError(SpaceError, ValueError):
    """The configurations do not fit the kernel, or none is given. Also a ValueError, like that of tilelang's tuner."""


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. Also a ValueError, like that of tilelang's tuner."""


class ScalarMissing(InputsMissing, ValueError):
    """A scalar parameter of the kernel has no value. Also a ValueError, like that of tilelang's tuner."""


class TuningFailed(NoWinner, RuntimeError):
    """No configuration worked; `result` holds every record. Also a RuntimeError, like that of tilelang's tuner."""


_said: set[str] = set()


def warn_once(subject: str, message: str) -> None:
    """Warn about `subject`, once per program."""
    if subject not in _said:
        _said.add(subject)
        warn_caller(f"{subject}: {message}", CompatWarning)

"""Operations and bytes of a problem, given by the user as numbers or as functions of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from atune.errors import WorkloadError

Amount = float | Callable[..., float] | None


def amount(label: str, given: Amount, arguments: Mapping[str, Any]) -> float | None:
    """Return the number `given`, or call the function `given` with those of `arguments` that it names.

    Raises `WorkloadError` if the function names other arguments, raises, or returns no number.
    """
    if not callable(given):
        return given
    try:
        names = inspect.signature(given).parameters
        found = given(**{name: arguments[name] for name in names})
    except KeyError as error:
        raise WorkloadError(f"Workload: {label} names {error}, which is none of the arguments") from error
    except Exception as error:
        raise WorkloadError(f"Workload: {label} raised {type(error).__name__}: {error}") from error
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise WorkloadError(f"Workload: {label} must return a number, got {found!r}")
    return found

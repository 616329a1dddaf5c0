"""The option `prior`: from the user's value to the prior of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from atune.errors import UsageError
from atune.search.prior import AUTO, Chosen, OwnPrior
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.pickling import ship_function

GivenPrior = Callable[..., float] | Literal["auto", False] | None


def chosen_prior(given: Any, *, ship: bool = True) -> Chosen:
    """Return the prior for an option's value. `ship`: pack it for the workers. Raises `UsageError`."""
    if given is None or given == AUTO:
        return AUTO
    if given is False:
        return None
    if not callable(given) or isinstance(given, type) or inspect.iscoroutinefunction(given):
        raise UsageError(
            f"prior: give a function of (configuration, facts) that returns milliseconds or a rank, 'auto', or False "
            f"for none, got {given!r}"
        )
    own = OwnPrior(given)
    return OwnPrior(given, ship_function(given, f"prior {own.name}")) if ship else own


def key_of(prior: Chosen) -> dict[str, str]:
    """Return a prior's part of a result's key. ``auto`` has none, so keys from before priors stay valid."""
    if prior == AUTO:
        return {}
    return {"prior": "off" if prior is None else kernel_fingerprint(prior.function)}

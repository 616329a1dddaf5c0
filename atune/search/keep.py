"""Leaves of a space what a prior takes for the best."""

from __future__ import annotations

from dataclasses import replace

from atune.errors import UsageError
from atune.search.interface import Searched, by_prior


def kept_of(searched: Searched, keep: int | None) -> Searched:
    """Return `searched` with the `keep` candidates that its prior takes for the best, in their order; None keeps all.

    Raises `UsageError` where there is no prior.
    """
    if keep is None:
        return searched
    if searched.prior is None:
        raise UsageError(
            "keep= takes what a prior holds for the best, and there is none: give prior=, or leave keep= out"
        )
    best = set(by_prior(list(searched.configs), searched.prior)[:keep])
    return replace(searched, configs={index: config for index, config in searched.configs.items() if index in best})

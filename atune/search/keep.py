"""Reduces a space to the candidates that a prior ranks best."""

from __future__ import annotations

from dataclasses import replace

from atune.errors import UsageError
from atune.search.interface import Searched, by_prior


def kept_of(searched: Searched, keep: int | None) -> Searched:
    """Return `searched` with only the `keep` candidates that its prior ranks best, in their order; None keeps all.

    These are listed, whatever the space: they have no `grid` that leads to others.
    Raises `UsageError` where there is no prior.
    """
    if keep is None:
        return searched
    if searched.prior is None:
        raise UsageError("keep= keeps what a prior ranks best, and there is no prior: give prior=, or leave out keep=")
    best = set(by_prior(list(searched.configs), searched.prior)[:keep])
    configs = {index: config for index, config in searched.configs.items() if index in best}
    known = {index: ratio for index, ratio in searched.elsewhere.items() if index in best}
    return replace(searched, configs=configs, elsewhere=known, grid=None)

"""Advice for a run. Of a large space only what it has is advised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from atune.engine.aside import computed
from atune.model.advice import Advice
from atune.model.candidate import Config, config_key
from atune.model.device import DeviceInfo
from atune.search.advice import no_advice, nothing_shared
from atune.workload.workload import WorkloadSpec

Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Returns advice from other runs, and remarks for the user. Raises `UsageError`."""


class LookUp(Protocol):
    """See `Machine.look_up`."""

    def __call__(self, configs: Sequence[Config], *, around: bool = False) -> Awaitable[Sequence[Config]]: ...


async def advised(
    advise: Advise, spec: WorkloadSpec, devices: Sequence[DeviceInfo], look_up: LookUp
) -> tuple[tuple[Advice, ...], list[str]]:
    """Ask for advice, and return it with remarks. `look_up` tells which configurations a large space has.

    Raises `UsageError` for a source without use there.
    """
    advice, remarks = await computed(spec, partial(advise, spec, devices), quick=advise is no_advice)
    others = {key: config for each in advice for key, config in each.others.items()}
    if not others:
        return advice, remarks
    there = {config_key(config) for config in await look_up(list(others.values()))}
    held = [_held(each, others.keys() - there) for each in advice]
    for before, after in zip(advice, held, strict=True):
        if not after.ratios and not before.cached:
            raise nothing_shared(before.source, len(before.ratios), spec)
    left = tuple(each for each in held if each.ratios)
    if not left:
        remarks = [*remarks, "warm cache: this space's constraints refuse all that the result cache has: no advice"]
    return left, remarks


def _held(advice: Advice, lacking: Collection[str]) -> Advice:
    """Return `advice` without the configurations that are `lacking`."""
    ratios = {key: ratio for key, ratio in advice.ratios.items() if key not in lacking}
    others = {key: config for key, config in advice.others.items() if key not in lacking}
    first = next(iter(ratios), "")
    return replace(advice, best=others.get(first, advice.best), ratios=ratios, others=others)

"""Advice for a run. In a large space only what its constraints admit is advised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from atune.engine.aside import computed
from atune.engine.proposals import LookUp, looked_up
from atune.journal.events import RunStarted
from atune.model.advice import Advice
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo
from atune.search.advice import no_advice, nothing_shared
from atune.workload.workload import WorkloadSpec

Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Returns advice from other runs, and remarks for the user. Raises `UsageError`."""


@dataclass(frozen=True)
class Advised:
    """What a run is advised: for its header, for the user, and for the pool of a large space."""

    advice: tuple[Advice, ...] = ()
    remarks: Sequence[str] = ()
    there: Mapping[int, Candidate] = field(default_factory=dict)
    """The advised candidates of a large space, by place."""


async def advised(
    advise: Advise,
    spec: WorkloadSpec,
    devices: Sequence[DeviceInfo],
    look_up: LookUp,
) -> Advised:
    """Ask for advice. `look_up` looks places of `spec` up. Raises `UsageError` for a source without use there."""
    advice, remarks = await computed(spec, partial(advise, spec, devices), quick=advise is no_advice)
    if spec.size is None or not advice:
        return Advised(advice, remarks)
    there = await _there(advice, look_up)
    held = [(each, _held(each, there)) for each in advice]
    for before, after in held:
        if before.places and not after.ratios and not before.cached:
            raise nothing_shared(before.source, len(before.ratios), spec)
    left = tuple(after for _, after in held if after.ratios)
    if not left and any(each.places for each in advice):
        remarks = [*remarks, "warm cache: this space's constraints refuse all that the result cache has: no advice"]
    return Advised(left, remarks, there)


async def recalled(header: RunStarted, spec: WorkloadSpec, look_up: LookUp) -> Advised:
    """Return the advice of a run that is resumed: its header's, with what a large space admits of it now."""
    return Advised(header.advice, there=await _there(header.advice, look_up) if spec.size is not None else {})


async def _there(advice: Sequence[Advice], look_up: LookUp) -> dict[int, Candidate]:
    """Return the advised candidates that a large space admits, by place, in the order of the advice."""
    return await looked_up(list(dict.fromkeys(place for each in advice for place in each.places.values())), look_up)


def _held(advice: Advice, there: Mapping[int, Candidate]) -> Advice:
    """Return `advice` of the candidates that are `there`."""
    places = {key: place for key, place in advice.places.items() if place in there}
    ratios = {key: ratio for key, ratio in advice.ratios.items() if key in places}
    best = there[places[next(iter(ratios))]].config if ratios else advice.best
    return replace(advice, best=best, ratios=ratios, places=places)

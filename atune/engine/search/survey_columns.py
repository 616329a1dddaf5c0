"""The survey's results, as columns of an event and as fields of `Searched`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atune.engine.search.devices import Figures, figures_of
from atune.engine.search.prior import estimates, features
from atune.journal.events import SpaceSurveyed
from atune.model.artifact import StaticFacts
from atune.model.device import DeviceInfo, Target

DIGITS = 6


def figures_for(target: Target | None, devices: Sequence[DeviceInfo]) -> Figures | None:
    """Return the figures that a run's prior uses; None if there are none, as for the CPU."""
    if target is None or target.kind != "cuda":
        return None
    return figures_of(devices[0] if devices else None, target.arch)


def columns(facts: Mapping[int, StaticFacts], figures: Figures) -> dict[str, Any]:
    """Return the fields of `SpaceSurveyed`, by what is known of candidates; of facts those that differ."""
    indices, prior = tuple(sorted(facts)), estimates(facts, figures)
    known = {index: features(facts[index], figures) for index in indices}
    names = sorted({name for one in known.values() for name in one})
    table = {name: tuple(_rounded(known[index].get(name)) for index in indices) for name in names}
    return {
        "indices": indices,
        "prior": tuple(_rounded(prior.get(index)) for index in indices) if prior else (),
        "facts": {name: column for name, column in table.items() if len(set(column)) > 1},
    }


def fields_of_facts(facts: Mapping[int, StaticFacts], figures: Figures | None) -> dict[str, Any]:
    """Return what `Searched` has of `facts`, as a run would that surveys the space."""
    fields = {} if figures is None else columns(facts, figures)
    return survey_fields(SpaceSurveyed(seq=0, time=0.0, mono=0.0, **fields)) if fields.get("prior") else {}


def survey_fields(surveyed: SpaceSurveyed | None) -> dict[str, Any]:
    """Return what `Searched` has of a survey: `prior` and `facts`; neither where there was none."""
    if surveyed is None:
        return {}
    prior = {index: value for index, value in zip(surveyed.indices, surveyed.prior, strict=False) if value is not None}
    facts = dict[int, dict[str, float]]()
    for name, column in surveyed.facts.items():
        for index, value in zip(surveyed.indices, column, strict=False):
            if value is not None:
                facts.setdefault(index, {})[name] = value
    return {"prior": prior or None, "facts": facts}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")

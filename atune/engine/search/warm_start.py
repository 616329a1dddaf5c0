"""Warm start: turns another run's measurements of the same kernel into advice for this search.

All functions are pure: they see the other run's measurements and this space. `atune.frontends.api.warm_start` reads
journals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atune.errors import UsageError
from atune.journal.result import Record, Result
from atune.model.artifact import OF_THE_CODE
from atune.model.candidate import Advice, Config, config_key
from atune.model.problem import distance
from atune.reporting.export import LIKELY
from atune.workload.workload import WorkloadSpec

MOST_RATIOS = 100_000
"""How many ratios a header holds for all sources together: the best of each, about 30 bytes a ratio."""

Measured = Mapping[str, tuple[Config, float]]
"""Configurations with their latency, ms, by key."""


@dataclass(frozen=True)
class Experience:
    """What a run measured of a kernel on one problem. `measured`: configurations with their latency, ms, by key.

    `failed`: keys of those that failed by their code.
    """

    source: str
    name: str
    kernel: str
    """SHA-256 of the kernel's source and closure; empty if unknown."""
    arguments: Mapping[str, Any]
    devices: tuple[str, ...]
    measured: Measured
    failed: tuple[str, ...] = ()


def experience_of(result: Result, source: str) -> Experience:
    """Return the experience in a result. Raises `UsageError` if nothing was measured."""
    header = result.header
    measured = {
        record.key: (record.config, record.latency_ms)
        for record in result.records
        if record.latency_ms is not None and math.isfinite(record.latency_ms) and record.latency_ms > 0
    }
    if header is None or not measured:
        raise UsageError(f"warm {source}: no candidate was measured there, so that nothing can be learnt from it")
    devices = tuple(sorted({device.name for device in result.devices}))
    failed = tuple(record.key for record in result.records if _by_its_code(record))
    return Experience(source, header.workload, header.kernel, header.arguments, devices, measured, failed)


def _by_its_code(record: Record) -> bool:
    """Tell whether a candidate failed because of its code, or exceeds a limit of the device."""
    if record.status == "pruned":
        return record.instead is None and not record.message.startswith(LIKELY)
    return record.kind in OF_THE_CODE


def same_kernel(name: str, kernel: str, spec: WorkloadSpec) -> bool:
    """Tell whether experience is of `spec`'s kernel: it has the same source and closure, or the same name.

    The name suffices, because a kernel that closes over its problem has a different closure for each problem.
    """
    return bool(kernel and kernel == spec.kernel) or name == spec.name


def advice_of(experiences: Sequence[Experience], spec: WorkloadSpec) -> tuple[tuple[Advice, ...], list[str]]:
    """Return the advice for `spec`, an item for each experience, and remarks for the user.

    Raises `UsageError` for experience of another kernel or without any of this space's configurations.
    """
    if not experiences:
        return (), []
    found, remarks, find = [], list[str](), finder(spec)
    for each in experiences:
        if not same_kernel(each.name, each.kernel, spec):
            raise UsageError(
                f"warm {each.source}: it is of another kernel, {each.name!r}, and this one is {spec.name!r}. Give "
                "journals of this kernel, or name both workloads alike if they are the same"
            )
        if not (known := find(each.measured)):
            raise UsageError(
                f"warm {each.source}: none of the {len(each.measured)} configurations that were measured there is in "
                f"this space of {spec.total:,}. Give a journal of a space that shares some"
            )
        if each.kernel and spec.kernel and each.kernel != spec.kernel:
            remarks.append(f"warm {each.source}: the kernel's source, or what it closes over, has changed since")
        failed = find(each.failed)
        found.append(_advice(each, known, failed, MOST_RATIOS // len(experiences)))
    return tuple(found), remarks


def finder(spec: WorkloadSpec) -> Callable[[Iterable[str]], list[str]]:
    """Return a function that returns the keys that `spec` has; of a large space those that were drawn."""
    here = {config_key(config) for config in spec.configs}
    return lambda keys: [key for key in keys if key in here]


def no_advice(*_: object) -> tuple[tuple[Advice, ...], list[str]]:
    """Return what `advice_of` returns without experience."""
    return (), []


def _advice(each: Experience, known: Iterable[str], failed: Sequence[str], most: int) -> Advice:
    fastest_ms = min(latency for _, latency in each.measured.values())
    ranked = sorted(known, key=lambda key: (each.measured[key][1], key))
    ratios = {key: round(each.measured[key][1] / fastest_ms, 4) for key in ranked[:most]}
    best = dict(each.measured[ranked[0]][0])
    return Advice(each.source, dict(each.arguments), each.devices, best, ratios, tuple(failed[:most]))


def elsewhere(advice: Iterable[Advice], keys: Mapping[int, str]) -> dict[int, float]:
    """Return how each candidate compared in other runs, by index: the geometric mean of its ratios, if it has any.

    `keys`: the candidates' configuration keys.
    """
    logarithms = defaultdict[str, list[float]](list)
    for each in advice:
        for key, ratio in each.ratios.items():
            logarithms[key].append(math.log(max(ratio, 1.0)))
    return {
        index: math.exp(math.fsum(logs) / len(logs))
        for index, key in keys.items()
        if (logs := logarithms.get(key)) is not None
    }


def failed_elsewhere(advice: Iterable[Advice], keys: Mapping[int, str]) -> list[int]:
    """Return the candidates, by index, that failed by their code in the first run that knows them.

    `keys`: the candidates' configuration keys.
    """
    failed: dict[str, bool] = {}
    for each in advice:
        failed = {**dict.fromkeys(each.ratios, False), **dict.fromkeys(each.failed, True), **failed}
    return [index for index, key in keys.items() if failed.get(key)]


def nearest_first(experiences: Iterable[Experience], spec: WorkloadSpec, devices: Iterable[str]) -> list[Experience]:
    """Return experience sorted by similarity: first that of these devices, then by `distance`."""
    here = set(devices)

    def place(each: Experience) -> tuple[bool, float, str]:
        return here.isdisjoint(each.devices), distance(each.arguments, spec.arguments), each.source

    return sorted(experiences, key=place)

"""The header of a run's journal, as far as it is known before there is a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atune.journal.events import SCHEMA
from atune.model.device import DeviceInfo, Target
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.search.prior import Chosen, prior_setting
from atune.workload.workload import WorkloadSpec


def header_fields(
    spec: WorkloadSpec,
    target: Target,
    devices: Sequence[DeviceInfo],
    versions: Mapping[str, str],
    *,
    strategy: str,
    compile: CompileSettings,
    benchmark: BenchmarkSettings,
    pipeline: bool,
    seed: int,
    budget: Budget,
    prior: Chosen,
) -> dict[str, Any]:
    """Return the fields of `RunStarted` for a run with these options."""
    return {
        "schema": SCHEMA,
        "workload": spec.name,
        "origin": spec.origin,
        "fingerprint": spec.fingerprint,
        "kernel": spec.kernel,
        "space": spec.identity(),
        "total": spec.total,
        "points": spec.points,
        "default": spec.default,
        "arguments": spec.arguments,
        "flops": spec.flops,
        "bytes": spec.bytes,
        "target": target,
        "devices": tuple(device.id for device in devices),
        "strategy": strategy,
        "settings": {
            "compile": msgspec.to_builtins(compile),
            "benchmark": msgspec.to_builtins(benchmark),
            "pipeline": pipeline,
            "seed": seed,
            "budget": budget.as_data(),
            **prior_setting(prior),
        },
        "versions": versions,
    }

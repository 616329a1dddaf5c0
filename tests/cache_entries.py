"""Keys and events of runs that never were, for the tests of the result cache. Imports neither tilelang nor torch."""

from __future__ import annotations

from typing import Any

import msgspec

from atune.journal.events import (
    BenchmarkFailed,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    Event,
    RunFinished,
    RunStarted,
)
from atune.model.artifact import StaticFacts
from atune.model.candidate import config_key, space_hash
from atune.model.device import Target
from atune.model.measurement import Timing
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.storage.result_key import ResultKey


def key(**changes: Any) -> ResultKey:
    parts: dict[str, Any] = {
        "kernel": "gemm", "source": "c", "fingerprint": "f", "problem": {"M": 64}, "device": "CPU", "target": "c",
        "versions": {"atune": "1"}, "measuring": {"n_repeat": 3}, "search": {"n_final": 5}, "space": "s",
    }  # fmt: skip
    return ResultKey(**{**parts, **changes})


def events(*latencies: float | None, finished: bool = True) -> list[Event]:
    """Events of a run whose candidate i has `latencies[i]`, or failed its check where that is None."""
    configs = [{"block": 16 << i} for i in range(len(latencies))]
    header = RunStarted(
        seq=0, time=1.0, mono=0.0, schema=1, workload="gemm", origin="", fingerprint="f",
        code="f", problem={"M": 64}, models=("CPU",), space=space_hash(map(config_key, configs)), total=len(configs),
        arguments={"M": 64}, target=Target("c"), devices=("cpu",), strategy="exhaustive", versions={"atune": "1"},
        settings={
            "compile": msgspec.to_builtins(CompileSettings()), "benchmark": msgspec.to_builtins(BenchmarkSettings()),
            "seed": 0, "budget": {},
        },
    )  # fmt: skip
    found: list[Event] = [header]

    def add(kind: type[Event], /, **fields: Any) -> None:
        found.append(kind(seq=len(found), time=1.0, mono=float(len(found)), **fields))

    for i, latency in enumerate(latencies):
        add(CandidateProposed, index=i, key=config_key(configs[i]), config=configs[i])
        add(CandidateLowered, index=i, code_key=f"code{i}", facts=StaticFacts(), seconds=0.1)
        if latency is None:
            add(BenchmarkFailed, index=i, device="cpu", kind="mismatch", message="wrong")
        else:
            add(CandidateMeasured, index=i, device="cpu", timing=Timing.of([latency * 1e3], "events"), checked=True)
    if finished:
        add(RunFinished, wall_s=1.0, reason="exhausted")
    return found

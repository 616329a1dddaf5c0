"""A stand-in for the engine, with which nothing is compiled and nothing measured; and fixtures of decorated kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from decorated import TUNING, scale_jit

import atune
from atune.frontends import autotuned, cached_tune, winners
from atune.frontends.cached_tune import CachedWork
from atune.frontends.tuner import RunPlan
from atune.journal.events import CandidateLowered, CandidateMeasured, CandidateProposed, RunFinished
from atune.journal.result import Result
from atune.model.artifact import Roles, StaticFacts
from atune.model.candidate import config_key
from atune.model.measurement import Timing
from atune.workload.workload import Workload


class Engine:
    """Stands in for `tune`: the last configuration wins. `runs` has the workload and options of each call."""

    def __init__(self) -> None:
        self.runs: list[tuple[Workload, dict[str, Any]]] = []
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.refuses: set[int] = set()
        """Blocks that are not measured."""

    async def __call__(self, workload: Workload, plan: RunPlan) -> Result:
        self.runs.append((workload, {**vars(plan), **vars(plan.settings)}))
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        work, now = CachedWork(workload, plan), float(len(self.runs))
        spec, keys = work.spec, [config_key(config) for config in work.spec.configs]
        events: list[Any] = [msgspec.structs.replace(work.header, time=now)]
        checked = bool(workload.reference or workload.check)
        for i, config in enumerate(spec.configs):
            if config.get("block") in self.refuses:
                continue
            common: dict[str, Any] = {"time": now, "mono": 0.0, "index": i}
            timing = Timing.of([1e3 * (len(keys) - i)], "perf_counter")
            keyed = {"code_key": keys[i], "ir_digest": work.digest(spec.arguments, config)}
            n = len(events)
            events += [
                CandidateProposed(seq=n, key=keys[i], config=config, **common),
                CandidateLowered(seq=n + 1, **keyed, facts=StaticFacts(), seconds=0.0, **common),
                CandidateMeasured(seq=n + 2, device="cpu", timing=timing, checked=checked, **common),
            ]
        events.append(
            RunFinished(seq=len(events), time=now, mono=0.0, wall_s=0.0, reason="exhausted", roles=Roles((1,)))
        )
        journal = None if plan.begun is None else plan.begun[0]
        for event in events:
            if plan.on_event is not None:
                plan.on_event(event)
            if journal is not None:
                journal.append(event)
        if journal is not None and plan.cache is not None:
            plan.cache.add(journal.path)
        return Result.from_events(events)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(cached_tune, "tune_planned", fake)
    monkeypatch.setattr(winners, "tune_planned", fake)
    return fake


@pytest.fixture
def unbuilt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The stand-in, for tests that call no kernel: of a winner, no worker compiles one."""
    made = SimpleNamespace(prim_func=None, get_kernel_source=lambda: "")
    monkeypatch.setattr(autotuned, "with_library", lambda *_: made)
    return engine


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Any]:
    def decorate(kernel: Any = scale_jit, space: Any = None, **options: Any) -> Any:
        space = {"block": [16, 64]} if space is None else space
        return atune.autotune(kernel, **{"space": space, "tuning": TUNING, "cache": tmp_path / "cache", **options})

    return decorate

"""How a run, or a further part of one, begins: the work, advice for it, the plan, and the record of the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec

from atune.engine.interfaces import Machine
from atune.engine.plan import Plan, check_same_work, finished, planned
from atune.engine.run_state import Run
from atune.engine.screen import LayoutChoice, layout_choice
from atune.engine.search import forest
from atune.engine.search import strategies as registry
from atune.engine.search.devices import Figures
from atune.engine.search.interface import Guarded, Strategy
from atune.engine.search.prior import figures_for
from atune.journal.events import SCHEMA, BenchmarkFailed, Event, JournalRepaired, RunResumed, RunStarted, Warned
from atune.model.candidate import Advice
from atune.model.device import DeviceInfo, Target, common_limits
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.workload.workload import WorkloadSpec

AT_ONCE = 500
"""Up to this many configurations, planning runs in the event loop; above, in a thread."""

T = TypeVar("T")
Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Returns advice from other runs, and remarks for the user. Raises `UsageError`."""


class Recalled(NamedTuple):
    """What is kept of earlier runs of the same work: events that this run need not repeat, or advice.

    `whole`: the events are a whole run, so that nothing is left to do.
    """

    events: Sequence[Event] = ()
    whole: bool = False
    advice: tuple[Advice, ...] = ()


Recall = Callable[[RunStarted, WorkloadSpec], Recalled]
CacheUse = Literal["", "off", "refresh"]
"""How a run uses the result cache: as usual; not at all; or anew, though its result may be known."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What a run is asked for. `strategy`: a name, or the user's own; None for the default one."""

    compile: CompileSettings = field(default_factory=CompileSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    strategy: str | Strategy | None = None
    prior: bool = True
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    pipeline: bool = True
    accept: Sequence[str] = ()
    advise: Advise | None = None
    """Configurations to try before others, also beyond a number of candidates; those outside of the space are not."""
    recall: Recall | None = None
    cache: CacheUse = ""

    def strategy_in(self, spec: WorkloadSpec, header: RunStarted | None, figures: Figures | None) -> str:
        """Return the name that the header records for the strategy; a resumed run keeps that of its `header`."""
        if isinstance(self.strategy, Strategy):
            return self.strategy.name
        if self.strategy is not None and self.strategy != registry.AUTO:
            return self.strategy
        if header is not None:
            return header.strategy
        return registry.chosen(
            spec.total,
            self.budget.most(spec.total),
            limited=self.budget.limited,
            pipeline=self.pipeline,
            prior=self.prior and figures is not None,
        )

    def header(
        self,
        spec: WorkloadSpec,
        target: Target,
        devices: Sequence[DeviceInfo],
        versions: Mapping[str, str],
        strategy: str,
    ) -> dict[str, Any]:
        """Return the fields of `RunStarted` that are known before there is a plan."""
        return {
            "schema": SCHEMA,
            "workload": spec.name,
            "origin": spec.origin,
            "fingerprint": spec.fingerprint,
            "code": spec.code,
            "problem": spec.problem,
            "kernel": spec.kernel,
            "space": spec.space,
            "total": spec.total,
            "points": spec.points,
            "default": spec.default,
            "baseline": spec.baseline,
            "refused": spec.refused,
            "no_default": spec.no_default,
            "arguments": spec.arguments,
            "asks": spec.asks,
            "flops": spec.flops,
            "bytes": spec.bytes,
            "target": target,
            "devices": tuple(device.id for device in devices),
            "models": tuple(sorted({device.name for device in devices})),
            "strategy": strategy,
            "settings": {
                "compile": msgspec.to_builtins(self.compile),
                "benchmark": msgspec.to_builtins(self.benchmark),
                "pipeline": self.pipeline,
                "seed": self.seed,
                "budget": msgspec.to_builtins(self.budget),
                **({} if self.prior else {"prior": "off"}),
                **({"cache": self.cache} if self.cache else {}),
            },
            "versions": versions,
        }


class Start:
    """The start of a run on `machine`."""

    def __init__(self, machine: Machine, run: Run, settings: EngineSettings) -> None:
        self.machine, self.run, self.recorder, self.settings = machine, run, run.recorder, settings
        self.strategy: Guarded | None = None
        """None until it is made, which waits for the survey of the space if there is one."""
        self.figures: Figures | None = None
        self.recalled = False
        """Whether the run's result was found, so that nothing is left to do."""
        self.layouts: LayoutChoice | None = None
        """Chooses layouts; None where all are tried."""
        self._drawn_by = settings.seed
        """The seed of the strategy, and of the draw from a large space: that of the header."""

    async def preload(self) -> None:
        """Import what the strategy may need, while the machine starts."""
        settings = self.settings
        if registry.may_be_forest(settings.strategy, settings.budget, pipeline=settings.pipeline):
            await anyio.to_thread.run_sync(forest.preload, abandon_on_cancel=True)

    async def begin(self) -> Plan | None:
        """Find out what to tune and where, and record the start. Returns no plan if a resumed run has no work left."""
        specs: list[WorkloadSpec] = []
        header = self.recorder.state.header
        self._drawn_by = self.settings.seed if header is None else int(header.settings.get("seed") or 0)

        async def describe() -> None:
            specs.append(await self.machine.describe(seed=self._drawn_by))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(describe)
            target, devices = await self.machine.discover()
        spec = specs[0]
        self.run.spec, self.run.limits = spec, common_limits(devices)
        plan = await self._plan(spec, target, devices)
        if plan is not None:
            self.run.outcomes.sync_soon()
        return plan

    async def _plan(self, spec: WorkloadSpec, target: Target, devices: Sequence[DeviceInfo]) -> Plan | None:
        """Plan and record the start. Returns None if a resumed run has no work left."""
        state, settings, before = self.recorder.state, self.settings, self.recorder.state.header
        self.figures = figures_for(target, devices)
        prior = settings.prior and self.figures is not None
        name = settings.strategy_in(spec, before, self.figures)
        versions = self.machine.versions()
        header = await computed(spec, partial(settings.header, spec, target, devices, versions, name))
        started = RunStarted(seq=0, time=0, mono=0.0, **header)
        remarks, accepted, advice = list[str](), tuple[str, ...](), tuple[Advice, ...]()
        if before is None and settings.recall is not None:
            found = await anyio.to_thread.run_sync(settings.recall, started, spec)
            if found.events:
                await self.recorder.take_over(found.events)
            self.recalled, before, advice = found.whole, state.header, found.advice
            if found.whole:
                return None
        if before is not None:
            accepted, advice = check_same_work(state, started, devices, settings.accept), before.advice
        elif settings.advise is not None:
            more, remarks = await anyio.to_thread.run_sync(settings.advise, spec, devices)
            advice += more
        own = None if isinstance(settings.strategy, str) else settings.strategy
        default = spec.default if before is None else before.default
        planning = partial(
            planned, spec, state, own or name, seed=self._drawn_by, budget=settings.budget, default=default,
            advice=advice, prior=prior,
        )  # fmt: skip
        plan = await computed(spec, planning)
        most = settings.compile.layouts
        self.layouts = await computed(spec, partial(layout_choice, spec, plan.candidates, most), quick=most is None)
        if not plan.to_survey:
            quick = not registry.learns(name)  # others may import libraries, and fit models
            self.strategy = await computed(spec, partial(plan.strategy, state), quick=quick)
        if before is not None and finished(state, settings.budget) and plan.empty:
            return None
        await self.machine.prepare(plan.to_compile)
        if before is None:
            self.recorder.emit(RunStarted, **header, advice=advice)
            remarks = [*spec.remarks, *remarks]
        else:
            self._record_resumed(plan, {"versions": versions, "accepted": accepted})
            if settings.advise is not None and not before.advice:
                remarks = ["the run began without advice and continues without it: warm is ignored"]
        for remark in remarks:
            self.recorder.emit(Warned, message=remark)
        return plan

    def _record_resumed(self, plan: Plan, how: Mapping[str, Any]) -> None:
        """Record that a further part begins, and settle the candidates that need no work."""
        state, emit, journal = self.recorder.state, self.recorder.emit, self.recorder.journal
        if journal is not None and journal.torn_bytes:
            emit(JournalRepaired, cut_bytes=journal.torn_bytes)
        emit(RunResumed, part=state.resumed.part + 1 if state.resumed else 1, **how)
        for index, device in plan.suspects.items():
            message = "suspect: the whole program died twice while this candidate was being measured"
            emit(BenchmarkFailed, index=index, device=device, kind="suspect", message=message)


async def computed(spec: WorkloadSpec, compute: Callable[[], T], *, quick: bool = True) -> T:
    """Return the result of `compute`. It runs in a thread if it may take long, to keep the event loop free."""
    if len(spec.configs) <= AT_ONCE and quick:
        return compute()
    return await anyio.to_thread.run_sync(compute, abandon_on_cancel=True)

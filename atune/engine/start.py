"""How a run, or a further part of one, begins: the work, advice for it, the plan, and the record of the start.

A `Plan` is a pure function of the journal's state and the current workload: everything for a new run, or what the
journal of a resumed run lacks.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from atune.engine.devices import Figures
from atune.engine.enough import Enough
from atune.engine.interfaces import CompileWorker, Machine
from atune.engine.prior import CAN_RUN, figures_for, survey_fields
from atune.engine.run_state import Run
from atune.engine.screen import LayoutChoice, layout_choice
from atune.engine.strategies import AUTO, check_given, chosen, make_strategy, uses_prior
from atune.engine.strategy import Guarded, Searched, Strategy, latency_or_reason
from atune.errors import JournalError, UsageError, warn_caller
from atune.journal.events import SCHEMA, BenchmarkFailed, Event, JournalRepaired, RunResumed, RunStarted, Warned
from atune.journal.state import Entry, State, all_proposed, finished, proposed
from atune.model.artifact import Elaborated
from atune.model.candidate import BASELINE, RESERVED, Advice, Candidate, config_key, numbered, with_tuples
from atune.model.device import DeviceInfo, DeviceLimits, Target
from atune.model.jobs import ElaborateJob
from atune.model.settings import MEASURING, BenchmarkSettings, Budget, CompileSettings
from atune.workload.workload import WorkloadSpec

OF_THE_SPEC = (
    "origin", "fingerprint", "code", "problem", "kernel", "space", "total", "points", "default", "baseline", "refused",
    "no_default", "arguments", "layout_axes", "asks", "flops", "bytes", "torch",
)  # fmt: skip
"""Fields of the workload's description that a header has, under the same names."""

OURS = ("/atune", "/atune/__main__.py")
"""How the path of the command ends, as Python gives it."""
Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Returns advice from other runs, and remarks for the user. Raises `UsageError`."""


class KnownResult(NamedTuple):
    """Results of earlier runs of the same work: events that this run need not repeat, or advice.

    `whole`: the journal of a whole run, whose events these are, so that nothing is left to do.
    """

    events: Sequence[Event] = ()
    whole: str = ""
    advice: tuple[Advice, ...] = ()


POLL_S = 0.1
"""Seconds between two looks whether another run of the same work has ended."""
Kernels = Callable[[Iterable[Candidate]], Mapping[int, str]]
"""Returns the `Lowered.ir_digest` of candidates, by index, as the run's workers elaborate them now. For a thread."""
Recall = Callable[[RunStarted, WorkloadSpec, Kernels, str], KnownResult | None]
"""Returns what earlier runs found; None while another run does the same work. Last comes the journal's path."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of a run. Raises `UsageError` for a strategy that is none, or cannot learn without `pipeline`."""

    compile: CompileSettings = field(default_factory=CompileSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    strategy: str | Strategy | None = None
    """A name, or the user's own; None for the default one."""
    prior: bool = True
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    pipeline: bool = True
    accept: Sequence[str] = ()
    advise: Advise | None = None
    """Configurations to try before others, also beyond a number of candidates; those outside of the space are not."""
    recall: Recall | None = None
    journal: str = ""
    cached: bool = True
    """Whether look-ups in the result cache may find the run."""

    def __post_init__(self) -> None:
        check_given(self.strategy, pipeline=self.pipeline)

    def strategy_in(self, spec: WorkloadSpec, header: RunStarted | None, figures: Figures | None) -> str:
        """Return the name that the header records for the strategy; a resumed run keeps that of its `header`."""
        if isinstance(self.strategy, Strategy):
            return self.strategy.name
        if self.strategy is not None and self.strategy != AUTO:
            return self.strategy
        if header is not None:
            return header.strategy
        most, prior = self.budget.most(spec.total), self.prior and figures is not None
        return chosen(spec.total, most, limited=self.budget.limited, pipeline=self.pipeline, prior=prior)

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
            **{name: getattr(spec, name) for name in OF_THE_SPEC},
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
                **({} if self.cached else {"cache": "off"}),
                **({"command": shlex.join(["atune", *sys.argv[1:]])} if "".join(sys.argv[:1]).endswith(OURS) else {}),
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
        self.recalled = ""
        """The journal that has the run's result, so that nothing is left to do; empty where none was found."""
        self.layouts: LayoutChoice | None = None
        """Chooses layouts; None where all are tried."""
        self._drawn_by = settings.seed
        """The seed of the strategy, and of the draw from a large space: that of the header."""

    @functools.cached_property
    def compile_workers(self) -> Sequence[CompileWorker]:
        """The machine's compile workers, once it has found its devices."""
        return self.machine.compile_workers()

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
        self.run.spec, self.run.limits = spec, devices[0].limits if devices else DeviceLimits()
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
        header = settings.header(spec, target, devices, versions, name)
        started = RunStarted(seq=0, time=0, mono=0.0, **header)
        remarks, accepted, advice = list[str](), tuple[str, ...](), tuple[Advice, ...]()
        resumes = before is not None
        if before is None and settings.recall is not None:
            kernels = functools.partial(anyio.from_thread.run, cast(Any, self._kernels))
            recall = functools.partial(settings.recall, started, spec, kernels, settings.journal)
            look = functools.partial(anyio.to_thread.run_sync, recall, abandon_on_cancel=True)
            if (found := await look()) is None:
                with suppress(Warning):  # where the program makes errors of warnings
                    warn_caller(f"another run tunes {spec.name} now: this one waits for its result", RuntimeWarning)
            while found is None and not self.run.stopping:
                await anyio.sleep(POLL_S)
                found = await look()
                await self.recorder.go_on(())  # the wait does not count
            found = found or KnownResult()
            if not found.whole and found.events and await self._other_kernels(State.of(found.events)):
                found = KnownResult()
            if found.events:
                await self.recorder.take_over(found.events)
            self.recalled, before, advice = found.whole, state.header, found.advice
            if found.whole:
                return None
        if before is not None:
            accepted, advice = check_same_work(state, started, devices, settings.accept), before.advice
            if resumes and not any(text.startswith(("kernel", "versions")) for text in accepted):
                others = await self._other_kernels(state)
                accepted += all_accepted(others, settings.accept, "the journal is of other kernels", ANOTHER)
        elif settings.advise is not None:
            more, remarks = await anyio.to_thread.run_sync(settings.advise, spec, devices, abandon_on_cancel=True)
            advice += more
        default = spec.default if before is None else before.default
        given = name if isinstance(settings.strategy, str) or settings.strategy is None else settings.strategy

        def planning() -> Plan:
            plan = Plan(
                spec, state, given, seed=self._drawn_by, budget=settings.budget, default=default, advice=advice,
                prior=prior,
            )  # fmt: skip
            self.layouts = layout_choice(spec, plan.candidates, settings.compile.layouts)
            if not plan.to_survey:
                self.strategy = plan.strategy(state)
            return plan

        plan = await anyio.to_thread.run_sync(planning, abandon_on_cancel=True)
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

    async def _kernels(self, candidates: Iterable[Candidate]) -> Mapping[int, str]:
        left, found = [*candidates], dict[int, str]()

        async def serve(worker: CompileWorker) -> None:
            while left:
                answers = await worker.run(ElaborateJob((left.pop(),), digests=True))
                if isinstance(answers, list) and isinstance(answers[0], Elaborated):
                    found[answers[0].index] = answers[0].ir_digest

        async with anyio.create_task_group() as tasks:
            for worker in self.compile_workers:
                tasks.start_soon(serve, worker)
        return found

    async def _other_kernels(self, state: State) -> list[tuple[str, str]]:
        """Return what differs, as `_differences` does, between the kernels that a journal has lowered and those now."""
        lowered = [entry for entry in state.entries.values() if entry.lowered]
        now = await self._kernels(Candidate(one.index, one.key, one.config) for one in lowered if one.ir_digest)
        if other := [one.index for one in lowered if one.ir_digest and now.get(one.index) != one.ir_digest]:
            what = f"{len(other)} of {len(lowered)} candidates, such as {other[0]}, are other kernels now"
            return [("kernel", f"{what}: a helper, a value or an environment variable that they use has changed")]
        if unknown := [one.index for one in lowered if not one.ir_digest]:
            what = f"the journal does not identify the kernels of {len(unknown)} candidates, such as {unknown[0]}"
            return [("kernel", f"{what}: an older atune wrote it, or they include files of yours")]
        return []

    def _record_resumed(self, plan: Plan, how: Mapping[str, Any]) -> None:
        """Record that a further part begins, and settle the candidates that need no work."""
        state, emit, journal = self.recorder.state, self.recorder.emit, self.recorder.journal
        torn_bytes = 0 if journal is None else journal.torn_bytes
        emit(RunResumed, part=state.resumed.part + 1 if state.resumed else 1, **how)
        if torn_bytes:
            emit(JournalRepaired, cut_bytes=torn_bytes)
        for index, device in plan.suspects.items():
            message = "suspect: the whole program died twice while this candidate was being measured"
            emit(BenchmarkFailed, index=index, device=device, kind="suspect", message=message)


PARTS = ("kernel", "target", "device", "versions", "settings")
"""Parts of the work that may differ when a run is resumed; each can be accepted by its name."""
ANOTHER = "Give another journal"
DEATHS = 2
"""A candidate is suspect after the whole program died this many times while it was being measured."""


class Plan:
    """The work of a run over `spec`, or of a further part of one: what `state` lacks. Indices are the journal's.

    `given`: the strategy's name, or the user's own. `default`: the default configuration's index. `advice`:
    configurations to try before what the strategy proposes. `prior`: whether there is one.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        state: State,
        given: str | Strategy,
        *,
        seed: int,
        budget: Budget,
        default: int | None,
        advice: Sequence[Advice],
        prior: bool,
    ) -> None:
        self.given, self.seed, self.budget, self.advice, self.default_index = given, seed, budget, advice, default
        self.candidates = {one.index: one for one in numbered(spec.configs)}
        """All candidates of the space, by index."""
        tried, before, total = state.entry(BASELINE), proposed(state), self.total
        self.baseline: Candidate | None = None
        """The default configuration, where the space does not list it."""
        if tried.key:  # as the journal has it, whatever the default is by now
            self.baseline = Candidate(BASELINE, tried.key, tried.config)
        elif default == BASELINE and spec.baseline is not None:
            self.baseline = Candidate(BASELINE, config_key(spec.baseline), with_tuples(spec.baseline))
        over = budget.used_up(state.wall_s) or all_proposed(state, budget)
        further = [entry.index for entry in before if not entry.further_layout]
        self.baseline_left = not over and self.baseline is not None and not tried.key
        """Whether the baseline must still be proposed."""
        self.proposable = 0 if over else max(0, min(total, budget.most(total) or total) - len(further))
        """How many candidates the strategy may still propose."""
        self.to_survey = prior and state.surveyed is None and uses_prior(given, total)
        """Whether the space must be surveyed before the strategy is made."""
        self.redo = list[Candidate]()
        """Candidates that an earlier part proposed and that have no outcome."""
        self.suspects = dict[int, str]()
        """Candidates that must not be tried again, with their device."""
        self.codes = dict[str, int]()
        """Code keys that have an outcome, with the candidate that has it."""
        self._sort_out(state, [*before, tried] if tried.key else before)
        self.begun = [*(candidate.index for candidate in self.redo), *further[-1:]]
        """Candidates, the last of the configurations among them, whose further layouts may not have been proposed."""

    def _sort_out(self, state: State, before: Sequence[Entry]) -> None:
        """Decide for each candidate that was proposed `before` what to do with it."""
        members: dict[int, list[Entry]] = {}
        for entry in before:
            members.setdefault(state.first(entry.index).index, []).append(entry)
        for first, group in members.items():
            deadly = [entry.index for entry in group if state.deaths(entry.index) >= DEATHS]
            if state.entry(first).outcome is None and not deadly:
                self.redo.append(self.candidate(group[0].index))
                continue
            if state.entry(first).outcome is None:
                self.suspects[deadly[0]] = state.measuring.get(deadly[0], "")
            self.codes.update((entry.code_key, first) for entry in group if entry.code_key)

    @property
    def total(self) -> int:
        return len(self.candidates)

    @property
    def default(self) -> list[Candidate]:
        index = self.default_index
        return [] if index is None or (index == BASELINE and self.baseline is None) else [self.candidate(index)]

    def candidate(self, index: int) -> Candidate:
        """Return a candidate of the space, or the baseline."""
        return self.baseline if self.baseline is not None and index == BASELINE else self.candidates[index]

    def strategy(self, state: State) -> Guarded:
        """Return the strategy before its first `ask`, with the survey of the space and all outcomes in `state`.

        Raises `UsageError` if it does not fit the space.
        """
        candidates, known = self.candidates, survey_fields(state.surveyed)
        default = self.default_index if self.default_index in candidates else None
        left = {index: one.key for index, one in candidates.items() if not state.entry(index).surveyed}
        unfit = {index for index, facts in known.get("facts", {}).items() if facts.get(CAN_RUN) == 0}
        last = [index for index in left if index in unfit and index != default]
        keys = {index: left[index] for index in left.keys() - {*last}} if len(last) < len(left) else left
        most = self.budget.most(len(candidates))
        budget = None if most is None else min(most, len(candidates))
        configs = {index: candidates[index].config for index in sorted(keys)}
        first = advised(self.advice, keys, budget)
        searched = Searched(configs, self.seed, budget, **known, default=default, advised=first)
        if isinstance(self.given, str):
            own = make_strategy(self.given, searched)
        else:
            own = self.given
            getattr(own, "begin", lambda _: None)(searched)
        enough = Enough() if self.budget.auto and searched.prior else None
        strategy = Guarded(own, candidates, searched.first, last, enough)
        strategy.tell_all(past for past in _past(state) if past[0] in candidates)
        for index in self.suspects.keys() & candidates.keys():
            strategy.tell(index, None, "suspect")
        return strategy

    @property
    def to_compile(self) -> int:
        """How many candidates will be compiled, at most."""
        return len(self.redo) + self.proposable + self.baseline_left

    @property
    def empty(self) -> bool:
        return not (self.proposable or self.redo or self.suspects or self.baseline_left)


def check_same_work(
    state: State, now: RunStarted, devices: Sequence[DeviceInfo], accept: Sequence[str]
) -> tuple[str, ...]:
    """Return the accepted differences between the journal's work and `now`, the header that a new run would have.

    Raises `JournalError` with the others, and if the space differs.
    """
    header = state.header
    assert header is not None
    both = header.baseline is not None and now.baseline is not None
    if header.space != now.space or (both and bool(header.refused) != bool(now.refused)):
        now_has = f"has {now.total:,}" if header.total != now.total else "has others"
        if header.space == now.space:
            now_has = "its constraints judged the default otherwise"
        raise JournalError(
            f"the journal records another space: it had {header.total:,} candidates and {now_has}. Give the space as "
            "it was, or begin a new journal that takes this one as advice (--warm, warm=)"
        )
    found = _differences(header, state, now, devices)
    return all_accepted(found, accept, "the journal records other work, and cannot be resumed", ANOTHER)


def all_accepted(found: Sequence[tuple[str, str]], accept: Sequence[str], why: str, instead: str) -> tuple[str, ...]:
    """Return what is `found`, parts with a sentence, as sentences. Raises `JournalError` unless all is accepted.

    `why`, `instead`: the beginning of the message, and what else there is to do.
    """
    if refused := [(part, text) for part, text in found if part not in accept]:
        lines = "".join(f"\n  {part}: {text}" for part, text in refused)
        options = " ".join(f"--accept {part}" for part in dict.fromkeys(part for part, _ in refused))
        raise JournalError(f"{why}:{lines}\n{instead}, or accept this: {options} (from Python: accept=[…])")
    return tuple(f"{part}: {text}" for part, text in found)


def check_code(compile: CompileSettings, config: Mapping[str, Any], accept: Sequence[str]) -> None:
    """Raise `JournalError` for settings and a configuration of a journal that may hold a stranger's code.

    What changes the compiled code, such as a flag, may also load a plugin or run a program: it must be the default, or
    be accepted.
    """
    usual = CompileSettings()
    given = {name: getattr(compile, name) for name in MEASURING["compile"]}
    found = [(name, value) for name, value in given.items() if value != getattr(usual, name)]
    found += [(name, value) for name in sorted(RESERVED) if (value := config.get(name)) is not None]
    listed = [("settings", f"{name} is {value!r}") for name, value in found]
    all_accepted(listed, accept, "the journal has settings that can run programs", "Give them yourself")


def advised(advice: Iterable[Advice], keys: Mapping[int, str], budget: int | None) -> list[int]:
    """Return the candidates to try first, by index: the best of each source, the second best of each, and so on.

    `keys`: the candidates' configuration keys. They take half of the `budget` at most.
    """
    at = {key: index for index, key in keys.items()}
    ranks = zip_longest(*([at.get(config_key(config)) for config in each.first] for each in advice))
    found = [*dict.fromkeys(index for rank in ranks for index in rank if index is not None)]
    return found if budget is None else found[: max(1, budget // 2)]


def _differences(
    header: RunStarted, state: State, now: RunStarted, devices: Sequence[DeviceInfo]
) -> list[tuple[str, str]]:
    """Return (part, sentence) for each difference between the work and the header, except for the space."""
    found: list[tuple[str, str]] = []
    tried, own = state.entry(BASELINE).config, with_tuples(now.baseline or {})
    for name in sorted(RESERVED):
        if (was := tried.get(name)) is not None and was != own.get(name):
            found.append(("settings", f"the default's {name} was {was!r} and is {own.get(name)!r}"))
    if config_key(header.arguments) != config_key(now.arguments):
        found.append(("kernel", f"the problem was {_values(header.arguments)} and is {_values(now.arguments)}"))
    elif header.fingerprint != now.fingerprint or (header.code and header.code != now.code):
        found.append(
            ("kernel", "the source of the kernel, its inputs or its reference, or how results are checked, changed")
        )
    if header.target != now.target:
        found.append(("target", f"it was {header.target} and is {now.target}"))
    before = {device.name for device in state.devices.values()}
    if before and (new := sorted({device.name for device in devices} - before)):
        found.append(("device", f"measured on {', '.join(sorted(before))} before, and now on {', '.join(new)}"))
    versions = state.resumed.versions if state.resumed else header.versions
    for name in sorted(versions.keys() | now.versions.keys()):
        was, here = versions.get(name, "not there"), now.versions.get(name, "not there")
        if was != here:
            found.append(("versions", f"{name} was {was} and is {here}"))
    if (header.strategy, header.settings.get("seed")) != (now.strategy, now.settings.get("seed")):
        was = f"{header.strategy} with seed {header.settings.get('seed')}"
        found.append(("settings", f"the strategy was {was} and is {now.strategy} with seed {now.settings.get('seed')}"))
    if header.torch != now.torch:
        usual = "its own defaults"
        found.append(("settings", f"torch computed by {header.torch or usual} and computes by {now.torch or usual}"))
    for group, names in MEASURING.items():
        one, other = header.settings.get(group, {}), now.settings.get(group, {})
        for name in names:
            if name in one and with_tuples({name: one[name]}) != with_tuples({name: other.get(name)}):
                found.append(("settings", f"{name} was {one[name]!r} and is {other.get(name)!r}"))
    return found


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Return `parts` as a tuple. Raises `UsageError` for a name that is not in `PARTS`."""
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable) or not all(part in PARTS for part in parts):
        raise UsageError(f"accept: give some of {', '.join(PARTS)}, got {parts!r}")
    return tuple(parts)


def _values(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "without arguments"


def _past(state: State) -> list[tuple[int, float | None, str]]:
    """Return the outcomes so far in their order, as strategies get them: index, latency and reason."""
    seqs = {one.index: outcome.seq for one in proposed(state) if (outcome := state.outcome(one.index)) is not None}
    return [(index, *latency_or_reason(state, index)) for index in sorted(seqs, key=seqs.__getitem__)]

"""Measure kernels that nobody trusts, by the reference, the inputs and the default configuration of a trusted task."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import anyio.to_thread
import msgspec

from atune.errors import NoWinner, UsageError
from atune.frontends.problems import Problems
from atune.frontends.run_options import MeasureOptions
from atune.frontends.tuner import RunPlan, Tuner, named_work
from atune.journal.events import CandidateMeasured
from atune.journal.result import Result
from atune.journal.state import State
from atune.model.candidate import BASELINE
from atune.model.folders import make_private_folder
from atune.model.measurement import Timing, fastest_ms, median_interval, ratio_interval
from atune.model.options import complete, documents, refuse_unknown
from atune.workers.foreign import ForeignMachine
from atune.workers.local_machine import LocalMachine, shared_processes
from atune.workers.result_cache import ResultCache
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload

Status = Literal["passed", "wrong", "compile_error", "crashed", "timeout", "out_of_memory", "refused"]
STATUSES: Mapping[str, Status] = {
    "mismatch": "wrong", "non_finite": "wrong", "unwritten": "wrong", "out_of_bounds": "wrong", "timeout": "timeout",
    "lower": "compile_error", "codegen": "compile_error", "compile": "compile_error", "hopeless": "timeout",
    "out_of_memory": "out_of_memory", "refused": "refused",
}  # fmt: skip
"""The status for each kind of failure; ``crashed`` for the others."""
Interval = tuple[float, float, float]
"""Low, median and high: a median with its 95 % confidence interval."""
BATCH = 128
"""Largest number of candidates in a run."""
NATIVE = "not isolated: its machine code runs in the process that checks and times it (target c)"
NO_FINAL = "no final"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement about a candidate for one problem.

    `kind`, `reason`, `detail`: the failure. `speedup`: over the task's default, by rounds of the interleaved final.
    `floor_ms`: the least latency that the device's peaks allow. `checked_calls`: calls whose outputs were compared,
    with all timed calls of the final. `fresh_inputs`: whether each of them had other inputs. `python`, `native`: how
    the candidate's Python and its machine code were isolated.
    """

    problem: dict[str, Any]
    status: Status
    kind: str = ""
    reason: str = ""
    detail: str = ""
    latency_ms: Interval | None = None
    baseline_ms: Interval | None = None
    reference_ms: Interval | None = None
    speedup: Interval | None = None
    reference_speedup: Interval | None = None
    floor_ms: float | None = None
    checked_calls: int = 0
    fresh_inputs: bool = False
    python: str = ""
    native: str = ""
    device: str = ""
    journal: str = ""


class MeasureResult(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement about a candidate: the status for the first of `problems` that it does not pass, or ``passed``.

    `digest`: SHA-256 of its text. Latency and speed-ups are geometric means over the problems, as are their bounds.
    """

    candidate: str
    digest: str
    task: str
    status: Status
    reason: str
    problems: tuple[Evaluation, ...]
    latency_ms: Interval | None = None
    speedup: Interval | None = None
    reference_speedup: Interval | None = None


class Program(NamedTuple):
    """A candidate: its text, and the name of its kernel function or ``""``."""

    text: str
    name: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()


@documents(MeasureOptions)
async def measure(
    candidate: str | os.PathLike[str], task: Workload | FileRef | str, **options: Unpack[MeasureOptions]
) -> MeasureResult:
    """Check and time a kernel that nobody trusts, beside the default configuration of `task`.

    Whatever the candidate does is a status. Raises `UsageError` for mistakes of the caller and of the task.

    Parameters
    ----------
    candidate
        ``"FILE.py"``, ``"FILE.py:NAME"`` or a program's text. Its kernel function gets the problem's arguments.
    task
        A `Workload` with a reference, or ``"FILE.py:NAME"``. It is trusted.
    {options}
    """
    return (await measure_many([candidate], task, **options))[0]


@documents(MeasureOptions)
async def measure_many(
    candidates: Iterable[str | os.PathLike[str]], task: Workload | FileRef | str, **options: Unpack[MeasureOptions]
) -> list[MeasureResult]:
    """Measure each of `candidates` like `measure`, and return the results in their order.

    Candidates compile in parallel, and take turns on the devices. Equal texts are measured once.

    Parameters
    ----------
    candidates, task
        As for `measure`.
    {options}
    """
    refuse_unknown("measure", options, [*MeasureOptions.__annotations__])
    given = complete("measure", options, MeasureOptions)
    plan = RunPlan.of("measure", {name: given[name] for name in ("target", "devices", "compile", "benchmark")})
    work, name = named_work(task)
    problems = given["problems"] if given["problems"] is None else Problems(given["problems"])
    folder = Path(given["journal"] or ResultCache().new_path(name).with_suffix(""))
    await anyio.to_thread.run_sync(make_private_folder, str(folder))
    programs = [(os.fspath(each), _read(os.fspath(each))) for each in candidates]
    evaluations: dict[Program, list[Evaluation]] = {program: [] for _, program in programs}
    async with shared_processes() as shared:
        plan = replace(plan, journal=folder, shared=shared)
        for problem in [None] if problems is None else problems:
            trial = await _described(work, plan, None if problem is None else problem.arguments)
            left = [p for p, before in evaluations.items() if all(each.status == "passed" for each in before)]
            size = 1 if trial.discovery.target.kind == "c" else BATCH  # native code could harm other candidates
            for batch in (left[start : start + size] for start in range(0, len(left), size)):
                judged = await _run(trial, plan, batch, given["allow"])
                for program, one in zip(batch, judged, strict=True):
                    if one.kind == NO_FINAL and len(batch) > 1:  # apart, a candidate only ends its own final
                        [one] = await _run(trial, plan, [program], given["allow"])
                    evaluations[program].append(one)
    assert trial.spec is not None, "it was described"
    return [_result(text, program, trial.spec.name, evaluations[program]) for text, program in programs]


def _read(given: str) -> Program:
    """Return the program that `given` names or contains. Raises `UsageError` if the file cannot be read."""
    if "\n" in given:
        return Program(given)
    file, _, name = given.rpartition(":")
    file, name = (file, name) if file and name.isidentifier() else (given, "")
    try:
        return Program(Path(file).read_text(errors="replace"), name)
    except OSError as error:
        raise UsageError(f"candidate {given}: {error.strerror}: give FILE.py or FILE.py:NAME") from error


async def _described(work: Any, plan: RunPlan, arguments: Mapping[str, Any] | None) -> LocalMachine:
    """Return a machine that knows the devices, and the task with its default as the baseline. Raises `UsageError`."""
    if arguments is not None:
        whole = isinstance(work, Workload)
        work = work.at(arguments) if whole else msgspec.structs.replace(work, arguments=dict(arguments))
    machine = await anyio.to_thread.run_sync(plan.machine_for, work)
    assert isinstance(machine, LocalMachine), "there is no cluster"
    async with machine.open():
        await machine.discover()
        spec = await machine.describe()
    if spec.default_config is None:
        raise UsageError(f"the task {spec.name} has no default, which is the baseline: {spec.no_default}")
    settled = {"default": BASELINE, "baseline": spec.default_config, "refused": "", "remarks": (), "points": None}
    machine.spec = msgspec.structs.replace(spec, layout_axes=(), **settled)
    return machine


async def _run(
    trial: LocalMachine, plan: RunPlan, programs: Sequence[Program], allow: Sequence[str]
) -> list[Evaluation]:
    """Measure `programs` for one problem, in one run of the engine. Raises `UsageError` if the task does not work."""
    configs = tuple({"candidate": number, "digest": each.digest} for number, each in enumerate(programs))
    assert trial.spec is not None and plan.journal is not None, "both are known"
    spec, settings = msgspec.structs.replace(trial.spec, configs=configs), plan.settings
    benchmark = msgspec.structs.replace(settings.benchmark, n_final=len(programs) + 1, check=True, l2="cold")
    machine = ForeignMachine(
        trial.workload, programs=programs, allow=allow, spec=spec, target=plan.target, devices=plan.devices,
        compile=settings.compile, benchmark=benchmark, shared=plan.shared,
    )  # fmt: skip
    journal = next(path for n in count() if not (path := plan.journal / f"{n:04}.jsonl").exists())
    plan = replace(plan, machine=machine, journal=journal, log=False, progress=False)
    plan = plan.with_settings(
        benchmark=benchmark, strategy="exhaustive", prior=False, looks=1, cached=False, recall=None
    )
    async with Tuner.planned(None, plan) as tuner:
        try:
            result: Result = await tuner.result()
        except NoWinner as error:
            result = error.result
    assert tuner.state is not None, "the run has begun"
    if result.default is None or result.default.kind:
        raise UsageError(f"the task {spec.name} does not work: {result.no_default}")
    isolation = f"not isolated: {machine.not_isolated}" if machine.not_isolated else "isolated"
    native = NATIVE if machine.discovery.target.kind == "c" else "only on the device"
    say = partial(Evaluation, problem=spec.arguments, python=isolation, native=native, journal=str(journal))
    return [_judged(index, result, tuner.state, say) for index in range(len(programs))]


def _judged(index: int, result: Result, state: State, say: partial[Evaluation]) -> Evaluation:
    """Return the judgement about a candidate of a run, made by `say`. Raises `UsageError` if nothing was checked."""
    record, default, outcome = result.records[index], result.default, state.outcome(index)
    if not isinstance(outcome, CandidateMeasured) or default is None:
        kind = record.kind or "lower"  # without a kind, the device lacks shared memory for it
        return say(status=STATUSES.get(kind, "crashed"), kind=kind, reason=record.message, detail=record.detail)
    if not outcome.checked:
        raise UsageError(f"the task {result.header.workload} has no reference: give reference=, or check=")
    final = {} if state.final is None else {entry.index: entry.timing for entry in state.final.entries}
    own, base = final.get(record.credited), final.get(default.credited)
    if record.credited == default.credited:  # it is the task's own code
        own = base = base or outcome.timing
    if own is None or base is None:
        return say(status="crashed", kind=NO_FINAL, reason=next(iter(state.warnings), NO_FINAL))
    device = next(device for device in result.devices if device.id == record.device)
    floor = fastest_ms(device, result.header.flops, result.header.bytes)
    reference = state.final and state.final.reference
    say = partial(say, floor_ms=floor, device=device.name)
    if floor is not None and own.latency_ms < floor:
        why = f"{own.latency_ms:.4g} ms is less than the device's peaks allow for the task's work ({floor:.4g} ms)"
        return say(status="refused", kind="refused", reason=why)
    return say(
        status="passed", latency_ms=_in_ms(own), baseline_ms=_in_ms(base), speedup=ratio_interval(base, own),
        reference_ms=_in_ms(reference) if reference else None,
        reference_speedup=ratio_interval(reference, own) if reference else None,
        checked_calls=own.n_samples + 2, fresh_inputs="new inputs" in own.method,
    )  # fmt: skip


def _in_ms(timing: Timing) -> Interval:
    low, median, high = median_interval(timing.samples_us)
    return low / 1e3, median / 1e3, high / 1e3


def _result(given: str, program: Program, task: str, evaluations: Sequence[Evaluation]) -> MeasureResult:
    last, means = evaluations[-1], dict[str, Any]()
    for name in ("latency_ms", "speedup", "reference_speedup"):
        if all(known := [getattr(each, name) for each in evaluations]):
            means[name] = tuple(map(statistics.geometric_mean, zip(*known, strict=True)))
    candidate = "<text>" if "\n" in given else given
    result = MeasureResult(
        candidate=candidate, digest=program.digest, task=task, status=last.status, reason=last.reason,
        problems=tuple(evaluations),
    )  # fmt: skip
    return msgspec.structs.replace(result, **means) if last.status == "passed" else result

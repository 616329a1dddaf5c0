"""Check and time kernels that nobody trusts. A trusted task gives the inputs, the reference and the baseline."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import Any, Literal, Unpack, cast

import anyio.to_thread
import msgspec

from atune.engine.interfaces import ignored
from atune.errors import NoWinner, UsageError
from atune.frontends.problems import Problems
from atune.frontends.run_options import MeasureOptions, journal_at
from atune.frontends.tuner import RunPlan, Tuner, named_work
from atune.journal.events import CandidateMeasured
from atune.journal.result import Result
from atune.journal.state import State
from atune.model.candidate import BASELINE, describe_config
from atune.model.folders import make_private_folder, read_file
from atune.model.measurement import IN_FINAL, Timing, fastest_ms, median_interval, ratio_interval
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
"""The status for each kind of failure. For every kind that is not listed, the status is ``crashed``."""
Interval = tuple[float, float, float]
"""A median with its 95 % confidence interval: the low end, the median and the high end."""
BATCH = 128
"""Largest number of candidates in a run."""
NATIVE = "not isolated: it runs in the process that checks and times it (target c)"
NO_FINAL = "no final"
Program = tuple[str, str]
"""The text of a candidate's program, and the name of its kernel function (``""`` if the user gave no name)."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement about a candidate for one problem.

    `kind`, `reason`, `detail`: the failure. `speedup`: the speed relative to the task's default, from timing both in
    turn. `floor_ms`: the shortest latency that the device's peak rates allow. `checked_calls`: number of timed calls,
    all checked. `fresh_inputs`: whether each call had new inputs. `python`, `native`: how the candidate's Python code
    and machine code were isolated.
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
    """The judgement about a candidate, over all problems. `digest`: the SHA-256 of the candidate's text.

    `status`: ``passed``, or the status for the first problem that the candidate does not pass. The latency, the
    speed-ups and the ends of their intervals are geometric means over the problems.
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


@documents(MeasureOptions)
async def measure(
    candidate: str | os.PathLike[str], task: Workload | FileRef | str, **options: Unpack[MeasureOptions]
) -> MeasureResult:
    """Check and time an untrusted kernel, next to the default configuration of `task`.

    If the candidate fails, the result's status says how. Raises `UsageError` for invalid arguments or a broken task.

    Parameters
    ----------
    candidate
        A program's text, or ``Path("FILE.py")`` or ``Path("FILE.py:NAME")``. A string never names a file. The kernel
        function gets the problem's arguments.
    task
        A `Workload` with a reference, or ``"FILE.py:NAME"``. The task is trusted.
    {options}
    """
    return (await measure_many([candidate], task, **options))[0]


@documents(MeasureOptions)
async def measure_many(
    candidates: Iterable[str | os.PathLike[str]],
    task: Workload | FileRef | str,
    *,
    on_result: Callable[[MeasureResult], object] = ignored,
    **options: Unpack[MeasureOptions],
) -> list[MeasureResult]:
    """Measure each of `candidates` like `measure`, and return the results in the order of the candidates.

    Candidates compile in parallel, and take turns on the devices. Equal texts are measured once.

    Parameters
    ----------
    candidates, task
        Several candidates, and a task, as `measure` takes them.
    on_result
        Called with each result as soon as it is known, in the order of the candidates.
    {options}
    """
    refuse_unknown("measure", options, [*MeasureOptions.__annotations__])
    given = complete("measure", options, MeasureOptions)
    plan = RunPlan.of("measure", {name: given[name] for name in ("target", "devices", "compile", "benchmark")})
    work, name = named_work(task)
    problems = [None] if given["problems"] is None else [each.arguments for each in Problems(given["problems"])]
    programs = await anyio.to_thread.run_sync(list, map(_program, [*candidates]), abandon_on_cancel=True)
    judged: dict[Program, list[Evaluation]] = {program: [] for _, program in programs}
    results = list[MeasureResult]()
    folder = journal_at(given["journal"] or ResultCache().new_path(name).with_suffix(""), folder=True)
    try:
        await anyio.to_thread.run_sync(make_private_folder, str(folder), abandon_on_cancel=True)
    except OSError as error:
        why = f"cannot create the folder {folder} for the journals: {error.strerror}: {error.filename}"
        raise UsageError(f"{why}. Give another folder (--journal, journal=)") from error
    async with shared_processes() if len(judged) * len(problems) > 1 else nullcontext() as shared:
        plan = replace(plan, journal=folder, shared=shared, log=False, progress=False)
        tasks = [await _described(work, plan, arguments) for arguments in problems]
        size = 1 if tasks[0].discovery.target.kind == "c" else BATCH  # native code could harm other candidates
        for batch in ([*judged][start : start + size] for start in range(0, len(judged), size)):
            for described in tasks:
                run = partial(_run, described, plan, given["allow"])
                left = [program for program in batch if all(one.status == "passed" for one in judged[program])]
                for program, one in zip(left, await run(left) if left else (), strict=True):
                    apart = one.kind == NO_FINAL and len(left) > 1  # apart, a candidate only ends its own final
                    judged[program] += await run([program]) if apart else [one]
            assert described.spec is not None, "it was described"
            for label, program in takewhile(lambda each: judged[each[1]], programs[len(results) :]):
                results.append(_result(label, program, described.spec.name, judged[program]))
                on_result(results[-1])
    return results


def _program(given: str | os.PathLike[str]) -> tuple[str, Program]:
    """Return the label and the program of a candidate. Raises `UsageError` if the file cannot be read."""
    if isinstance(given, str):  # a stranger may have written it, so it never names a file
        return "<text>", (given.encode(errors="replace").decode(), "")  # without lone surrogates
    path = os.fspath(given)
    file, _, name = path.rpartition(":")
    file, name = (file, name) if file and name.isidentifier() else (path, "")
    try:
        return path, (read_file(file).decode(errors="replace"), name)
    except OSError as error:
        raise UsageError(f"candidate {path}: {error.strerror}: give FILE.py or FILE.py:NAME") from error


def _digest(program: Program) -> str:
    return hashlib.sha256(program[0].encode()).hexdigest()


async def _described(work: Any, plan: RunPlan, arguments: Mapping[str, Any] | None) -> LocalMachine:
    """Return a machine for the task, with the task's default as the baseline. Raises `UsageError`."""
    if arguments is not None:
        work = work.at(arguments)
    machine: Any = await anyio.to_thread.run_sync(plan.machine_for, work, abandon_on_cancel=True)
    async with machine.open():
        await machine.discover()
        spec = await machine.describe()
    if spec.default_config is None:
        raise UsageError(f"the task {spec.name} has no default to serve as the baseline: {spec.no_default}")
    own = {"default": BASELINE, "baseline": spec.default_config, "refused": "", "remarks": (), "layout_axes": ()}
    machine.spec = msgspec.structs.replace(spec, points=None, **own)
    return cast(LocalMachine, machine)


async def _run(
    described: LocalMachine, plan: RunPlan, allow: Sequence[str], programs: Sequence[Program]
) -> list[Evaluation]:
    """Measure `programs` for one problem, in one run of the engine. Raises `UsageError` if the task does not work."""
    assert described.spec is not None and plan.journal is not None, "both are known"
    configs = tuple({"candidate": number, "digest": _digest(each)[:12]} for number, each in enumerate(programs))
    spec, compile = msgspec.structs.replace(described.spec, configs=configs), plan.settings.compile
    benchmark = msgspec.structs.replace(plan.settings.benchmark, n_final=len(programs) + 1, check=True, l2="cold")
    where = {"target": plan.target, "devices": plan.devices, "shared": plan.shared}
    machine = ForeignMachine(
        described.workload, programs=programs, allow=allow, spec=spec, compile=compile, benchmark=benchmark, **where
    )
    journal = next(path for n in count() if not (path := plan.journal / f"{n:04}.jsonl").exists())
    once: dict[str, Any] = {"strategy": "exhaustive", "prior": False, "cached": False, "recall": None}
    plan = replace(plan, machine=machine, journal=journal).with_settings(benchmark=benchmark, alone=True, **once)
    async with Tuner.planned(None, plan) as tuner:
        try:
            result: Result = await tuner.result()
        except NoWinner as error:
            result = error.result
    assert tuner.state is not None, "the run has begun"
    if result.default is None or (result.default.kind and not result.default.message.endswith(IN_FINAL)):
        raise UsageError(f"the task {spec.name} does not work: {result.no_default}")
    native = NATIVE if machine.discovery.target.kind == "c" else "only on the device"
    say = partial(Evaluation, problem=spec.arguments, python=machine.isolation, native=native, journal=str(journal))
    return [_evaluation(index, result, tuner.state, say) for index in range(len(programs))]


def _evaluation(index: int, result: Result, state: State, say: partial[Evaluation]) -> Evaluation:
    """Judge a candidate of a run by calling `say`. Raises `UsageError` if nothing was checked."""
    record, default, outcome = result.records[index], result.default, state.outcome(index)
    if not isinstance(outcome, CandidateMeasured) or default is None or record.timing is None:
        kind = record.kind or "lower"  # without a kind, the device lacks shared memory for it
        return say(status=STATUSES.get(kind, "crashed"), kind=kind, reason=record.message, detail=record.detail)
    if not outcome.checked:
        why = f"has no reference and no check, or its outputs are empty for {describe_config(result.header.arguments)}"
        raise UsageError(f"the task {result.header.workload} {why}: give reference= or check=, or larger sizes")
    if default.timing is None or "each call checked" not in record.timing.method:  # also if the default failed
        return say(status="crashed", kind=NO_FINAL, reason=default.message or next(iter(state.warnings), NO_FINAL))
    own, base, reference = record.timing, default.timing, None if state.final is None else state.final.reference
    device = next(device for device in result.devices if device.id == record.device)
    floor = fastest_ms(device, result.header.flops, result.header.bytes)
    say = partial(say, floor_ms=floor, device=device.name, checked_calls=own.n_samples)
    if floor is not None and own.latency_ms < floor:
        why = f"{own.latency_ms:.4g} ms is less than the device's peaks allow for the task's work ({floor:.4g} ms)"
        return say(status="refused", kind="refused", reason=why)
    times = {"latency_ms": _in_ms(own), "baseline_ms": _in_ms(base), "speedup": ratio_interval(base, own)}
    if reference is not None:
        times |= {"reference_ms": _in_ms(reference), "reference_speedup": ratio_interval(reference, own)}
    return say(status="passed", fresh_inputs="new inputs" in own.method, **times)


def _in_ms(timing: Timing) -> Interval:
    low, median, high = median_interval(timing.samples_us)
    return low / 1e3, median / 1e3, high / 1e3


def _result(label: str, program: Program, task: str, evaluations: Sequence[Evaluation]) -> MeasureResult:
    last, means = evaluations[-1], dict[str, Any]()
    for name in ("latency_ms", "speedup", "reference_speedup"):
        if all(known := [getattr(each, name) for each in evaluations]):
            means[name] = tuple(map(statistics.geometric_mean, zip(*known, strict=True)))
    about: dict[str, Any] = {"candidate": label, "digest": _digest(program), "task": task}
    return MeasureResult(status=last.status, reason=last.reason, problems=tuple(evaluations), **about, **means)

"""``atune tune --dry-run`` and ``--compile-only``: what a tuning would do, and what its candidates compile to."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from atune.engine.run_state import Run
from atune.engine.screen import LayoutChoice, layout_choice, why_never
from atune.engine.search.strategies import AUTO
from atune.errors import TargetError, UsageError
from atune.frontends.api.compile_all import compiled, compilers
from atune.frontends.cli.main import OK
from atune.frontends.cli.output import NO_WINNER, USAGE, print_lines, print_message, print_out
from atune.journal.reader import read
from atune.journal.record import Record
from atune.journal.result import Result
from atune.model.artifact import Artifact, Failure, StaticFacts
from atune.model.candidate import Candidate, Config, config_key, describe_config, printable
from atune.model.settings import Budget, CompileSettings
from atune.reporting.progress import duration
from atune.reporting.screen import Line
from atune.reporting.summary import example_lines, failure_groups, failures_data, group_lines
from atune.workers.local.space_worker import discover, survey_space
from atune.workload.pickling import FileRef
from atune.workload.workload import Refusals, SpaceSurvey

SHOWN = 12
"""Most configurations that are shown."""


class LayoutRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One layout of a configuration. `why` it is passed over, for candidate `instead`, or cannot run; empty if kept."""

    index: int
    layout: Config
    redundant: int = 0
    """Iterations that a thread does beyond an even share."""
    registers: int = 0
    """Of a thread, for all fragments."""
    access_bits: int = 0
    """Bits that a thread moves in one access to global memory, summed over the loops."""
    why: str = ""
    instead: int | None = None


class LayoutRows(msgspec.Struct, frozen=True):
    """The layouts of one configuration. Of layouts with the same code there is the first."""

    config: Config
    kept: tuple[LayoutRow, ...]
    passed: tuple[LayoutRow, ...]
    invalid: tuple[LayoutRow, ...]


class JournalProgress(msgspec.Struct, frozen=True):
    """What the journal of the run holds. `same`: whether its work looks the same. `wall_s`: seconds that it took."""

    journal: str
    same: bool
    done: int
    outcomes: dict[str, int]
    wall_s: float


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuning would do, as ``--json`` prints it.

    `impossible`: why nothing can be tuned here, and then there is no `target`. `fallback`: that it is the CPU only
    because there is no GPU. `to_do`: most candidates that would be compiled. `seconds`: an estimate by the pace
    of the journal's run; None without one. The space's figures are those of `SpaceSurvey`. `layouts`: what
    ``--layouts`` keeps; empty without it, and where the target is unknown.
    """

    workload: str
    arguments: dict[str, Any]
    target: str | None
    devices: tuple[str, ...]
    impossible: str | None
    fallback: str = ""
    points: int
    looked_at: int
    exact: bool
    candidates: int
    refused: tuple[Refusals, ...]
    to_do: int
    journal: JournalProgress | None
    seconds: float | None
    layouts: tuple[LayoutRows, ...] = ()


def dry_run_command(
    workload: FileRef, journal: str | None, options: Mapping[str, Any], arguments: argparse.Namespace
) -> int:
    """Print what tuning with `options` would do. Returns exit status 2 if nothing could be tuned."""
    found = anyio.run(dry_run, workload, journal, options)
    if arguments.json:
        print_out(json.dumps(msgspec.to_builtins(found)))
    else:
        print_lines(map(Line, dry_run_lines(found, options["strategy"] or AUTO)))
    if found.candidates == 0:
        print_message("the space is empty: no configuration satisfies the constraints")
    return USAGE if found.candidates == 0 or found.impossible else OK


async def dry_run(workload: FileRef, journal: str | None, options: Mapping[str, Any]) -> DryRun:
    """Return what tuning `workload` with `options` would do. A worker loads its file and counts its space.

    Raises `WorkloadError` and `SpaceError` like `tune`, and `JournalError` if `journal` cannot be read.
    """
    budget: Budget = options["budget"]
    target, devices, impossible, fallback = None, tuple[str, ...](), None, ""
    try:
        where = options["target"], options["devices"]
        found = await discover(workload, *where, options["compile"])
        target, devices = str(found.target), tuple(device.name for device in found.devices)
        fallback = found.fallback
    except TargetError as error:
        impossible = str(error)
    space = await survey_space(workload)
    begun = begun_in(journal, space)
    most, done = budget.most(space.candidates), begun.done if begun else 0
    to_do = max(0, min(number for number in (space.candidates, most) if number is not None) - done)
    seconds = None
    if begun is not None and begun.outcomes["measured"]:  # failures tell of no pace
        seconds = round(begun.wall_s / begun.done * to_do, 1)
    return DryRun(
        workload=space.workload,
        arguments=space.arguments,
        target=target,
        devices=devices,
        impossible=impossible,
        fallback=fallback,
        points=space.points,
        looked_at=space.looked_at,
        exact=space.exact,
        candidates=space.candidates,
        refused=space.refusals,
        to_do=to_do,
        journal=begun,
        seconds=seconds,
        layouts=await lowered_layouts(workload, options["target"], options["compile"]),
    )


async def lowered_layouts(workload: FileRef, target: str, settings: CompileSettings) -> tuple[LayoutRows, ...]:
    """Lower the space, and return what ``--layouts`` keeps of it; empty without it, and for an unknown target."""
    if settings.layouts is None:
        return ()
    try:
        return (await _compile(workload, target, settings, Budget(), builds=False)).layouts
    except TargetError:
        return ()  # what is missing is told in any case


def begun_in(journal: str | None, space: SpaceSurvey) -> JournalProgress | None:
    """Return what `journal` holds of this work, or None if the file is missing or empty."""
    if journal is None or not os.path.isfile(journal) or not os.path.getsize(journal):
        return None
    result = Result.from_events(read(Path(journal)), journal)
    keys = set(space.keys)
    done = [one for one in result.records if one.status != "remaining" and (not keys or one.key in keys)]
    counts = {"measured": result.measured, "failed": result.failed, "pruned": result.pruned}
    same = result.header is not None and result.header.fingerprint == space.fingerprint
    return JournalProgress(journal, same, len(done), {**counts, "duplicates": result.duplicates}, result.wall_s)


def dry_run_lines(run: DryRun, strategy: str) -> Iterator[str]:
    """Return what a dry run found, as lines of text."""
    yield f"workload   {printable(run.workload)}: {describe_config(run.arguments) or 'without arguments'}"
    if run.target is None:
        yield f"target     cannot be tuned here: {printable(run.impossible or '')}"
    else:
        yield f"target     {run.target} on {printable(', '.join(run.devices)) or 'no device'}"
        if run.fallback:
            yield f"           {run.fallback}"
    about = "" if run.exact else "about "
    yield f"space      {run.points:,} points, of which {about}{run.candidates:,} are candidates"
    if not run.exact:
        yield f"           counted on {run.looked_at:,} points"
    for refusals in run.refused:
        yield f"           {refusals.count:,} refused by {printable(refusals.constraint)}"
    if run.journal is None:
        yield "known      no journal to continue"
    else:
        outcomes = ", ".join(f"{count} {name}" for name, count in run.journal.outcomes.items())
        yield f"known      {run.journal.done} are done in {printable(run.journal.journal)}: {outcomes}"
        if not run.journal.same:
            yield "           but its kernel, problem or check differs: tuning would refuse it"
    yield f"to do      {run.to_do} candidates, strategy {strategy}"
    yield "           fewer are measured: lowering drops candidates with the same code,"
    yield "           and candidates that do not fit the device"
    yield from layout_lines(run.layouts)
    if run.seconds is not None:
        yield f"time       about {duration(run.seconds)}, at the pace of the journal's run"


class CompileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a space that was compiled, as ``--json`` prints it, but for `failures`."""

    target: str
    total: int
    compiled: int
    codes: int
    """Distinct ones of those that compiled."""
    failed: int
    wall_s: float
    fallback: str = ""
    """As in `DryRun`."""
    compiler: str = ""
    """Which compiler was chosen, and why; empty if there was no choice."""
    failures: tuple[Record, ...] = ()
    passed: int = 0
    """Candidates for which ``--layouts`` has others."""
    layouts: tuple[LayoutRows, ...] = ()


def compile_only_command(workload: FileRef, options: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Compile what a tuning with `options` would try first, and print what became of it; 1 where nothing compiled."""
    found = anyio.run(_compile, workload, options["target"], options["compile"], options["budget"])
    if arguments.json:
        data = msgspec.to_builtins(msgspec.structs.replace(found, failures=()))
        print_out(json.dumps({**data, "failures": failures_data(found.failures)}))
    else:
        print_lines(map(Line, compile_lines(found)))
    return OK if found.compiled else NO_WINNER


async def _compile(
    workload: FileRef, target: str, settings: CompileSettings, budget: Budget, *, builds: bool = True
) -> CompileSummary:
    began = time.monotonic()
    async with compilers(workload, target, settings) as (machine, run):
        spec = await machine.describe()
        if not spec.configs:
            raise UsageError("the space is empty: no configuration satisfies the constraints")
        configs = spec.configs[: budget.most(len(spec.configs))]
        candidates = [Candidate(index, config_key(config), config) for index, config in enumerate(configs)]
        layouts = layout_choice(spec, {one.index: one for one in candidates}, settings.layouts)
        answers = await compiled(machine, candidates, run, settings.group_size, layouts=layouts, builds=builds)
        compiler = machine.service.why
    good = [one for one in answers.values() if isinstance(one, Artifact)]
    failures = {index: one for index, one in answers.items() if isinstance(one, Failure)}
    return CompileSummary(
        target=str(machine.found.target),
        total=len(candidates),
        compiled=len(good),
        codes=len({(one.path, one.symbol) for one in good}),
        failed=len(failures),
        wall_s=round(time.monotonic() - began, 3),
        fallback=machine.found.fallback,
        compiler=compiler,
        failures=tuple(_failed(candidates[index], failure) for index, failure in failures.items()),
        passed=len(candidates) - len(answers),
        layouts=() if layouts is None else layout_rows(candidates, run, layouts, failures),
    )


def compile_lines(found: CompileSummary) -> list[str]:
    """Return what became of a space, a line each."""
    counts = f"{found.compiled} of {found.total} candidates, {found.codes} distinct codes, {found.failed} failed"
    counts += f", {found.passed} passed over" if found.passed else ""
    lines = [f"compiled   {counts}; {duration(found.wall_s)}", f"target     {found.target}; nothing was measured"]
    lines += [f"           {found.fallback}"] if found.fallback else []
    lines += [f"compiler   {printable(found.compiler)}"] if found.compiler else []
    groups = failure_groups(found.failures)
    lines += [f"{'' if n else 'failures':11}{line}" for n, line in enumerate(group_lines(groups))]
    lines += [f"             {line}" for line in (example_lines(groups[0]) if groups else ())]
    return [*lines, *layout_lines(found.layouts)]


def _failed(candidate: Candidate, failure: Failure) -> Record:
    return Record(
        index=candidate.index, key=candidate.key, config=candidate.config, status="failed",
        kind=failure.kind, message=failure.message, detail=failure.detail,
    )  # fmt: skip


def layout_rows(
    candidates: Sequence[Candidate], run: Run, layouts: LayoutChoice, failures: dict[int, Failure]
) -> tuple[LayoutRows, ...]:
    """Return what was chosen of the lowered `candidates`, in their order, but for configurations that were not lowered.

    `failures`: of those that failed to lower.
    """
    state, rows, done = run.recorder.state, list[LayoutRows](), set[int]()
    for candidate in candidates:
        if candidate.index in done:
            continue
        group = layouts.group(candidate.index)
        done.update(group)
        choice = layouts.choice(state, candidate.index, run.limits)
        if choice is None:
            continue
        made = {index: _row(index, layouts.layout(index), state.entry(index).facts) for index in group}
        invalid = []
        for index in group:
            facts, failure = state.entry(index).facts, failures.get(index)
            if why := failure.message if failure is not None else "" if facts is None else why_never(facts, run.limits):
                invalid.append(msgspec.structs.replace(made[index], why=why))
        passed = [
            msgspec.structs.replace(made[index], why=one.why, instead=one.instead)
            for index, one in choice.passed.items()
        ]
        kept = [made[index] for index in choice.kept]
        rows.append(LayoutRows(layouts.rest(candidate.index), tuple(kept), tuple(passed), tuple(invalid)))
    return tuple(rows)


def _row(index: int, layout: Config, facts: StaticFacts | None) -> LayoutRow:
    found = None if facts is None else facts.layouts
    if found is None:
        return LayoutRow(index, layout)
    return LayoutRow(index, layout, found.redundant, found.registers, found.access_bits)


def _told(row: LayoutRow) -> str:
    costs = f"{row.redundant} redundant, {row.registers} registers, {row.access_bits} bits"
    return f"{row.index}: {describe_config(row.layout)} ({costs})"


def layout_lines(rows: Sequence[LayoutRows]) -> Iterator[str]:
    """Return what was chosen, as lines of text."""
    for number, one in enumerate(rows[:SHOWN]):
        yield f"{'layouts' if number == 0 else '':10} {describe_config(one.config)}"
        for row in one.kept:
            yield f"{'':12} kept    {_told(row)}"
        for row in one.passed:
            yield f"{'':12} passed  {_told(row)}: {row.why}, {row.instead}"
        for row in one.invalid:
            yield f"{'':12} invalid {row.index}: {describe_config(row.layout)}: {printable(row.why.splitlines()[0])}"
    if (more := len(rows) - SHOWN) > 0:
        yield f"           {more} other configurations: --json has all"

"""``atune tune --dry-run`` and ``--compile-only``: what a tuning would do, and what its candidates compile to."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import anyio

from atune.engine.screen import layout_choice
from atune.engine.strategy import AUTO
from atune.frontends.cli.main import OK
from atune.frontends.cli.output import NO_WINNER, print_lines, print_out
from atune.frontends.compile_all import compiled, compilers
from atune.journal.result import Record
from atune.model.candidate import describe_config, numbered
from atune.model.settings import Budget, CompileSettings
from atune.reporting.export import aligned, outcome
from atune.reporting.progress import duration
from atune.reporting.summary import example_lines, failure_groups, failures_data, group_lines
from atune.reporting.text import Line
from atune.workers.workers import counted
from atune.workload.pickling import FileRef
from atune.workload.workload import WorkloadSpec


def dry_run_command(workload: FileRef, options: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Print how many candidates tuning with `options` would try, which a worker counts. Raises like tuning."""
    spec, budget = anyio.run(counted, workload, options["seed"]), options["budget"]
    most = budget.most(spec.total)
    to_do = spec.total if most is None else min(most, spec.total)
    known: dict[str, Any] = {"layouts": []}
    if options["compile"].layouts is not None:
        known, _ = anyio.run(_compile, workload, options["target"], options["compile"], Budget(), False)
    if arguments.json:
        print_out(json.dumps(_counts(spec) | {"to_do": to_do, "layouts": known["layouts"]}))
    else:
        lines = dry_run_lines(spec, f"{to_do:,} candidates, strategy {options['strategy'] or AUTO}")
        print_lines(map(Line, [*lines, *_layout_lines(known)]))
    return OK


def _counts(spec: WorkloadSpec) -> dict[str, Any]:
    looked_at = spec.total + sum(count for _, count in spec.refusals)
    return {
        "workload": spec.name,
        "arguments": spec.arguments,
        "points": looked_at if spec.points is None else spec.points,
        "looked_at": looked_at,
        "candidates": spec.total,
        "refusals": [{"constraint": constraint, "count": count} for constraint, count in spec.refusals],
    }


def dry_run_lines(spec: WorkloadSpec, to_do: str) -> Iterator[str]:
    """Return what a dry run found, as lines of text."""
    counts = _counts(spec)
    yield f"workload   {spec.name}: {describe_config(spec.arguments) or 'without arguments'}"
    yield f"space      {counts['points']:,} points, of which {spec.total:,} are candidates"
    if spec.points is not None:
        yield f"           drawn by the seed: {counts['looked_at']:,} points were looked at"
    for constraint, count in spec.refusals:
        yield f"           {count:,} refused by {constraint}"
    yield f"to do      {to_do}"
    yield "           fewer are measured: lowering drops candidates with the same code,"
    yield "           and candidates that do not fit the device"


def compile_only_command(workload: FileRef, options: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Compile what a tuning with `options` would try first, and print what became of it; 1 where nothing compiled."""
    found, failures = anyio.run(_compile, workload, options["target"], options["compile"], options["budget"])
    if arguments.json:
        print_out(json.dumps({**found, "failures": failures_data(failures)}))
    else:
        print_lines(map(Line, _compile_lines(found, failures)))
    return OK if found["compiled"] else NO_WINNER


async def _compile(
    workload: FileRef, target: str, settings: CompileSettings, budget: Budget, builds: bool = True
) -> tuple[dict[str, Any], list[Record]]:
    """Compile a space, or only lower it. Returns what ``--json`` prints of it, and the records of what failed.

    ``codes``: distinct ones of those that compiled. ``passed``: candidates for which ``layouts`` names others.
    """
    began = time.monotonic()
    async with compilers(workload, target, settings) as (machine, run):
        spec = await machine.describe()
        candidates = numbered(spec.configs[: budget.most(len(spec.configs))])
        layouts = layout_choice(spec, {one.index: one for one in candidates}, settings.layouts)
        answers = await compiled(machine, candidates, run, settings.group_size, layouts=layouts, builds=builds)
    good = [one.artifact for one in answers if one.artifact is not None]
    failures = [one.record for one in answers if one.record.kind]
    return {
        "target": str(machine.found.target),
        "fallback": machine.found.fallback,
        "total": len(candidates),
        "compiled": len(good),
        "codes": len({(one.path, one.symbol) for one in good}),
        "failed": len(failures),
        "passed": len(candidates) - len(good) - len(failures),
        "wall_s": round(time.monotonic() - began, 3),
        "layouts": [] if layouts is None else [_choice(one.record) for one in answers],
    }, failures


def _choice(one: Record) -> dict[str, Any]:
    text = outcome(one) if one.message or one.same_as is not None else "kept"
    return {"index": one.index, "config": one.config, "instead": one.instead, "outcome": text}


def _layout_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Return which layouts were kept, and which were passed over, and why; nothing without ``--layouts``."""
    rows = [(str(one["index"]), describe_config(one["config"]), one["outcome"]) for one in found["layouts"]]
    yield from [f"layouts    for {found['target']}"] if rows else []
    yield from (f"           {line}" for line in aligned(rows, 1).splitlines())


def _compile_lines(found: Mapping[str, Any], failures: list[Record]) -> Iterator[str]:
    """Return what became of a space, a line each."""
    counts = "{compiled} of {total} candidates, {codes} distinct, {failed} failed".format_map(found)
    counts += f", {found['passed']} passed over" if found["passed"] else ""
    yield f"compiled   {counts}; {duration(found['wall_s'])}"
    yield f"target     {found['target']}; nothing was measured"
    yield from [f"           {found['fallback']}"] if found["fallback"] else []
    groups = failure_groups(failures)
    lines = group_lines(groups, example=example_lines(groups))
    yield from (f"{'' if n else 'failures':11}{line}" for n, line in enumerate(lines))
    yield from _layout_lines(found)

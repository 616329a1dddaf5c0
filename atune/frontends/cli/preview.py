"""Commands that look at a workload and measure nothing: ``--dry-run`` and ``--compile-only``, ``explain``, ``pick``."""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from atune.engine.screen import layout_choice
from atune.engine.settings import check_code, check_parts
from atune.engine.strategy import AUTO
from atune.errors import UsageError
from atune.frontends.cli.main import OK
from atune.frontends.cli.output import NO_WINNER, print_lines, print_message, print_out
from atune.frontends.cli.runs import find_journal, record_at
from atune.frontends.compile_all import compile_candidates, compilers, raise_failures
from atune.frontends.pick import pick
from atune.frontends.problems import one_problem
from atune.frontends.resume import options_of, origin_of
from atune.frontends.tuner import RunPlan
from atune.journal.reader import replay
from atune.journal.result import Record
from atune.model.artifact import Artifact, source_path
from atune.model.candidate import Config, describe_config, normalise, numbered
from atune.model.device import parse_target
from atune.model.settings import Budget, CompileSettings
from atune.reporting.export import aligned, outcome, record_data, record_lines
from atune.reporting.progress import duration
from atune.reporting.summary import example_lines, failure_groups, failures_data, group_lines
from atune.reporting.text import Line
from atune.workers.messages import Discovery
from atune.workers.terminal import Interrupts
from atune.workers.workers import counted
from atune.workload.pickling import FileRef, parse_file_ref
from atune.workload.workload import WorkloadSpec


def dry_run_command(workload: FileRef, plan: RunPlan, arguments: argparse.Namespace) -> int:
    """Print how many candidates tuning by `plan` would try, which a worker counts. Raises like tuning."""
    settings = plan.settings
    spec = anyio.run(counted, workload, settings.seed)
    most = settings.budget.most(spec.total)
    to_do = spec.total if most is None else min(most, spec.total)
    known: dict[str, Any] = {"layouts": []}
    if settings.compile.layouts is not None:
        known, _ = anyio.run(_compile_space, workload, plan.with_settings(budget=Budget()), False)
    if arguments.json:
        print_out(json.dumps(_counts(spec) | {"to_do": to_do, "layouts": known["layouts"]}))
    else:
        lines = dry_run_lines(spec, f"{to_do:,} candidates, strategy {settings.strategy or AUTO}")
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


def compile_only_command(workload: FileRef, plan: RunPlan, arguments: argparse.Namespace) -> int:
    """Compile what a tuning by `plan` would try first, and print what became of it; 1 where nothing compiled."""
    found, failures = anyio.run(_compile_space, workload, plan)
    if arguments.json:
        print_out(json.dumps({**found, "failures": failures_data(failures)}))
    else:
        print_lines(map(Line, _compile_lines(found, failures)))
    return OK if found["compiled"] else NO_WINNER


async def _compile_space(workload: FileRef, plan: RunPlan, builds: bool = True) -> tuple[dict[str, Any], list[Record]]:
    """Compile a space, or only lower it. Returns what ``--json`` prints of it, and the records of what failed.

    ``codes``: distinct ones of those that compiled. ``passed``: candidates for which ``layouts`` names others.
    """
    began, settings = time.monotonic(), plan.settings.compile
    async with compilers(workload, plan.target, settings) as (machine, run):
        spec = await machine.describe()
        candidates = numbered(spec.configs[: plan.settings.budget.most(len(spec.configs))])
        layouts = layout_choice(spec, {one.index: one for one in candidates}, settings.layouts)
        size = settings.group_size
        answers = await compile_candidates(machine, candidates, run, size, layouts=layouts, builds=builds)
    good = [one.artifact for one in answers if one.artifact is not None]
    failures = [one.record for one in answers if one.record.kind]
    return {
        "target": str(machine.discovery.target),
        "fallback": machine.discovery.fallback,
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


# atune explain


def parse_config(text: str) -> Config:
    """Return the configuration that ``a=1,b=(2, 3),c=name`` describes. Raises `UsageError` and `SpaceError`.

    A value is a Python literal. Any other expression is text.
    """
    source, config = f"_({text})", Config()
    try:
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise SyntaxError
        for keyword in call.keywords:
            name, value = keyword.arg, ast.get_source_segment(source, keyword.value)
            if not name or name in config:
                raise SyntaxError
            with suppress(ValueError):  # not a literal
                value = ast.literal_eval(keyword.value)
            config[name] = normalise(value, f"--config: {name}")
    except SyntaxError as error:
        raise UsageError(f"--config {text!r}: give each name once, as name=value, such as block_M=128") from error
    return config


def explain_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    ref, configs, target = _to_explain(arguments)
    settings = CompileSettings(compile_timeout_s=arguments.compile_timeout_s, cicc=False, workers=len(configs))
    found, machine = anyio.run(_compile_configs, ref, configs, target, settings)
    if machine.fallback:
        print_message("no GPU found: this is for the CPU; give an arch for a GPU, such as --target sm_90a", "warning: ")
    arch, two = machine.target.arch, len(found) == 2
    if arguments.json:
        data = [record_data(one, arch) | ({"source": source} if arguments.source else {}) for one, source in found]
        print_out(json.dumps({"candidates": data} if two else data[0]))
        return 0
    shown = two or arguments.source
    texts = [[*record_lines(one, arch), *(source.splitlines() if shown else ())] for one, source in found]
    context = len(texts[0]) if arguments.source else 2
    changes = list(difflib.unified_diff(texts[0], texts[1], "A", "B", n=context, lineterm="")) if two else texts[0]
    print_out("\n".join(changes or ["the facts and the source are the same"]))
    return 0


async def _compile_configs(
    ref: FileRef, configs: list[Config], target: str, settings: CompileSettings
) -> tuple[list[tuple[Record, str]], Discovery]:
    """Compile configurations. Returns their records and sources, and what the machine has. Raises `CompileFailed`."""
    async with compilers(ref, target, settings) as (machine, run):
        found = await compile_candidates(machine, numbered(configs), run, 1)
        raise_failures([record for record, _ in found])
        return [(record, _source(artifact)) for record, artifact in found if artifact is not None], machine.discovery


def _source(artifact: Artifact) -> str:
    """Return a kernel's device source without its symbol."""
    text = Path(source_path(artifact.path, artifact.symbol)).read_text(errors="replace")
    return text.replace(f"{artifact.symbol}_kernel", "kernel").replace(artifact.symbol, "kernel")


def _to_explain(arguments: argparse.Namespace) -> tuple[FileRef, list[Config], str]:
    """Return the workload, the configurations, and the target. Raises `UsageError`."""
    what, indices, target = arguments.what, arguments.index, arguments.target
    given = None if arguments.workload is None else parse_file_ref(arguments.workload, "--workload")
    if (n := max(len(indices), len(arguments.config))) > 2:
        raise UsageError(f"{n} configurations: give one, or two to compare")
    if what.endswith(".py") or (":" in what and not os.path.exists(what)):
        if given is not None:
            raise UsageError(f"--workload is for a journal, and {what} is a workload itself: leave one out")
        if indices:
            raise UsageError(f"an INDEX needs a journal, and {what} is not one: give --config a=1,b=2")
        ref, problem = parse_file_ref(what, "atune explain"), one_problem(arguments.arg, "explain")
        ref, target = msgspec.structs.replace(ref, arguments=problem), target or "auto"
        configs = [*map(parse_config, arguments.config)] or [{}]
    elif arguments.config or arguments.arg:
        raise UsageError("--config and --arg work with FILE.py:NAME only: for a journal, give the candidate's INDEX")
    else:
        result = replay(find_journal(what))
        configs = [record_at(result, index).config for index in indices or [None]]
        for config in configs:
            check_code(CompileSettings(), config, check_parts(arguments.accept))
        ref = origin_of(result.header, say=partial(print_message, kind="")) if given is None else given
        ref = msgspec.structs.replace(ref, arguments=result.header.arguments)
        target = target or options_of(result.header)["target"]
    parse_target(target)
    return ref, configs, target


# atune pick


def pick_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    workload = parse_file_ref(arguments.workload, "atune pick")
    workload = msgspec.structs.replace(workload, arguments=one_problem(arguments.arg, "pick"))
    found = pick(workload, arguments.n, arguments.gpu)
    if arguments.json:
        print_out(json.dumps(msgspec.to_builtins(found)))
        return 0
    unfit = f", {found.unfit:,} of which cannot run" if found.unfit else ""
    unfit += f", {found.unknown:,} of which gave no answer in time" if found.unknown else ""
    lines = [f"space      {found.candidates:,} candidates{unfit}; nothing was compiled or measured"]
    lines += [f"device     {found.gpu or 'no GPU'}", *([f"prior      {found.why}"] if found.why else [])]
    for place, choice in enumerate(found.choices, 1):
        expected = "" if choice.estimate_ms is None else f"about {choice.estimate_ms:.4g} ms: "
        lines.append(f"choice {place:<4}{expected}{describe_config(choice.config)}")
    print_lines(map(Line, lines))
    return 0

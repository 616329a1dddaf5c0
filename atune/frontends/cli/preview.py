"""Commands that examine a workload without measuring: ``--dry-run`` and ``--compile-only``, ``explain``, ``pick``."""

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

from atune.engine.prior import ERROR
from atune.engine.screen import layout_choice
from atune.engine.settings import check_code, check_parts
from atune.engine.strategy import AUTO
from atune.errors import UsageError
from atune.frontends.cli.main import OK
from atune.frontends.cli.output import NO_WINNER, answer, print_message, print_out
from atune.frontends.cli.runs import find_journal, record_at
from atune.frontends.compile_all import compile_candidates, compilers, raise_failures
from atune.frontends.pick import pick
from atune.frontends.problems import one_problem
from atune.frontends.resume import options_of, origin_of
from atune.frontends.tuner import RunPlan
from atune.journal.reader import replay
from atune.journal.result import Record
from atune.model.artifact import Artifact, source_path
from atune.model.candidate import Candidate, Config, describe_config, normalise, numbered, with_tuples
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
    """Print the number of candidates that a tuning by `plan` would try. A worker counts them. Raises like `tune`."""
    settings = plan.settings
    spec = anyio.run(counted, workload, settings.seed)
    most = settings.budget.most(spec.total)
    to_do = spec.total if most is None else min(most, spec.total)
    known: dict[str, Any] = {"layouts": []}
    if settings.compile.layouts is not None:
        known, _ = anyio.run(_compile_space, workload, plan.with_settings(budget=Budget()), False)
    data = _counts(spec) | {"to_do": to_do, "layouts": known["layouts"]}
    lines = dry_run_lines(spec, f"{to_do:,} candidates, strategy {settings.strategy or AUTO}")
    answer(arguments, lambda: data, lambda: map(Line, [*lines, *_layout_lines(known)]))
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
    counts = _counts(spec)
    yield f"workload   {spec.name}: {describe_config(spec.arguments) or 'without arguments'}"
    yield f"space      {counts['points']:,} points, of which {spec.total:,} are candidates"
    if spec.points is not None:
        yield f"           the candidates are drawn with the seed: {counts['looked_at']:,} points were examined"
    for constraint, count in spec.refusals:
        yield f"           {count:,} refused by {constraint}"
    yield f"to do      {to_do}"
    yield "           a run measures fewer candidates: lowering drops candidates with the same code,"
    yield "           and candidates that do not fit the device"


def compile_only_command(workload: FileRef, plan: RunPlan, arguments: argparse.Namespace) -> int:
    """Compile the first candidates of a tuning by `plan`, and print the outcome. Returns 1 if nothing compiled."""
    data, failures = anyio.run(_compile_space, workload, plan)
    whole = {**data, "failures": failures_data(failures)}
    answer(arguments, lambda: whole, lambda: map(Line, _compile_lines(data, failures)))
    return OK if data["compiled"] else NO_WINNER


async def _compile_space(workload: FileRef, plan: RunPlan, builds: bool = True) -> tuple[dict[str, Any], list[Record]]:
    """Compile a space, or only lower it. Returns the outcome for ``--json``, and the records of failed candidates.

    ``codes``: number of distinct codes that compiled. ``passed``: number of candidates whose layout was not chosen.
    """
    began, settings = time.monotonic(), plan.settings.compile
    async with compilers(workload, plan.target, settings) as (machine, run):
        spec = await machine.describe()
        candidates = numbered(spec.configs[: plan.settings.budget.most(len(spec.configs))])
        layouts = layout_choice(spec, {candidate.index: candidate for candidate in candidates}, settings.layouts)
        size = settings.group_size
        compiled = await compile_candidates(machine, candidates, run, size, layouts=layouts, builds=builds)
    artifacts = [each.artifact for each in compiled if each.artifact is not None]
    failures = [each.record for each in compiled if each.record.kind]
    return {
        "target": str(machine.discovery.target),
        "fallback": machine.discovery.fallback,
        "total": len(candidates),
        "compiled": len(artifacts),
        "codes": len({(artifact.path, artifact.symbol) for artifact in artifacts}),
        "failed": len(failures),
        "passed": len(candidates) - len(artifacts) - len(failures),
        "wall_s": round(time.monotonic() - began, 3),
        "layouts": [] if layouts is None else [_choice(each.record) for each in compiled],
    }, failures


def _choice(record: Record) -> dict[str, Any]:
    text = outcome(record) if record.message or record.same_as is not None else "kept"
    return {"index": record.index, "config": record.config, "instead": record.instead, "outcome": text}


def _layout_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each layout: ``kept``, or why the layout was dropped. Without ``--layouts``, yield nothing."""
    rows = [(str(each["index"]), describe_config(each["config"]), each["outcome"]) for each in data["layouts"]]
    yield from [f"layouts    for {data['target']}"] if rows else []
    yield from (f"           {line}" for line in aligned(rows, 1).splitlines())


def _compile_lines(data: Mapping[str, Any], failures: list[Record]) -> Iterator[str]:
    counts = "{compiled} of {total} candidates, {codes} distinct, {failed} failed".format_map(data)
    counts += f", {data['passed']} passed over" if data["passed"] else ""
    yield f"compiled   {counts}; {duration(data['wall_s'])}"
    yield f"target     {data['target']}; nothing was measured"
    yield from [f"           {data['fallback']}"] if data["fallback"] else []
    groups = failure_groups(failures)
    lines = group_lines(groups, example=example_lines(groups))
    yield from (f"{'' if n else 'failures':11}{line}" for n, line in enumerate(lines))
    yield from _layout_lines(data)


# atune explain


def parse_config(text: str) -> Config:
    """Return the configuration in a text such as ``a=1,b=(2, 3),c=name``. Raises `UsageError` and `SpaceError`.

    If the expression of a value is not a Python literal, the value is the text of the expression.
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
    ref, candidates, target = _to_explain(arguments)
    settings = CompileSettings(compile_timeout_s=arguments.compile_timeout_s, cicc=False, workers=len(candidates))
    compiled, machine = anyio.run(_compile_all, ref, candidates, target, settings)
    if machine.fallback:
        print_message("no GPU found, so these facts are for the CPU; for a GPU, add --target sm_90a", "warning: ")
    arch, two = machine.target.arch, len(compiled) == 2
    if arguments.json:
        data = [record_data(record, arch) | ({"source": text} if arguments.source else {}) for record, text in compiled]
        print_out(json.dumps({"candidates": data} if two else data[0]))
        return 0
    shown = two or arguments.source
    texts = [[*record_lines(record, arch), *(text.splitlines() if shown else ())] for record, text in compiled]
    context = len(texts[0]) if arguments.source else 2
    changes = list(difflib.unified_diff(texts[0], texts[1], "A", "B", n=context, lineterm="")) if two else texts[0]
    print_out("\n".join(changes or ["the facts and the source are the same"]))
    return 0


async def _compile_all(
    ref: FileRef, candidates: list[Candidate], target: str, settings: CompileSettings
) -> tuple[list[tuple[Record, str]], Discovery]:
    """Compile candidates. Returns their records and sources, and the machine's devices. Raises `CompileFailed`."""
    async with compilers(ref, target, settings) as (machine, run):
        compiled = await compile_candidates(machine, candidates, run, 1)
        raise_failures([record for record, _ in compiled])
        return [(record, _source(artifact)) for record, artifact in compiled if artifact is not None], machine.discovery


def _source(artifact: Artifact) -> str:
    """Return a kernel's device source, with ``kernel`` in place of the candidate's symbol, to compare candidates."""
    text = Path(source_path(artifact.path, artifact.symbol)).read_text(errors="replace")
    return text.replace(f"{artifact.symbol}_kernel", "kernel").replace(artifact.symbol, "kernel")


def _to_explain(arguments: argparse.Namespace) -> tuple[FileRef, list[Candidate], str]:
    """Return the workload, the candidates (with their numbers in the journal) and the target. Raises `UsageError`."""
    what, indices, target = arguments.what, arguments.index, arguments.target
    given = None if arguments.workload is None else parse_file_ref(arguments.workload, "--workload")
    if (n := max(len(indices), len(arguments.config))) > 2:
        raise UsageError(f"{n} configurations: give one, or give two to compare")
    if what.endswith(".py") or (":" in what and not os.path.exists(what)):
        if given is not None:
            raise UsageError(f"--workload goes with a journal, but {what} is a workload: leave --workload out")
        if indices:
            raise UsageError(f"an INDEX needs a journal, but {what} is a workload: give --config a=1,b=2")
        ref, problem = parse_file_ref(what, "atune explain"), one_problem(arguments.arg, "explain")
        ref, target = ref.at(problem), target or "auto"
        candidates = numbered([*map(parse_config, arguments.config)] or [{}])
    elif arguments.config or arguments.arg:
        raise UsageError("--config and --arg work with FILE.py:NAME only: for a journal, give the candidate's INDEX")
    else:
        result = replay(find_journal(what))
        records = [record_at(result, index) for index in dict.fromkeys(indices or [None])]
        candidates = [Candidate(record.index, record.key, with_tuples(record.config)) for record in records]
        for candidate in candidates:
            check_code(CompileSettings(), candidate.config, check_parts(arguments.accept))
        ref = origin_of(result.header, say=partial(print_message, kind="")) if given is None else given
        ref = ref.at(result.header.arguments)
        target = target or options_of(result.header)["target"]
    parse_target(target)
    return ref, candidates, target


# atune pick


def pick_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    workload = parse_file_ref(arguments.workload, "atune pick").at(one_problem(arguments.arg, "pick"))
    picked = pick(workload, arguments.n, arguments.gpu)
    unfit = f", {picked.unfit:,} of which cannot run" if picked.unfit else ""
    unfit += f", {picked.unknown:,} of which did not answer in time" if picked.unknown else ""
    lines = [f"space      {picked.candidates:,} candidates{unfit}; nothing was compiled or measured"]
    lines += [f"device     {picked.gpu or 'no GPU'}", *([f"prior      {picked.why}"] if picked.why else [])]
    if picked.alike >= len(picked.choices):
        lines.append(f"prior      {picked.alike:,} others are as good within its error, {ERROR:.0%}: tune --budget 5%")
    for place, choice in enumerate(picked.choices, 1):
        expected = "" if choice.estimate_ms is None else f"about {choice.estimate_ms:.4g} ms: "
        lines.append(f"choice {place:<4}{expected}{describe_config(choice.config)}")
    answer(arguments, lambda: msgspec.to_builtins(picked), lambda: map(Line, lines))
    return 0

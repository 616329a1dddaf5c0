"""``atune tune --compile-only``: every candidate compiled and none measured, also where there is no GPU."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import msgspec

from atune.engine.run_state import Run
from atune.errors import UsageError
from atune.frontends.api.compile_all import compiled
from atune.frontends.cli.main import OK
from atune.frontends.cli.output import NO_WINNER, fitted, print_out
from atune.model.artifact import Artifact, Failure
from atune.model.candidate import Candidate, config_key, printable
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.progress import duration
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef

REASONS = 8
"""Reasons of failures that are told, the most frequent first."""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a space that was compiled. `failures`: (kind, message) and count, the most frequent first."""

    target: str
    total: int
    compiled: int
    codes: int
    """Distinct ones of those that compiled."""
    failed: int
    wall_s: float
    compiler: str = ""
    """Which compiler was chosen, and why; empty if there was no choice."""
    failures: tuple[tuple[str, str, int], ...] = ()


def compile_only_command(workload: FileRef, options: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    """Compile what a tuning with `options` would try first, and print what became of it; 1 where nothing compiled."""
    most = options["budget"].most
    found = anyio.run(partial(_compile, workload, options["target"], options["compile"], most))
    print_out(json.dumps(as_data(found)) if arguments.json else fitted("\n".join(lines_of(found))))
    return OK if found.compiled else NO_WINNER


async def _compile(workload: FileRef, target: str, settings: CompileSettings, most: Any) -> Compiled:
    began = time.monotonic()
    exact = BenchmarkSettings(n_final=0)  # nothing is timed, so nothing is compiled a second time
    machine = LocalMachine(workload, target=target, devices=(), compile=settings, benchmark=exact)
    run = Run()
    async with machine.open(wake=run.wake):
        spec = await machine.describe()
        if not spec.configs:
            raise UsageError("the space is empty: no configuration satisfies the constraints")
        chosen, _ = await machine.discover()
        configs = spec.configs[: most(len(spec.configs)) or len(spec.configs)]
        candidates = [Candidate(index, config_key(config), config) for index, config in enumerate(configs)]
        answers = await compiled(machine, candidates, run, settings.group_size)
        compiler = machine.service.why
    good = [one for one in answers.values() if isinstance(one, Artifact)]
    reasons = Counter((one.kind, one.message) for one in answers.values() if isinstance(one, Failure))
    return Compiled(
        target=str(chosen),
        total=len(candidates),
        compiled=len(good),
        codes=len({(one.path, one.symbol) for one in good}),
        failed=reasons.total(),
        wall_s=round(time.monotonic() - began, 3),
        compiler=compiler,
        failures=tuple((*reason, count) for reason, count in reasons.most_common()),
    )


def lines_of(found: Compiled) -> list[str]:
    """Return what became of a space, a line each."""
    told = f"{found.compiled} of {found.total} candidates, {found.codes} distinct codes, {found.failed} failed"
    lines = [f"compiled   {told}; {duration(found.wall_s)}", f"target     {found.target}; nothing was measured"]
    lines += [f"compiler   {printable(found.compiler)}"] if found.compiler else []
    lines += [f"           {n} × {kind}: {printable(message)}" for kind, message, n in found.failures[:REASONS]]
    if more := len(found.failures) - REASONS:
        lines += [f"           {more} other reasons"] if more > 0 else []
    return lines


def as_data(found: Compiled) -> dict[str, Any]:
    """Return it as ``--json`` prints it."""
    data: dict[str, Any] = msgspec.to_builtins(found)
    data["failures"] = [{"kind": kind, "message": text, "count": count} for kind, text, count in found.failures]
    return data

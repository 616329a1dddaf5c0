"""``atune tune --dry-run``: print what a tuning would do, as text or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import anyio

from atune.api.dry_run import DryRun, as_data, dry_run
from atune.cli.main import OK
from atune.cli.mistakes import USAGE
from atune.cli.printing import complain, say
from atune.journal.printing import describe_config, printable
from atune.reporting.progress import duration
from atune.search.choosing import AUTO
from atune.workload.workload import FileRef

ASKED = ("target", "devices", "budget", "compile", "benchmark")


def dry_run_command(
    workload: FileRef, journal: str | None, options: Mapping[str, Any], arguments: argparse.Namespace
) -> int:
    """Print what tuning with `options` would do. Returns exit status 2 if nothing could be tuned."""
    asked = {name: options[name] for name in ASKED}
    found = anyio.run(partial(dry_run, workload, journal=journal, **asked))
    strategy = options["strategy"] or AUTO
    say(json.dumps(as_data(found)) if arguments.json else "\n".join(lines_of(found, strategy)))
    if found.space.candidates == 0:
        complain("the space is empty: no configuration satisfies the constraints")
    return USAGE if found.space.candidates == 0 or found.impossible else OK


def lines_of(found: DryRun, strategy: str) -> Iterator[str]:
    """Return what a dry run found, as lines of text."""
    space = found.space
    yield f"workload   {printable(space.workload)}: {describe_config(space.arguments) or 'without arguments'}"
    if found.impossible:
        yield f"target     cannot be tuned here: {printable(found.impossible)}"
    else:
        yield f"target     {found.target} on {', '.join(map(printable, found.devices)) or 'no device'}"
    yield from _space(found)
    yield from _known(found)
    yield f"to do      {'an unknown number of' if found.to_do is None else found.to_do} candidates, strategy {strategy}"
    yield "           fewer are measured: lowering drops candidates with the same code,"
    yield "           and candidates that do not fit the device"
    yield from _time(found)


def _space(found: DryRun) -> Iterator[str]:
    space = found.space
    points = "an unknown number of" if space.points is None else f"{space.points:,}"
    about = "" if space.exact else "about "
    candidates = "an unknown number" if space.candidates is None else f"{about}{space.candidates:,}"
    yield f"space      {points} points, of which {candidates} are candidates"
    if not space.exact:
        yield f"           counted on {space.looked_at:,} points: {space.admitted:,} of them are candidates"
    for refusals in space.refusals:
        yield f"           {refusals.count:,} refused by {printable(refusals.constraint)}"


def _known(found: DryRun) -> Iterator[str]:
    if (begun := found.begun) is not None:
        outcomes = ", ".join(f"{count} {name}" for name, count in begun.outcomes.items())
        yield f"known      {begun.done} are done in {printable(begun.journal)}: {outcomes}"
        if not begun.same:
            yield "           but its kernel, problem or check differs: tuning would refuse it"
    else:
        yield "known      no journal to continue"
    for config in found.cached:
        yield f"           the result cache has a winner: {describe_config(config)}; atune tune would measure again"
    if not found.cached:
        yield "           the result cache has no result for this workload, problem and device"
    yield f"           the artifact store has {found.libraries:,} libraries; lowering tells which of them fit"


def _time(found: DryRun) -> Iterator[str]:
    if found.pace is None:
        yield "time       no estimate: this workload has no earlier journal; run it with --budget 8 to make one"
        return
    pace = found.pace
    yield f"time       {'not known' if found.seconds is None else f'about {duration(found.seconds)}'}"
    rates = f"{pace.fixed_s:.1f} s to begin and end, {pace.per_candidate_s:.2g} s per candidate"
    yield f"           from {pace.candidates} candidates in {printable(pace.journal)}: {rates}"
    if not pace.same:
        yield "           the kernel's source has changed since"
    yield "           other cores, devices or settings change the time, and so do stored libraries"

"""Rounds of whole tunings, in turn: every run a fresh process with empty caches, its figures from journal and --json.

A round runs each variant once on each space, in an order that is turned by one place from round to round. What is done
is written at once, and a time limit ends in time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from counted import Finished, empty_caches, run_counted
from vs_tilelang import machine, space_of

from atune.errors import JournalError
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateMeasured,
    DeviceExcluded,
    FinalOrdered,
    RunFinished,
    RunStarted,
)
from atune.journal.reader import JournalReader

WARM_BUDGET = 4
"""Candidates of a tuning that is run before all and thrown away: the first one reads packages from the disk."""


class Space(msgspec.Struct, frozen=True):
    """What is tuned, and on how many cores; None: all of them."""

    label: str
    ref: str
    cores: int | None


class Variant(msgspec.Struct, frozen=True):
    """One way to tune: what the command line is given."""

    label: str
    arguments: tuple[str, ...]


class Run(msgspec.Struct, kw_only=True):
    """One tuning."""

    space: str
    variant: str
    round: int = 0
    place: int = 0
    """Its place in the round's order, from 0."""
    cores: int = 0
    error: str = ""
    """Why it does not count; empty when it does."""
    wall_s: float = 0.0
    """Start of the process to its end."""
    result_s: float | None = None
    """Start of the process to the journal's `run_finished`."""
    ordered_s: float | None = None
    """Start of the process to the journal's `final_ordered`: the winner is known, if not kept yet."""
    cpu_s: float = 0.0
    """Of the process and of every descendant."""
    best_config: dict[str, Any] | None = None
    latency_ms: float | None = None
    outcomes: dict[str, int] = {}
    stages: dict[str, float] = {}
    """Seconds of compiling and of measuring, as the run's ``--json`` has them."""
    devices: int = 0
    excluded: list[str] = []
    """Devices that took no part, as their references' seconds differ, and why."""
    measuring_s: float = 0.0
    """From the first begin of a first timing to the last one's end."""
    load_average: float = 0.0
    """The machine's of the last minute, at the end."""


class Bench(NamedTuple):
    """A benchmark of rounds. `options`: rounds, timeout, limit, out and resume. `settings`: what all runs of a result
    have in common. `whole`: whether a round that was broken off is run anew.
    """

    options: argparse.Namespace
    command: Callable[[Space, Variant, Path], list[str]]
    write: Callable[[dict[str, Any], Sequence[Run]], Mapping[str, str]]
    """Returns the texts of all files by name, ``table.md`` among them, from the result without runs, and the runs."""
    settings: dict[str, Any]
    whole: bool = True


def spaces_of(text: str, cores: int | None) -> list[Space]:
    """Read ``--spaces``. Exits with a message on what is unknown, and on more cores than there are."""
    there, found = len(os.sched_getaffinity(0)), []
    for label in names(text):
        name, at, count = label.rpartition("@")
        own = bool(at) and count.isdigit()
        wanted = int(count) if own else cores
        if wanted is not None and not 0 < wanted <= there:
            raise SystemExit(f"{label}: {wanted} cores are asked for, {there} are here")
        found.append(Space(label, space_of(name if own else label), wanted))
    return found


def schedule(rounds: int, spaces: Sequence[Space], variants: Sequence[Variant]) -> Iterator[tuple[int, Space, Variant]]:
    """Yield the runs; each round's order is the one before it turned by one place."""
    for round in range(rounds):
        turn = round % len(variants)
        for space in spaces:
            for variant in (*variants[turn:], *variants[:turn]):
                yield round, space, variant


def measure(
    bench: Bench, spaces: Sequence[Space], variants: Sequence[Variant], runs: list[Run], write: Callable[[], object],
    deadline: float, clock: Callable[[], float],
) -> str:  # fmt: skip
    """Run what `runs` has not, append it there and `write`. Returns why it ended before all was run, else nothing.

    A run is not begun when the longest of its space so far would not end before `deadline`, and one that the deadline
    cuts short is left out: it says nothing of its variant.
    """
    options, limit = bench.options, f"the limit of {bench.options.limit:g} s was reached"
    had = {(run.round, run.space, run.variant) for run in runs}
    planned = schedule(options.rounds, spaces, variants)
    todo = [(n, space, variant) for n, space, variant in planned if (n, space.label, variant.label) not in had]
    if todo:
        if (left := deadline - clock()) <= 0:
            return limit
        warm = Variant("warm-up", (*variants[0].arguments, "--budget", str(WARM_BUDGET)))
        run, _ = tune(bench, spaces[0], warm, min(options.timeout, left))
        _tell(f"thrown away: {run.wall_s:.1f} s {run.error}")
    for round, space, variant in todo:
        left = deadline - clock()
        longest = max((run.wall_s for run in runs if run.space == space.label and not run.error), default=0.0)
        if left <= longest:
            return limit
        run, timed_out = tune(bench, space, variant, min(options.timeout, left))
        if timed_out and left < options.timeout:
            return limit
        run.round, run.place = round, sum(one.round == round and one.space == space.label for one in runs)
        runs.append(run)
        _tell(f"round {round + 1}, {space.label}, {run.variant}: {run.wall_s:.1f} s {run.error}")
        write()
    return ""


def tune(bench: Bench, space: Space, variant: Variant, timeout_s: float) -> tuple[Run, bool]:
    """Tune once with empty caches. Returns also whether it was killed at `timeout_s`."""
    run = Run(space=space.label, variant=variant.label)
    with empty_caches("rounds-") as (folder, env), pinned(space.cores) as run.cores:
        journal = folder / "journal.jsonl"
        done = run_counted(
            bench.command(space, variant, journal), env=env, cwd=folder,
            timeout_s=timeout_s,
        )  # fmt: skip
        run.wall_s, run.cpu_s = round(done.wall_s, 3), round(done.cpu_s, 2)
        run.load_average = round(os.getloadavg()[0], 1)
        try:
            read_journal(run, journal, done.started)
        except (OSError, JournalError) as error:
            _tell(f"seconds to the result are not known: {error}")
        read_summary(run, done)
    return run, done.timed_out


def read_journal(run: Run, journal: Path, started: float) -> None:
    """Fill in what the journal of a run of one part tells; seconds are those from `started`, by the wall clock."""
    start_s, began_s = 0.0, math.inf
    for event in JournalReader(str(journal)):
        if isinstance(event, RunStarted):
            start_s, run.devices = event.time - event.mono - started, len(event.devices)
        elif isinstance(event, BenchmarkStarted):
            began_s = min(began_s, event.mono)
        elif isinstance(event, DeviceExcluded):
            run.excluded.append(event.reason)
        elif isinstance(event, (CandidateMeasured, BenchmarkFailed)):
            run.measuring_s = round(max(0.0, event.mono - began_s), 3)
        elif isinstance(event, FinalOrdered):
            run.ordered_s = round(start_s + event.mono, 3)
        elif isinstance(event, RunFinished):
            run.result_s = round(start_s + event.mono, 3)


def read_summary(run: Run, done: Finished) -> None:
    """Fill in the winner from the last line of the output, or why there is none."""
    lines = [line for line in done.output.splitlines() if line.strip()]
    summary: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        with suppress(ValueError):  # a run that is killed may leave half a line
            summary = json.loads(lines[-1])
    run.best_config, run.latency_ms = summary.get("best_config"), summary.get("latency_ms")
    keys = ("measured", "failed", "pruned", "duplicates", "remaining")
    run.stages = summary.get("stages", {})
    run.outcomes = {key: summary[key] for key in keys if summary.get(key)}
    if done.timed_out:
        run.error = f"killed after {done.wall_s:.0f} s"
    elif done.status != 0:
        run.error = f"exit status {done.status}: {' | '.join(lines[-3:])}"[:800]
    elif run.best_config is None:
        run.error = f"no winner: {' | '.join(lines[-3:])}"[:800]


@contextmanager
def pinned(cores: int | None) -> Iterator[int]:
    """Keep what is started meanwhile on the first `cores` cores; yields how many these are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


def waited(run: Run) -> float | None:
    """Return the share of `measuring_s` in which the devices in use had nothing to measure; None where none was."""
    could_s = (run.devices - len(run.excluded)) * run.measuring_s
    return 1 - run.stages["benchmark_s"] / could_s if could_s and run.stages else None


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float, float]:
    """Return (low, median, high, confidence): the distribution-free interval of the median, by order statistics.

    The narrowest one of at least `level`; with fewer than six values none has 95 %, and it is the least and the
    largest, with the confidence that they have (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2).
    """
    ordered, n = sorted(values), len(values)

    def confidence(k: int) -> float:
        return 1 - sum(math.comb(n, i) for i in range(k + 1)) / 2 ** (n - 1)

    k = max((k for k in range((n + 1) // 2) if confidence(k) >= level), default=0)
    return ordered[k], statistics.median(ordered), ordered[n - 1 - k], confidence(k)


def pairs(runs: Sequence[Run], space: str, variant: str, base: str) -> list[tuple[Run, Run]]:
    """Return the runs of `variant` with those of `base` of the same round, where both came to their end."""
    by = {(run.variant, run.round): run for run in runs if run.space == space and not run.error}
    rounds = sorted({run.round for run in runs})
    return [(by[variant, n], by[base, n]) for n in rounds if (variant, n) in by and (base, n) in by]


def ratios(found: Sequence[tuple[Run, Run]], figure: str) -> list[float]:
    """Return the ratios of `figure` by pair, where both have it."""
    values = [(getattr(run, figure), getattr(base, figure)) for run, base in found]
    return [value / of for value, of in values if value is not None and of]


def spread(values: Sequence[float]) -> str:
    """Return the median of `values`, with its interval where there are several."""
    if not values:
        return "–"
    low, middle, high, _ = interval(values)
    return f"{middle:.3f}" if len(values) == 1 else f"{middle:.3f} ({low:.3f}–{high:.3f})"


def earlier(bench: Bench, variants: Sequence[Variant], spaces: Sequence[Space]) -> list[Run]:
    """Return the runs in --out that count; where rounds must be whole, of this command's spaces those in such rounds.

    Exits with a message where they were run in another way.
    """
    file = bench.options.out / "result.json"
    if not file.exists():
        return []
    found = json.loads(file.read_bytes())
    if found["settings"] != (now := bench.settings):
        raise SystemExit(f"--resume: {file} was run with {found['settings']}, not {now}")
    runs = msgspec.convert(found["runs"], list[Run])
    if not bench.whole:
        return runs
    ours = {space.label for space in spaces}
    had = {(run.space, run.round, run.variant) for run in runs}
    whole = {(s, n) for s, n, _ in had if all((s, n, variant.label) in had for variant in variants)}
    return [run for run in runs if run.space not in ours or (run.space, run.round) in whole]


def add_options(made: argparse.ArgumentParser, rounds: int, limit_s: float) -> None:
    """Add the options that all benchmarks of rounds have."""
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--target", choices=["cuda", "c"], default="cuda")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one tuning; then all of it is killed")
    made.add_argument("--limit", type=float, default=limit_s, help="seconds for everything; what is done is told")
    made.add_argument("--rep", type=int, default=20)
    made.add_argument("--out", type=Path, help="folder for result.json and table.md")
    made.add_argument("--resume", action="store_true", help="go on with what is in --out")


def carry_out(
    bench: Bench, spaces: Sequence[Space], variants: Sequence[Variant], result: dict[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Measure, write and print. `result`: what the benchmark says of itself. Returns 1 where a run failed or none was
    done.
    """
    options = bench.options
    if options.resume and options.out is None:
        raise SystemExit("--resume needs --out")
    deadline = clock() + options.limit
    runs = earlier(bench, variants, spaces) if options.resume else []
    labels = [variant.label for variant in variants]
    result = {
        **result, "time": time.strftime("%Y-%m-%d"), "machine": machine(), "settings": bench.settings,
        "variants": labels, "rounds": options.rounds, "stopped": "",
    }  # fmt: skip

    def write() -> str:
        texts = bench.write(result, runs)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            everything = {**result, "runs": msgspec.to_builtins(runs)}
            (options.out / "result.json").write_text(json.dumps(everything, indent=1) + "\n")
            for name, text in texts.items():
                (options.out / name).write_text(text)
        return texts["table.md"]

    try:
        result["stopped"] = measure(bench, spaces, variants, runs, write, deadline, clock)
    except KeyboardInterrupt:
        result["stopped"] = "interrupted"
    print(write(), end="")
    return 1 if not runs or any(run.error for run in runs) else 0


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _tell(text: str) -> None:
    print(text.rstrip(), file=sys.stderr, flush=True)

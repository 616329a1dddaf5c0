"""The experiments of tilelang's pull request 2159 on atune's engine: pipeline, groups, several GPUs, and all at once.

    python bench/seed000.py --space roller20@2 --devices 0 --limit 245 --resume --out DIR
    python bench/seed000.py --space gemm288@32 --devices 0,1 --only all --limit 245 --resume --out DIR

`nothing` measures once all is compiled, compiles each candidate alone, measures on one device and does without cicc.
The experiments `pipeline`, `groups` and `devices` turn on that one feature. `all` turns on all three: with groups of 4,
as the pull request does, and then with automatic groups and cicc, as atune does by default.

As there, a product has M = N = K = 4096, and each timing 3 calls of warm-up and 20 samples. Inputs are made for each
candidate, and nothing is compared with a reference. `@2` is the pull request's `--cpu-count 2`.

Each run is a fresh process with empty caches, and the ways take turns. End to end are the seconds from the start of the
process to the result. Compile and benchmark seconds are those in which a worker compiled and a device measured, as
`atune tune --json` has them, without the final. figure.svg draws the three.

`--limit` ends in time with what is done; the same command with `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from counted import Finished, empty_caches, run_counted
from vs_tilelang import SPACES, gpus, machine, space_of

from atune.errors import JournalError
from atune.journal.events import DeviceExcluded, RunFinished, RunStarted
from atune.journal.reader import JournalReader

NOTHING = "nothing"
STAGES = {"end to end": "result_s", "compile": "compile_wall_s", "benchmark": "benchmark_wall_s"}
"""Kinds of seconds, and where a run has them."""
COLOURS = ("#3b76ea", "#c2620a", "#15803d")
COMMON: dict[str, Any] = {"n_warmup": 3, "benchmark_timeout_s": 180.0, "check": False, "cache_inputs": False}
"""The pull request's --warmup 3 --timeout 180 --skip-check --no-cache-input-tensors."""
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
    cores: int = 0
    error: str = ""
    """Why it does not count; empty when it does."""
    wall_s: float = 0.0
    """Start of the process to its end."""
    result_s: float | None = None
    """Start of the process to the journal's `run_finished`."""
    best_config: dict[str, Any] | None = None
    latency_ms: float | None = None
    outcomes: dict[str, int] = {}
    stages: dict[str, float] = {}
    """Seconds of compiling and of measuring, as the run's ``--json`` has them."""
    excluded: list[str] = []
    """Devices that took no part, as their references' seconds differ, and why."""


# ---- the ways


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(SPACES)
    made.add_argument("--space", default="roller20@2,gemm288", help=f"of {known}, FILE.py:NAME; each @CORES")
    made.add_argument("--only", default="", help="experiments: of pipeline, groups, devices, all")
    made.add_argument("--devices", default="", metavar="0,1", help="GPUs, by default all there are")
    made.add_argument("--budget", default="", metavar="N", help="candidates, by default all")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--target", choices=["cuda", "c"], default="cuda")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one tuning; then all of it is killed")
    made.add_argument("--limit", type=float, default=290.0, help="seconds for everything; what is done is told")
    made.add_argument("--rep", type=int, default=20)
    made.add_argument("--out", type=Path, help="folder for result.json and table.md")
    made.add_argument("--resume", action="store_true", help="go on with what is in --out")
    return made


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def spaces_of(text: str) -> list[Space]:
    """Read ``--spaces``. Exits with a message on what is unknown, and on more cores than there are."""
    there, found = len(os.sched_getaffinity(0)), []
    for label in names(text):
        name, at, count = label.rpartition("@")
        own = bool(at) and count.isdigit()
        wanted = int(count) if own else None
        if wanted is not None and not 0 < wanted <= there:
            raise SystemExit(f"{label}: {wanted} cores are asked for, {there} are here")
        found.append(Space(label, space_of(name if own else label), wanted))
    return found


def ways(devices: Sequence[str]) -> dict[str, list[Variant]]:
    """Return the variants by experiment, without `NOTHING`."""
    found = {
        "pipeline": [way("pipeline", devices[:1], "--pipeline")],
        "groups": [way(f"groups of {n}", devices[:1], "--group-size", str(n)) for n in (2, 4)]
        + [way("groups automatic", devices[:1], "--group-size", "0")],
        "all": [
            way("all, groups of 4", devices, "--pipeline", "--group-size", "4"),
            way("all", devices, "--pipeline", "--group-size", "0", "--cicc"),
        ],
    }
    return found if len(devices) < 2 else {"devices": [way(f"{len(devices)} devices", devices)], **found}


def way(label: str, devices: Sequence[str], *features: str) -> Variant:
    return Variant(label, ("--devices", ",".join(devices), *features))


def chosen(only: str, devices: Sequence[str]) -> list[Variant]:
    """Return `NOTHING`, and the variants of the experiments in `only`. Exits with a message on what is unknown."""
    known = ways(devices)
    if unknown := [name for name in names(only) if name not in known]:
        why = "needs several devices" if unknown[0] == "devices" else f"is unknown; there are {', '.join(known)}"
        raise SystemExit(f"--only: {unknown[0]!r} {why}")
    asked = names(only) or known
    return [way(NOTHING, devices[:1]), *(one for name, found in known.items() if name in asked for one in found)]


def tune(arguments: Sequence[str]) -> None:
    """Tune once, in this process, and print the result as JSON."""
    import atune
    from atune.reporting.summary import summary

    made = argparse.ArgumentParser()
    made.add_argument("ref")
    for name in ("--target", "--devices", "--journal", "--budget"):
        made.add_argument(name)
    made.add_argument("--rep", type=int)
    made.add_argument("--pipeline", action="store_true")
    made.add_argument("--group-size", type=int, default=1)
    made.add_argument("--cicc", action="store_true")
    given = made.parse_args(arguments)
    result = atune.run(
        given.ref,
        target=given.target,
        devices=given.devices,
        pipeline=given.pipeline,
        budget=given.budget,
        cached=False,
        journal=given.journal,
        compile=atune.CompileSettings(group_size=given.group_size or None, cicc=given.cicc),
        benchmark=atune.BenchmarkSettings(n_repeat=given.rep, **COMMON),
        progress=False,
    )
    print(json.dumps(summary(result)))


# ---- the runs


def schedule(rounds: int, spaces: Sequence[Space], variants: Sequence[Variant]) -> Iterator[tuple[int, Space, Variant]]:
    """Yield the runs; each round's order is the one before it turned by one place."""
    for round in range(rounds):
        turn = round % len(variants)
        for space in spaces:
            for variant in (*variants[turn:], *variants[:turn]):
                yield round, space, variant


def measure(options: argparse.Namespace, variants: Sequence[Variant], runs: list[Run], write: Any) -> str:
    """Run what `runs` has not, append it there and `write`. Returns why it ended before all was run, else nothing.

    A run is not begun when the longest of its space so far would not end in time, and one that the limit cuts short is
    left out.
    """
    spaces, deadline = spaces_of(options.space), time.monotonic() + options.limit
    limit, had = f"the limit of {options.limit:g} s was reached", {(run.round, run.space, run.variant) for run in runs}
    planned = schedule(options.rounds, spaces, variants)
    todo = [(n, space, variant) for n, space, variant in planned if (n, space.label, variant.label) not in had]
    if todo:
        warm = Variant("warm-up", (*variants[0].arguments, "--budget", str(WARM_BUDGET)))
        tuned(options, spaces[0], warm, options.limit)
    for round, space, variant in todo:
        left = deadline - time.monotonic()
        if left <= max((run.wall_s for run in runs if run.space == space.label and not run.error), default=0.0):
            return limit
        run, timed_out = tuned(options, space, variant, left)
        if timed_out and left < options.timeout:
            return limit
        run.round = round
        runs.append(run)
        print(f"round {round + 1}, {space.label}, {run.variant}: {run.wall_s:.1f} s {run.error}", file=sys.stderr)
        write()
    return ""


def tuned(options: argparse.Namespace, space: Space, variant: Variant, left: float) -> tuple[Run, bool]:
    """Tune once with empty caches. Returns also whether it was killed at its time limit."""
    run = Run(space=space.label, variant=variant.label)
    with empty_caches("rounds-") as (folder, env), pinned(space.cores) as run.cores:
        journal = folder / "journal.jsonl"
        command = [sys.executable, str(Path(__file__).resolve()), "--child", space.ref, "--target", options.target]
        command += ["--rep", str(options.rep), "--journal", str(journal), *variant.arguments]
        command += ["--budget", options.budget] if options.budget and "--budget" not in variant.arguments else []
        done = run_counted(command, env=env, cwd=folder, timeout_s=min(options.timeout, left))
        run.wall_s = round(done.wall_s, 3)
        with suppress(OSError, JournalError):
            read_journal(run, journal, done.started)
        read_summary(run, done)
    return run, done.timed_out


def read_journal(run: Run, journal: Path, started: float) -> None:
    """Fill in what the journal of a run of one part tells; seconds are those from `started`, by the wall clock."""
    start_s = 0.0
    for event in JournalReader(str(journal)):
        if isinstance(event, RunStarted):
            start_s = event.time - event.mono - started
        elif isinstance(event, DeviceExcluded):
            run.excluded.append(event.reason)
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


# ---- what it writes


def median(runs: Sequence[Run], figure: str) -> float | None:
    """Return the median of a figure over the runs that have it."""
    found = [run.result_s if figure == "result_s" else run.stages.get(figure) for run in runs]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None


def rows(runs: Sequence[Run], space: str, labels: Sequence[str]) -> dict[str, list[Run]]:
    """Return the runs of a space that came to a result, by way."""
    good = [run for run in runs if run.space == space and not run.error]
    return {label: found for label in labels if (found := [run for run in good if run.variant == label])}


def markdown(result: dict[str, Any], runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return a table for each space, and what failed."""
    where = result["machine"]
    lines = [f"`{result['command']}`", "", f"{where['gpu']}; tilelang {where['versions']['tilelang']}."]
    lines += ["", "Medians of seconds; in brackets how many times less than those of `nothing`."]
    if result["stopped"]:
        lines += ["", f"**Not all of {result['rounds']} rounds: {result['stopped']}.**"]
    head = ["way", "runs", *(f"{name} s" for name in STAGES), "summed: compile s", "benchmark s"]
    head += ["measured", "failed", "winner ms"]
    for space in dict.fromkeys(run.space for run in runs):
        found = rows(runs, space, labels)
        cores = max((run.cores for run in runs if run.space == space), default=0)
        lines += ["", f"## {space}, {cores} cores", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for label, own in found.items():
            cells = [compared(median(own, name), median(found.get(NOTHING, []), name)) for name in STAGES.values()]
            cells += [number(median(own, name)) for name in ("compile_s", "benchmark_s")]
            last = own[-1]
            cells += [str(last.outcomes.get(name, 0)) for name in ("measured", "failed")]
            lines.append(f"| {label} | {len(own)} | {' | '.join(cells)} | {last.latency_ms:.4f} |")
    if notes := [(run, why) for run in runs for why in (run.error, *run.excluded) if why]:
        lines += ["", "## Runs that failed, and devices that were excluded", ""]
        lines += [f"- {run.space}, round {run.round + 1}, {run.variant}: {why}" for run, why in notes]
    return "\n".join([*lines, ""])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def compared(value: float | None, base: float | None) -> str:
    return number(value) + (f" ({base / value:.2f})" if value and base and value is not base else "")


def figure(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the bars of all ways as SVG: for each space and way one for each kind of seconds."""
    drawn, top = [], 24
    for n, name in enumerate(STAGES):
        drawn.append(f'<rect x="{150 + 110 * n}" y="8" width="10" height="10" fill="{COLOURS[n]}"/>')
        drawn.append(f'<text x="{164 + 110 * n}" y="17">{name}</text>')
    for space in dict.fromkeys(run.space for run in runs):
        found = rows(runs, space, labels)
        seconds = {way: [median(own, name) or 0.0 for name in STAGES.values()] for way, own in found.items()}
        most = max((max(values) for values in seconds.values()), default=0.0) or 1.0
        drawn.append(f'<text x="10" y="{top + 20}" font-weight="bold">{escape(space)}, seconds</text>')
        top += 30
        for label, values in seconds.items():
            drawn.append(f'<text x="140" y="{top + 23}" text-anchor="end">{escape(label)}</text>')
            for n, value in enumerate(values):
                width, y = 460 * value / most, top + 12 * n
                drawn.append(f'<rect x="150" y="{y}" width="{width:.1f}" height="10" fill="{COLOURS[n]}"/>')
                drawn.append(f'<text x="{154 + width:.1f}" y="{y + 9}" font-size="10">{value:.2f}</text>')
            top += 44
    style = 'font-family="sans-serif" font-size="12" fill="#757f92"'
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{top}" {style}>\n{body}\n</svg>\n'


def earlier(options: argparse.Namespace, settings: dict[str, Any]) -> list[Run]:
    """Return the runs in --out. Exits with a message where they were run in another way."""
    if options.out is None:
        raise SystemExit("--resume needs --out")
    file = options.out / "result.json"
    if not file.exists():
        return []
    found = json.loads(file.read_bytes())
    if found["settings"] != settings:
        raise SystemExit(f"--resume: {file} was run with {found['settings']}, not {settings}")
    return msgspec.convert(found["runs"], list[Run])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Returns 1 where a run failed or none was done."""
    options = parser().parse_args(arguments)
    devices = ["cpu"] if options.target == "c" else names(options.devices) or gpus()
    if not devices:
        raise SystemExit("there is no GPU: give --target c")
    variants = chosen(options.only, devices)
    settings = {name: getattr(options, name) for name in ("target", "rep", "budget")} | {"devices": devices, **COMMON}
    runs = earlier(options, settings) if options.resume else []
    result = {
        "command": " ".join(["python", "bench/seed000.py", *(sys.argv[1:] if arguments is None else arguments)]),
        "time": time.strftime("%Y-%m-%d"), "machine": machine(), "settings": settings, "rounds": options.rounds,
        "variants": [variant.label for variant in variants], "stopped": "",
    }  # fmt: skip

    def write() -> str:
        labels = list(dict.fromkeys([*result["variants"], *(run.variant for run in runs)]))  # earlier ones stay
        table = markdown(result, runs, labels)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            everything = {**result, "runs": msgspec.to_builtins(runs)}
            (options.out / "result.json").write_text(json.dumps(everything, indent=1) + "\n")
            (options.out / "table.md").write_text(table)
            (options.out / "figure.svg").write_text(figure(runs, labels))
        return table

    try:
        result["stopped"] = measure(options, variants, runs, write)
    except KeyboardInterrupt:
        result["stopped"] = "interrupted"
    print(write(), end="")
    return 1 if not runs or any(run.error for run in runs) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        tune(sys.argv[2:])
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is told then, too
    raise SystemExit(main())

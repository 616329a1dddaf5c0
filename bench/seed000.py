"""Repeat the experiments of tilelang's pull request 2159 with atune: pipeline, groups, several GPUs, and all together.

    python bench/seed000.py --space roller20@2 --devices 0 --limit 245 --resume --out DIR
    python bench/seed000.py --space gemm288@32 --devices 0,1 --only all --limit 245 --resume --out DIR

`nothing` measures after all candidates are compiled, compiles each candidate by itself, measures on one device, and
does not use cicc. The experiments `pipeline`, `groups` and `devices` each turn on one feature. `all` turns on all
three: with groups of 4, as the pull request does, and then with automatic groups and cicc, as atune does by default.

As in the pull request, a product has M = N = K = 4096, a timing has 3 warm-up calls and 20 samples, inputs are made for
each candidate, and outputs are not compared with a reference. `@2` stands for its `--cpu-count 2`.

Each run is a fresh process with empty caches, and the ways take turns. End-to-end seconds last from the start of the
process to the result. Compile and benchmark seconds are those in which any worker compiled or any device measured,
without the final, as in `atune tune --json`. figure.svg shows all three.

At `--limit`, the results so far are written; the same command with `--resume` continues from there.
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
"""Kinds of seconds, with their names in a run."""
COLOURS = ("#3b76ea", "#c2620a", "#15803d")
COMMON: dict[str, Any] = {"n_warmup": 3, "benchmark_timeout_s": 180.0, "check": False, "cache_inputs": False}
"""The pull request's options --warmup 3 --timeout 180 --skip-check --no-cache-input-tensors."""
WARM_BUDGET = 4
"""Candidates of a first tuning that does not count, because it reads packages from the disk."""


class Space(msgspec.Struct, frozen=True):
    """A space to tune, and the number of cores to use; None for all cores."""

    label: str
    ref: str
    cores: int | None


class Variant(msgspec.Struct, frozen=True):
    """A way to tune: its options on the command line."""

    label: str
    arguments: tuple[str, ...]


class Run(msgspec.Struct, kw_only=True):
    """A tuning, with its figures."""

    space: str
    variant: str
    round: int = 0
    cores: int = 0
    error: str = ""
    """The reason that it does not count; empty if it counts."""
    wall_s: float = 0.0
    """From the start of the process to its end."""
    result_s: float | None = None
    """From the start of the process to the journal's `run_finished`."""
    best_config: dict[str, Any] | None = None
    latency_ms: float | None = None
    outcomes: dict[str, int] = {}
    stages: dict[str, float] = {}
    """Seconds of compiling and of measuring, from the run's ``--json``."""
    excluded: list[str] = []
    """The reasons for which devices were excluded: their times of the reference differ."""


# ---- the ways


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(SPACES)
    made.add_argument("--space", default="roller20@2,gemm288", help=f"{known}, or FILE.py:NAME; each may end in @CORES")
    made.add_argument("--only", default="", help="experiments: pipeline, groups, devices, all")
    made.add_argument("--devices", default="", metavar="0,1", help="GPUs, by default all")
    made.add_argument("--budget", default="", metavar="N", help="candidates, by default all")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--target", choices=["cuda", "c"], default="cuda")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds after which a tuning is killed")
    made.add_argument("--limit", type=float, default=290.0, help="seconds after which the results so far are written")
    made.add_argument("--rep", type=int, default=20)
    made.add_argument("--out", type=Path, help="folder for result.json and table.md")
    made.add_argument("--resume", action="store_true", help="continue the runs in --out")
    return made


def names(text: str) -> list[str]:
    """Split a list of names at its commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def spaces_of(text: str) -> list[Space]:
    """Read ``--space``. Exits with a message if a space is unknown, or asks for more cores than the machine has."""
    present, spaces = len(os.sched_getaffinity(0)), []
    for label in names(text):
        name, at, count = label.rpartition("@")
        own = bool(at) and count.isdigit()
        wanted = int(count) if own else None
        if wanted is not None and not 0 < wanted <= present:
            raise SystemExit(f"{label} asks for {wanted} cores, but this machine has {present}")
        spaces.append(Space(label, space_of(name if own else label), wanted))
    return spaces


def ways(devices: Sequence[str]) -> dict[str, list[Variant]]:
    """Return the variants by experiment, without `NOTHING`."""
    variants = {
        "pipeline": [way("pipeline", devices[:1], "--pipeline")],
        "groups": [way(f"groups of {n}", devices[:1], "--group-size", str(n)) for n in (2, 4)]
        + [way("groups automatic", devices[:1], "--group-size", "0")],
        "all": [
            way("all, groups of 4", devices, "--pipeline", "--group-size", "4"),
            way("all", devices, "--pipeline", "--group-size", "0", "--cicc"),
        ],
    }
    return variants if len(devices) < 2 else {"devices": [way(f"{len(devices)} devices", devices)], **variants}


def way(label: str, devices: Sequence[str], *features: str) -> Variant:
    return Variant(label, ("--devices", ",".join(devices), *features))


def chosen(only: str, devices: Sequence[str]) -> list[Variant]:
    """Return `NOTHING`, and the variants of the experiments in `only`. Exits with a message if one is unknown."""
    known = ways(devices)
    if unknown := [name for name in names(only) if name not in known]:
        why = "needs several devices" if unknown[0] == "devices" else f"is unknown: choose from {', '.join(known)}"
        raise SystemExit(f"--only: {unknown[0]!r} {why}")
    asked = names(only) or known
    return [way(NOTHING, devices[:1]), *(each for name, group in known.items() if name in asked for each in group)]


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
    """Yield the runs of all rounds. The order of the variants rotates from round to round."""
    for round in range(rounds):
        turn = round % len(variants)
        for space in spaces:
            for variant in (*variants[turn:], *variants[:turn]):
                yield round, space, variant


def measure(options: argparse.Namespace, variants: Sequence[Variant], runs: list[Run], write: Any) -> str:
    """Do the runs that `runs` lacks, append each to it, and `write`. Return the reason for an early end; else nothing.

    A run is not started if the longest run of its space so far would exceed the limit. A run that the limit cuts short
    is left out.
    """
    spaces, deadline = spaces_of(options.space), time.monotonic() + options.limit
    limit, done = f"the limit of {options.limit:g} s was reached", {(run.round, run.space, run.variant) for run in runs}
    planned = schedule(options.rounds, spaces, variants)
    todo = [(n, space, variant) for n, space, variant in planned if (n, space.label, variant.label) not in done]
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
    """Tune once with empty caches. Return the run, and whether it was killed at its time limit."""
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
    """Fill in the figures from the journal of a run that was not resumed. Seconds count from `started`, a wall time."""
    start_s = 0.0
    for event in JournalReader(str(journal)):
        if isinstance(event, RunStarted):
            start_s = event.time - event.mono - started
        elif isinstance(event, DeviceExcluded):
            run.excluded.append(event.reason)
        elif isinstance(event, RunFinished):
            run.result_s = round(start_s + event.mono, 3)


def read_summary(run: Run, done: Finished) -> None:
    """Fill in the winner from the last line of the output, or the reason that there is no winner."""
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
    """Bind processes that are started inside the context to the first `cores` cores. Yield the number of these."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


# ---- tables and figures


def median(runs: Sequence[Run], figure: str) -> float | None:
    """Return the median of a figure, over the runs that have it; None if none does."""
    values = [run.result_s if figure == "result_s" else run.stages.get(figure) for run in runs]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def rows(runs: Sequence[Run], space: str, labels: Sequence[str]) -> dict[str, list[Run]]:
    """Return a space's runs that had a result, by variant."""
    good = [run for run in runs if run.space == space and not run.error]
    return {label: own for label in labels if (own := [run for run in good if run.variant == label])}


def markdown(result: dict[str, Any], runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return a table for each space, and a list of failures."""
    where = result["machine"]
    lines = [f"`{result['command']}`", "", f"{where['gpu']}; tilelang {where['versions']['tilelang']}."]
    lines += ["", "Medians of seconds, and in brackets the speed-up over `nothing`."]
    if result["stopped"]:
        lines += ["", f"**Not all of {result['rounds']} rounds: {result['stopped']}.**"]
    head = ["way", "runs", *(f"{name} s" for name in STAGES), "summed: compile s", "benchmark s"]
    head += ["measured", "failed", "winner ms"]
    for space in dict.fromkeys(run.space for run in runs):
        by_way = rows(runs, space, labels)
        cores = max((run.cores for run in runs if run.space == space), default=0)
        lines += ["", f"## {space}, {cores} cores", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for label, own in by_way.items():
            cells = [compared(median(own, name), median(by_way.get(NOTHING, []), name)) for name in STAGES.values()]
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
    """Return a bar chart as SVG: for each space and variant, a bar for each kind of seconds."""
    drawn, top = [], 24
    for n, name in enumerate(STAGES):
        drawn.append(f'<rect x="{150 + 110 * n}" y="8" width="10" height="10" fill="{COLOURS[n]}"/>')
        drawn.append(f'<text x="{164 + 110 * n}" y="17">{name}</text>')
    for space in dict.fromkeys(run.space for run in runs):
        by_way = rows(runs, space, labels)
        seconds = {way: [median(own, name) or 0.0 for name in STAGES.values()] for way, own in by_way.items()}
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
    """Return the runs in --out. Exits with a message if they had other settings."""
    if options.out is None:
        raise SystemExit("--resume needs --out")
    file = options.out / "result.json"
    if not file.exists():
        return []
    known = json.loads(file.read_bytes())
    if known["settings"] != settings:
        raise SystemExit(f"--resume: {file} was run with {known['settings']}, not {settings}")
    return msgspec.convert(known["runs"], list[Run])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Return 1 if a run failed, or none was done."""
    options = parser().parse_args(arguments)
    devices = ["cpu"] if options.target == "c" else names(options.devices) or gpus()
    if not devices:
        raise SystemExit("there is no GPU: use --target c")
    variants = chosen(options.only, devices)
    settings = {name: getattr(options, name) for name in ("target", "rep", "budget")} | {"devices": devices, **COMMON}
    runs = earlier(options, settings) if options.resume else []
    result = {
        "command": " ".join(["python", "bench/seed000.py", *(sys.argv[1:] if arguments is None else arguments)]),
        "time": time.strftime("%Y-%m-%d"), "machine": machine(), "settings": settings, "rounds": options.rounds,
        "variants": [variant.label for variant in variants], "stopped": "",
    }  # fmt: skip

    def write() -> str:
        labels = list(dict.fromkeys([*result["variants"], *(run.variant for run in runs)]))  # with those of --resume
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the results so far are written
    raise SystemExit(main())

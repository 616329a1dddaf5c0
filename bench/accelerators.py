"""What each accelerator is worth: whole tunings with each one off, in turn with all on.

    python bench/accelerators.py --spaces gemm288,roller20@2,attention --out bench/results/accelerators

A round is one tuning with `--accelerate auto` and one with each `auto,-NAME`, every one a fresh process with empty
caches; the next round begins with another of them. Ratios are those within a round: what an accelerator's absence makes
of the wall seconds. `bench/checkouts.py` compares two checkouts of atune.

Seconds count from the start of the process to its end, and to the result, as its journal has it. Winners are told with
the latency that each run timed itself. Run times differ from host to host and from minute to minute: only ratios carry
over. `--resume` keeps what is in --out and runs what is missing; a round that is not whole is run anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from counted import Finished, empty_caches, run_counted
from vs_tilelang import SPACES, machine, space_of

from atune.errors import JournalError
from atune.journal.events import FinalOrdered, RunFinished, RunStarted
from atune.journal.reader import JournalReader
from atune.model.settings import ACCELERATE, ACCELERATORS

ON, PROOF = "auto", "proof"
EARNS = 1.10
"""The ratio of wall seconds from which on, on any space, an accelerator earns its place."""
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
    """Start of the process to the journal's `final_ordered`: the winner is known, if not proven or kept yet."""
    cpu_s: float = 0.0
    """Of the process and of every descendant."""
    best_config: dict[str, Any] | None = None
    latency_ms: float | None = None
    proven: bool | None = None
    """Whether the winner is proven plain; None where the run does not say."""
    outcomes: dict[str, int] = {}
    load_average: float = 0.0
    """The machine's of the last minute, at the end."""


# ---- what is run, and in which order


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(SPACES)
    made.add_argument("--spaces", default="gemm288,roller20@2,attention", help=f"of {known}, FILE.py:NAME; each @CORES")
    made.add_argument(
        "--accelerators",
        help="which are turned off, by default each; 'all': --accelerate off; 'proof': none, with --proof",
    )
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--cores", type=int, help="restrict tunings to the first N cores, where the space names none")
    made.add_argument("--target", choices=["cuda", "c"], default="cuda")
    made.add_argument("--proof", action="store_true", help="have every run prove its winner; left out by default")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one tuning; then all of it is killed")
    made.add_argument("--time-limit", type=float, default=math.inf, help="seconds for everything; what is done is told")
    made.add_argument("--rep", type=int, default=20)
    made.add_argument("--tune-options", default="", help="more of atune tune, for every run, such as '--seed 3'")
    made.add_argument("--out", type=Path, help="folder for result.json and table.md")
    made.add_argument("--resume", action="store_true", help="go on with what is in --out")
    return made


def spaces_of(text: str, cores: int | None) -> list[Space]:
    """Read ``--spaces``. Exits with a message on what is unknown, and on more cores than there are."""
    there, found = len(os.sched_getaffinity(0)), []
    for label in _names(text):
        name, at, count = label.rpartition("@")
        own = bool(at) and count.isdigit()
        wanted = int(count) if own else cores
        if wanted is not None and not 0 < wanted <= there:
            raise SystemExit(f"{label}: {wanted} cores are asked for, {there} are here")
        found.append(Space(label, space_of(name if own else label), wanted))
    return found


def environment(env: dict[str, str]) -> dict[str, str]:
    """Return `env` without the variable that chooses accelerators."""
    return {name: value for name, value in env.items() if name != ACCELERATE}


def variants_of(options: argparse.Namespace) -> list[Variant]:
    """Return what a round runs: first what the others are compared with."""
    names = ACCELERATORS if options.accelerators is None else _names(options.accelerators)
    if unknown := [name for name in names if name not in ("all", PROOF) and name not in ACCELERATORS]:
        raise SystemExit(f"--accelerators: {unknown[0]!r} is unknown; there are {', '.join(ACCELERATORS)}")
    how = {"all": ("--accelerate", "off"), PROOF: ("--accelerate", ON, "--proof")}
    off = [Variant(name, how.get(name, ("--accelerate", f"{ON},-{name}"))) for name in names]
    return [Variant(ON, ("--accelerate", ON)), *off]


def command_of(options: argparse.Namespace, space: Space, variant: Variant, journal: Path) -> list[str]:
    command = [sys.executable, "-m", "atune", "tune", space.ref, "--target", options.target]
    command += ["--rep", str(options.rep), "--journal", str(journal)]
    command += [*variant.arguments, *shlex.split(options.tune_options)]
    if not options.proof and variant.label != PROOF:
        command.append("--no-proof")
    return [*command, "--quiet", "--json"]


def schedule(rounds: int, spaces: Sequence[Space], variants: Sequence[Variant]) -> Iterator[tuple[int, Space, Variant]]:
    """Yield the runs; each round's order is the one before it turned by one place."""
    for round in range(rounds):
        turn = round % len(variants)
        for space in spaces:
            for variant in (*variants[turn:], *variants[:turn]):
                yield round, space, variant


# ---- running


def measure(
    options: argparse.Namespace, spaces: Sequence[Space], variants: Sequence[Variant], runs: list[Run],
    write: Callable[[], object], deadline: float, clock: Callable[[], float],
) -> str:  # fmt: skip
    """Run what `runs` has not, append it there and `write`. Returns why it ended before all was run, else nothing.

    A run is not begun when the longest of its space so far would not end before `deadline`, and one that the deadline
    cuts short is left out: it says nothing of its variant.
    """
    limit = f"--time-limit {options.time_limit:g} s was reached"
    had = {(run.round, run.space, run.variant) for run in runs}
    planned = schedule(options.rounds, spaces, variants)
    todo = [(n, space, variant) for n, space, variant in planned if (n, space.label, variant.label) not in had]
    if todo:
        if (left := deadline - clock()) <= 0:
            return limit
        warm = Variant(ON, (*variants[0].arguments, "--budget", str(WARM_BUDGET)))
        run, _ = tune(options, spaces[0], warm, min(options.timeout, left))
        _tell(f"thrown away: {run.variant}, {run.wall_s:.1f} s {run.error}")
    for round, space, variant in todo:
        left = deadline - clock()
        longest = max((run.wall_s for run in runs if run.space == space.label and not run.error), default=0.0)
        if left <= longest:
            return limit
        run, timed_out = tune(options, space, variant, min(options.timeout, left))
        if timed_out and left < options.timeout:
            return limit
        run.round, run.place = round, sum(one.round == round and one.space == space.label for one in runs)
        runs.append(run)
        _tell(f"round {round + 1}, {space.label}, {run.variant}: {run.wall_s:.1f} s {run.error}")
        write()
    return ""


def tune(options: argparse.Namespace, space: Space, variant: Variant, timeout_s: float) -> tuple[Run, bool]:
    """Tune once with empty caches. Returns also whether it was killed at `timeout_s`."""
    run = Run(space=space.label, variant=variant.label)
    with empty_caches("accelerators-") as (folder, env), pinned(space.cores) as run.cores:
        journal = folder / "journal.jsonl"
        done = run_counted(
            command_of(options, space, variant, journal), env=environment(env), cwd=folder,
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
    """Fill in the seconds from `started`, by the wall clock, to what is in the journal of the run's first part."""
    start_s = 0.0
    for event in JournalReader(str(journal)):
        if isinstance(event, RunStarted):
            start_s = event.time - event.mono - started
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
    run.proven = summary.get("proven")
    keys = ("measured", "failed", "pruned", "duplicates", "remaining")
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


def markdown(result: dict[str, Any], runs: Sequence[Run]) -> str:
    """Return the figures of all runs: a summary, then each space with its walls, ratios, winners and failures."""
    base, labels = result["variants"][0], result["variants"][1:]
    where = result["machine"]
    lines = [f"`{result['command']}`", "", f"{where['gpu']}; tilelang {where['versions']['tilelang']}."]
    lines += [
        "",
        f"Every run is a fresh process with empty caches. The proof of the winner is {result['proof']}. "
        "Ratios are off over auto, within a round: their median, "
        "in brackets its distribution-free interval by order statistics.",
    ]
    spaces = list(dict.fromkeys(run.space for run in runs))
    counts = {len(pairs(runs, space, label, base)) for space in spaces for label in labels}
    lines += [""] if counts - {0, 1} else []
    for n in sorted(counts - {0, 1}):
        confidence = interval([0.0] * n)[3]
        kind = "" if confidence >= 0.95 else ", the least and the largest ratio: too few pairs for 95 %"
        lines.append(f"- of {n} pairs: {100 * confidence:.1f} %{kind}")
    if result["stopped"]:
        lines += ["", f"**Not all of {result['rounds']} rounds: {result['stopped']}.**"]
    lines += ["", *_summary(runs, spaces, labels)]
    for space in spaces:
        cores = ", ".join(str(n) for n in sorted({run.cores for run in runs if run.space == space}))
        lines += [
            "",
            f"## {space}, {cores} core{'' if cores == '1' else 's'}",
            "",
            *_space_table(runs, space, base, labels),
        ]
        lines += ["", *_winners(runs, space, base, labels)]
    if failed := [run for run in runs if run.error]:
        lines += ["", "## Runs that failed", ""]
        lines += [f"- {run.space}, round {run.round + 1}, {run.variant}: {run.error}" for run in failed]
    return "\n".join([*lines, ""])


def _summary(runs: Sequence[Run], spaces: Sequence[str], labels: Sequence[str]) -> list[str]:
    head = ["off", *spaces, f"costs {100 * (EARNS - 1):.0f} % of a wall somewhere"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for label in labels:
        found = {space: ratios(pairs(runs, space, label, ON), "wall_s") for space in spaces}
        medians = {space: statistics.median(values) for space, values in found.items() if values}
        on = [space for space, middle in medians.items() if middle >= EARNS]
        verdict = f"yes: {', '.join(on)}" if on else "no" if len(medians) == len(spaces) else "not known yet"
        lines.append(f"| {label} | {' | '.join(_spread(found[space]) for space in spaces)} | {verdict} |")
    return lines


def _space_table(runs: Sequence[Run], space: str, base: str, labels: Sequence[str]) -> list[str]:
    head = ["off", "wall s, by round", "pairs", "ratio of walls", "to the result"]
    head += ["CPU seconds", "winner's latency", f"winner that of {base}", "failed"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for label in (base, *labels):
        own = sorted((r for r in runs if r.space == space and r.variant == label), key=lambda run: run.round)
        walls = " ".join("failed" if run.error else f"{run.wall_s:.1f}" for run in own) or "–"
        name = "nothing" if label == ON else label
        failed = sum(bool(run.error) for run in own)
        found = pairs(runs, space, label, base)
        cells = ["–"] * 6
        if label != base:
            figures = ("wall_s", "result_s", "cpu_s", "latency_ms")
            same = sum(run.best_config == of.best_config for run, of in found)
            cells = [str(len(found)), *(_spread(ratios(found, figure)) for figure in figures)]
            cells.append(f"{same} of {len(found)}")
        lines.append(f"| {name} | {walls} | {' | '.join(cells)} | {failed} of {len(own)} |")
    return lines


def _winners(runs: Sequence[Run], space: str, base: str, labels: Sequence[str]) -> list[str]:
    lines = ["Winners, with the latency that their own runs timed:", ""]
    for label in (base, *labels):
        by_config: dict[str, list[str]] = {}
        for run in runs:
            if run.space == space and run.variant == label and run.best_config is not None:
                config = ", ".join(f"{k}={v}" for k, v in run.best_config.items())
                by_config.setdefault(config, []).append(f"{run.latency_ms:.4f}")
        said = "; ".join(f"{config}: {', '.join(found)} ms" for config, found in by_config.items())
        lines.append(f"- {label}: {said or 'none'}")
    return lines


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, middle, high, _ = interval(values)
    return f"{middle:.3f}" if len(values) == 1 else f"{middle:.3f} ({low:.3f}–{high:.3f})"


# ---- the whole


def earlier(options: argparse.Namespace, variants: Sequence[Variant], spaces: Sequence[Space]) -> list[Run]:
    """Return the runs in --out that count; of this command's spaces those in rounds that are whole.

    Exits with a message where they were run in another way.
    """
    file = options.out / "result.json"
    if not file.exists():
        return []
    found = json.loads(file.read_bytes())
    if found["settings"] != (now := settings(options, variants)):
        raise SystemExit(f"--resume: {file} was run with {found['settings']}, not {now}")
    runs = msgspec.convert(found["runs"], list[Run])
    ours = {space.label for space in spaces}
    had = {(run.space, run.round, run.variant) for run in runs}
    whole = {(s, n) for s, n, _ in had if all((s, n, variant.label) in had for variant in variants)}
    return [run for run in runs if run.space not in ours or (run.space, run.round) in whole]


def settings(options: argparse.Namespace, variants: Sequence[Variant]) -> dict[str, Any]:
    """Return what all runs of one result have in common."""
    names = ("target", "cores", "proof", "rep", "tune_options")
    return {name: getattr(options, name) for name in names} | {"variants": [variant.label for variant in variants]}


def main(arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Measure and report. Returns 1 where a run failed or none was done."""
    options = parser().parse_args(arguments)
    if options.resume and options.out is None:
        raise SystemExit("--resume needs --out")
    deadline = clock() + options.time_limit
    spaces, variants = spaces_of(options.spaces, options.cores), variants_of(options)
    runs = earlier(options, variants, spaces) if options.resume else []
    result: dict[str, Any] = {
        "command": " ".join(["python", "bench/accelerators.py", *(sys.argv[1:] if arguments is None else arguments)]),
        "time": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "settings": settings(options, variants),
        "variants": [variant.label for variant in variants],
        "rounds": options.rounds,
        "proof": "included" if options.proof else "left out",
        "stopped": "",
    }
    try:
        result["stopped"] = measure(
            options, spaces, variants, runs, lambda: _write(options, result, runs), deadline, clock
        )
    except KeyboardInterrupt:
        result["stopped"] = "interrupted"
    print(_write(options, result, runs), end="")
    return 1 if not runs or any(run.error for run in runs) else 0


def _write(options: argparse.Namespace, result: dict[str, Any], runs: Sequence[Run]) -> str:
    text = markdown(result, runs)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        everything = {**result, "runs": msgspec.to_builtins(runs)}
        (options.out / "result.json").write_text(json.dumps(everything, indent=1) + "\n")
        (options.out / "table.md").write_text(text)
    return text


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _tell(text: str) -> None:
    print(text.rstrip(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is told then, too
    raise SystemExit(main())

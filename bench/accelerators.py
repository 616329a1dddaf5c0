"""What cicc is worth: whole tunings with it off, in turn with it on.

    python bench/accelerators.py --spaces gemm288,roller20@2,attention --out bench/results/accelerators

A round is one tuning with `--cicc` and one with each option of `OFF`, every one a fresh process with empty caches; the
next round begins with another of them. Ratios are those within a round: what its absence makes of the
wall seconds. `bench/checkouts.py` compares two checkouts of atune.

Seconds count from the start of the process to its end, and to the result, as its journal has it. Winners are told with
the latency that each run timed itself. Run times differ from host to host and from minute to minute: only ratios carry
over. `--resume` keeps what is in --out and runs what is missing; a round that is not whole is run anew.
"""

from __future__ import annotations

import argparse
import math
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rounds import (
    Bench,
    Run,
    Space,
    Variant,
    add_options,
    carry_out,
    interval,
    pairs,
    ratios,
    spaces_of,
    spread,
)
from vs_tilelang import SPACES

ON, OFF = "auto", {"cicc": "--no-cicc"}
"""The labels of what is compared, and what turns each of the others off."""
EARNS = 1.10
"""The ratio of wall seconds from which on, on any space, it earns its place."""


# ---- what is run, and in which order


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(SPACES)
    made.add_argument("--spaces", default="gemm288,roller20@2,attention", help=f"of {known}, FILE.py:NAME; each @CORES")
    add_options(made, rounds=5, limit_s=math.inf)
    made.add_argument("--cores", type=int, help="restrict tunings to the first N cores, where the space names none")
    made.add_argument("--tune-options", default="", help="more of atune tune, for every run, such as '--seed 3'")
    return made


def variants() -> list[Variant]:
    """Return what a round runs: first what the others are compared with."""
    return [Variant(ON, ("--cicc",)), *(Variant(name, (option,)) for name, option in OFF.items())]


def command_of(options: argparse.Namespace, space: Space, variant: Variant, journal: Path) -> list[str]:
    command = [sys.executable, "-m", "atune", "tune", space.ref, "--target", options.target]
    command += ["--rep", str(options.rep), "--journal", str(journal)]
    command += [*variant.arguments, *shlex.split(options.tune_options)]
    return [*command, "--quiet", "--json"]


# ---- what it writes


def markdown(result: dict[str, Any], runs: Sequence[Run]) -> str:
    """Return the figures of all runs: a summary, then each space with its walls, ratios, winners and failures."""
    base, labels = result["variants"][0], result["variants"][1:]
    where = result["machine"]
    lines = [f"`{result['command']}`", "", f"{where['gpu']}; tilelang {where['versions']['tilelang']}."]
    lines += [
        "",
        "Every run is a fresh process with empty caches. "
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
        lines.append(f"| {label} | {' | '.join(spread(found[space]) for space in spaces)} | {verdict} |")
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
            cells = [str(len(found)), *(spread(ratios(found, figure)) for figure in figures)]
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


# ---- the whole


def main(arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Measure and report. Returns 1 where a run failed or none was done."""
    options = parser().parse_args(arguments)
    spaces, compared = spaces_of(options.spaces, options.cores), variants()
    common = {name: getattr(options, name) for name in ("target", "cores", "rep", "tune_options")}

    def command(space: Space, variant: Variant, journal: Path) -> list[str]:
        return command_of(options, space, variant, journal)

    def write(result: dict[str, Any], runs: Sequence[Run]) -> Mapping[str, str]:
        return {"table.md": markdown(result, runs)}

    result = {
        "command": " ".join(["python", "bench/accelerators.py", *(sys.argv[1:] if arguments is None else arguments)]),
    }
    settings = common | {"variants": [variant.label for variant in compared]}
    return carry_out(Bench(options, command, write, settings), spaces, compared, result, clock)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is told then, too
    raise SystemExit(main())

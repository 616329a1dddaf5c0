"""Simulate strategies without a prior on spaces that other tuners measured in full, one candidate after another.

    python bench/hub.py SPACE.json.xz … --strategy bayesian --budget 200 --seeds 20 --json

Plays a strategy on each file: a recorded journal, or JSON, also compressed, with `axes` (values by name) and `rows` (a
value for each axis, then milliseconds, or null for a failure). Prints the median regret after 25, 50, 100 and 200
evaluations, the number of seeds within 2 and 5 % of the best, and the CPU seconds per seed. `--outstanding`: most
candidates without an outcome at a time; by default one, as in Kernel Tuner's simulations.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from recording import Recording, Tried, read_recording

from atune.engine.strategy import AUTO, Guarded, Searched, check_given, chosen, make_strategy

MARKS = (25, 50, 100, 200)
PROCESSES = 2


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all seeds after some evaluations."""

    evaluations: int
    regret_median: float
    within_2pct: int
    within_5pct: int


class Played(msgspec.Struct, frozen=True, kw_only=True):
    space: str
    candidates: int
    strategy: str
    outstanding: int
    seeds: int
    marks: list[Mark]
    cpu_s: float
    """CPU seconds per seed."""


def read_space(path: Path) -> Recording:
    """Read a journal, or a space as JSON."""
    if ".json" not in path.suffixes:
        return read_recording(path)
    data = json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
    names, rows = list(data["axes"]), data["rows"]
    configs = {index: dict(zip(names, row, strict=False)) for index, row in enumerate(rows)}
    tried = {index: Tried(row[-1], "" if row[-1] is not None else "runtime") for index, row in enumerate(rows)}
    return Recording(configs, tried, {})


def play(recording: Recording, strategy: str, budget: int, outstanding: int, seed: int) -> tuple[list[float], float]:
    """Play a run. Return the best latency after each candidate, and the CPU seconds of the run."""
    began, curve, best = time.process_time(), list[float](), math.inf
    searched = Searched(recording.configs, seed, budget, default=recording.default)
    guarded = Guarded(make_strategy(strategy, searched), recording.configs, searched.first)
    asked, left = deque[int](), min(budget, len(recording.configs))
    while len(curve) < min(budget, len(recording.configs)):
        while left and len(asked) < outstanding and (index := guarded.ask()) is not None:
            asked.append(index)
            left -= 1
        index = asked.popleft()
        tried = recording.tried[index]
        guarded.tell(index, tried.latency_ms, tried.reason)
        best = best if tried.latency_ms is None else min(best, tried.latency_ms)
        curve.append(best)
    return curve, time.process_time() - began


def played(path: Path, strategy: str, budget: int, outstanding: int, seeds: int) -> Played:
    recording = read_space(path)
    if strategy == AUTO:
        strategy = chosen(len(recording.configs), budget, limited=True)
    run = partial(play, recording, strategy, budget, outstanding)
    with multiprocessing.get_context("fork").Pool(min(PROCESSES, seeds)) as pool:
        trials = pool.map(run, range(seeds))
    marks = []
    for mark in [*(mark for mark in MARKS if mark < budget), budget]:
        regrets = [curve[min(mark, len(curve)) - 1] / recording.best_ms - 1 for curve, _ in trials]
        within = [sum(regret <= most + 1e-12 for regret in regrets) for most in (0.02, 0.05)]
        regret = round(statistics.median(regrets), 5)
        marks.append(Mark(evaluations=mark, regret_median=regret, within_2pct=within[0], within_5pct=within[1]))
    return Played(
        space=path.name.partition(".")[0],
        candidates=len(recording.configs),
        strategy=strategy,
        outstanding=outstanding,
        seeds=seeds,
        marks=marks,
        cpu_s=round(statistics.mean(cpu_s for _, cpu_s in trials), 3),
    )


def lines_of(r: Played) -> list[str]:
    head = f"{r.space}: {r.candidates} candidates, {r.strategy}, {r.outstanding} outstanding, {r.seeds} seeds"
    return [
        f"{head}, {r.cpu_s:g} CPU s per seed",
        *(
            f"  {mark.evaluations:4} evaluations: {100 * mark.regret_median:6.2f} % above the best (median), "
            f"{mark.within_2pct} seeds within 2 %, {mark.within_5pct} within 5 %"
            for mark in r.marks
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--strategy", default=AUTO, metavar="NAME")
    parser.add_argument("--budget", type=int, default=MARKS[-1], metavar="N")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--outstanding", type=int, default=1, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    check_given(options.strategy)
    results = []
    for path in options.files:
        results.append(played(path, options.strategy, options.budget, options.outstanding, options.seeds))
        if not options.json:
            print("\n".join(lines_of(results[-1])), flush=True)
    if options.json:
        print(json.dumps(msgspec.to_builtins(results)))


if __name__ == "__main__":
    main()

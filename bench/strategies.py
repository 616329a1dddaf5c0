"""Simulate strategies on recorded spaces: how near to the best they come, and after how many candidates.

    python bench/strategies.py --seeds 100

Plays every strategy of `--strategies` on every space of `--spaces` under `--budget`. With `--prior`, strategies get its
estimates, except for exhaustive and random, which use none. Writes table.md and result.json to results/strategies, or,
with `--prior`, to results/strategies_prior. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from prior import facts_of
from recording import Recording, read_recording
from simulate import Summary, simulate
from spaces import FOLDER, SPACES, SUFFIX

from atune.model.settings import Budget

RESULTS = Path(__file__).resolve().parent / "results"
GEMM288 = RESULTS / "gemm288" / "atune.jsonl"
STRATEGIES = ("exhaustive", "random", "bayesian")
BUDGET = "10%"
LEAST_PART = 80
"""Fewest candidates of a part of a space that is played by itself."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    space: str
    total: int
    summary: Summary
    low_2pct: float
    high_2pct: float
    cpu_ms: float
    """CPU milliseconds per candidate, of the strategy and the simulation."""


def interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share of `count` seeds."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children that it has reaped."""
    import resource

    of = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def play(
    space: str, recording: Recording, strategy: str, limit: Budget, seeds: int, processes: int, prior: bool = False
) -> Row:
    before, budget = cpu_s(), limit.most(len(recording.configs)) or len(recording.configs)
    how = {"budget": budget, "seeds": seeds, "processes": processes, "prior": prior, "auto": limit.auto}
    summary, trials = simulate(recording, strategy, **how)
    low, high = interval(summary.within_2pct, seeds)
    return Row(
        space=space,
        total=len(recording.configs),
        summary=summary,
        low_2pct=round(low, 3),
        high_2pct=round(high, 3),
        cpu_ms=round(1e3 * (cpu_s() - before) / sum(len(trial.settled) for trial in trials), 2),
    )


def shown(row: Row) -> str:
    s = row.summary
    to_2pct = "–" if s.evaluations_to_2pct_median is None else f"{s.evaluations_to_2pct_median:g}"
    return (
        f"| {row.space} ({row.total}) | {s.evaluations_median:g} | {s.strategy} | {100 * s.within_1pct:.0f} | "
        f"{100 * s.within_2pct:.0f} ({100 * row.low_2pct:.0f}–{100 * row.high_2pct:.0f}) | {100 * s.within_5pct:.0f} | "
        f"{100 * s.regret_median:.2f} | {to_2pct} | {s.wall_s_median:.1f} | {row.cpu_ms:.1f} |"
    )


def overall(rows: list[Row]) -> str:
    """Summarise all seeds of all spaces in a sentence."""
    within = statistics.fmean(row.summary.within_2pct for row in rows)
    share = statistics.median(row.summary.evaluations_median / row.total for row in rows)
    of_all = sum(row.summary.evaluations_median for row in rows) / sum(row.total for row in rows)
    return f"{within:.0%} of all seeds came within 2 %, by trying {share:.1%} (median space), {of_all:.1%} of all."


def page(rows: list[Row], command: str, seeds: int, budget: str, prior: bool) -> str:
    having = "with the prior (exhaustive and random use none)" if prior else "without a prior"
    lines = [
        "# Strategies on recorded spaces",
        "",
        f"    {command}",
        "",
        f"Simulated, {seeds} seeds each, {having}, 16 compile workers and one",
        f"device. The budget is {budget.replace('%', ' % of the candidates')}. {overall(rows)}",
        "Shares are of seeds, in per cent, with Wilson's 95 % interval in brackets. Regret: the median excess of the",
        "best candidate that was tried over the best of the space.",
        "",
        "| space (candidates) | tried | strategy | within 1 % | within 2 % | within 5 % | regret % | to 2 % after | "
        "wall s | CPU ms per candidate |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(shown, rows),
    ]
    return "\n".join(lines) + "\n"


def recorded(space: str) -> Recording:
    if space != "gemm288":
        return read_recording(FOLDER / f"{space}{SUFFIX}")
    return replace(read_recording(GEMM288), facts=facts_of(space))


def parts(recording: Recording) -> list[Recording]:
    """Return the parts of a space with, or without, a value of an axis, of at least `LEAST_PART` candidates."""
    values = {(axis, repr(value)) for config in recording.configs.values() for axis, value in config.items()}
    split = dict[frozenset[int], None]()
    for axis, value in sorted(values):
        having = frozenset(index for index, config in recording.configs.items() if repr(config.get(axis)) == value)
        split |= dict.fromkeys((having, frozenset(recording.configs) - having))
    kept = [part for part in split if LEAST_PART <= len(part) < len(recording.configs)]
    return [part for part in (part_of(recording, indices) for indices in kept) if math.isfinite(part.best_ms)]


def part_of(recording: Recording, indices: frozenset[int]) -> Recording:
    fields = {"configs": recording.configs, "tried": recording.tried, "facts": recording.facts}
    less = {name: {index: of[index] for index in sorted(indices & of.keys())} for name, of in fields.items()}
    return replace(recording, **less, default=recording.default if recording.default in indices else None)


def play_parts(space: str, strategy: str, budget: Budget, seeds: int, prior: bool) -> list[tuple[float, float]]:
    """Return, for each part of a space, the share of seeds within 2 % of its best, and the candidates tried."""
    results = []
    for part in parts(recorded(space)):
        summary = play(space, part, strategy, budget, seeds, 1, prior).summary
        results.append((summary.within_2pct, summary.evaluations_median))
    if results:
        print(f"{space}: {len(results)} parts, {statistics.fmean(r[0] for r in results):.1%} of the seeds within 2 %")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", nargs="+", default=["gemm288", *SPACES], metavar="NAME")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budget", default=BUDGET)
    parser.add_argument("--prior", action="store_true", help="with estimates from the facts next to the recordings")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", action="store_true", help="play parts of the spaces, each with one value of an axis")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.parts:
        how = (options.strategies[0], Budget.parse(options.budget), options.seeds, options.prior)
        of_all = [each for space in options.spaces for each in play_parts(space, *how)]
        within, tried = (statistics.fmean(column) for column in zip(*of_all, strict=True))
        print(f"{len(of_all)} parts: {within:.1%} of the seeds within 2 %, {tried:.1f} tried on average")
        return
    options.out = options.out or RESULTS / ("strategies_prior" if options.prior else "strategies")
    options.out.mkdir(parents=True, exist_ok=True)
    rows, began = list[Row](), time.monotonic()
    command = f"python bench/strategies.py {shlex.join(sys.argv[1:])}"
    for space in options.spaces:
        recording = recorded(space)
        budget = Budget.parse(options.budget)
        for strategy in options.strategies:
            # its order is always the same
            seeds = 1 if strategy == "exhaustive" else options.seeds
            rows.append(play(space, recording, strategy, budget, seeds, min(options.processes, seeds), options.prior))
            print(f"{time.monotonic() - began:6.0f} s {shown(rows[-1])}", flush=True)
        (options.out / "table.md").write_text(page(rows, command, options.seeds, options.budget, options.prior))
        data = {"seeds": options.seeds, "rows": msgspec.to_builtins(rows)}
        (options.out / "result.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()

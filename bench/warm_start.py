"""Warm starts on recorded matrix products, simulated: what advice of another shape saves, and what wrong advice costs.

    python bench/warm_start.py --seeds 20

Plays every strategy of `--strategies` on every space of `--spaces`, without advice, with the best of another
recording first, and with the worst configurations there first. Writes table.md and
result.json to results/warm, with `--prior` to results/warm_prior. Rows of spaces and strategies that are left out stay.
Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from recording import Recording
from simulate import Summary, fields_of_facts, simulate_seeds, summary_of
from strategies import RESULTS, interval, recorded

from atune.engine.search.prior import figures_for
from atune.engine.search.strategies import make_strategy
from atune.frontends.api.warm_start import FIRST
from atune.model.candidate import config_key
from atune.model.settings import Budget

SOURCES = {
    "gemm_odd": ("gemm_unaligned", "gemm_tall", "gemm_square"),
    "gemm_unaligned": ("gemm_odd", "gemm_tall", "gemm_square"),
    "gemm_tall": ("gemm_odd", "gemm_unaligned", "gemm_square"),
    "gemm_square": ("gemm_odd", "gemm_unaligned", "gemm_tall"),
}
"""Whose recordings advise a space, each by itself: of the same kernel, with configurations that both spaces have."""
STRATEGIES = ("random", "forest")
BEST, WORST = "best", "worst"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    space: str
    total: int
    source: str
    advice: str
    """`BEST`, `WORST`, or empty: what there comes first here."""
    advised: int
    """Candidates that are tried first on advice."""
    summary: Summary


def advised_by(source: Recording, here: Recording, advice: str, budget: int) -> list[int]:
    """Return what a run on `here` tries first: the best of `source`, or its worst."""
    there = {config_key(source.configs[i]): t.latency_ms for i, t in source.tried.items() if t.latency_ms is not None}
    indices = {config_key(config): index for index, config in here.configs.items()}
    ranked = sorted(there.keys() & indices.keys(), key=lambda key: there[key], reverse=advice == WORST)
    return [indices[key] for key in ranked[: min(FIRST, max(1, budget // 2))]]


def play(space: str, strategy: str, source: str, advice: str, percent: str, seeds: int, prior: bool) -> Row:
    here = recorded(space)
    budget = Budget.parse(percent).most(len(here.configs)) or len(here.configs)
    known = advised_by(recorded(source), here, advice, budget) if source else []
    make = partial(make_strategy, strategy)
    figures = figures_for(here.target, here.devices)
    more = fields_of_facts(here.facts, figures) if prior else {}
    trials = simulate_seeds(here, make, budget=budget, seeds=range(seeds), known={"advised": known, **more})
    return Row(
        space=space,
        total=len(here.configs),
        source=source,
        advice=advice,
        advised=len(known),
        summary=summary_of(strategy, budget, trials, here),
    )


def shown(row: Row) -> str:
    s = row.summary
    to_2pct = "–" if s.evaluations_to_2pct_median is None else f"{s.evaluations_to_2pct_median:g}"
    low, high = interval(s.within_2pct, s.seeds)
    told = f"{row.advice} of {row.source}" if row.source else "–"
    return (
        f"| {row.space} ({row.total}) | {s.evaluations} | {s.strategy} | {told} | "
        f"{100 * s.within_2pct:.0f} ({100 * low:.0f}–{100 * high:.0f}) | {100 * s.regret_median:.2f} | {to_2pct} |"
    )


def page(rows: list[Row], percent: str, seeds: int, prior: bool) -> str:
    lines = [
        "# Warm starts on recorded matrix products",
        "",
        f"Simulated, {seeds} seeds each, {'with the prior' if prior else 'without a prior'}, 16 compile workers and",
        f"one device. The budget is {percent} of the candidates, with those that are advised. Advice: the best of",
        "another shape's recording come first, or the worst ones, as wrong advice. Within 2 %: share of the seeds, in",
        "per cent; in brackets Wilson's 95 % interval. Regret and candidates to 2 % are medians; – where more than",
        "half of the seeds did not get there.",
        "",
        "| space (candidates) | tried | strategy | advice | within 2 % | regret % | to 2 % after |",
        "|---|---|---|---|---|---|---|",
        *map(shown, rows),
    ]
    return "\n".join(lines) + "\n"


def place(row: Row) -> tuple[int, int]:
    return list(SOURCES).index(row.space), (*STRATEGIES, row.summary.strategy).index(row.summary.strategy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", nargs="+", default=list(SOURCES), choices=list(SOURCES), metavar="NAME")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", default="10%")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--prior", action="store_true", help="with estimates from the facts beside the recordings")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or RESULTS / ("warm_prior" if options.prior else "warm")
    options.out.mkdir(parents=True, exist_ok=True)
    path, began = options.out / "result.json", time.monotonic()
    earlier = msgspec.convert(json.loads(path.read_text())["rows"], list[Row]) if path.exists() else []
    rows = [row for row in earlier if row.space not in options.spaces or row.summary.strategy not in options.strategies]
    for space in options.spaces:
        told = [("", ""), *((source, advice) for source in SOURCES[space] for advice in (BEST, WORST))]
        plays = [(strategy, source, advice) for strategy in options.strategies for source, advice in told]
        strategies, sources, kinds = zip(*plays, strict=True)
        with ProcessPoolExecutor(options.processes) as pool:
            one = partial(play, space, percent=options.budget, seeds=options.seeds, prior=options.prior)
            for row in pool.map(one, strategies, sources, kinds):
                rows.append(row)
                print(f"{time.monotonic() - began:6.0f} s {shown(row)}", flush=True)
        rows.sort(key=place)
        (options.out / "table.md").write_text(page(rows, options.budget, options.seeds, options.prior))
        data = {"seeds": options.seeds, "budget": options.budget, "rows": msgspec.to_builtins(rows)}
        path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Where a set's budget goes, simulated on recorded spaces as its problems: the same total, shared out in three ways.

    python bench/set_budget.py --out bench/results/set_budget

`equal`: each problem has the same. `weight`: what atune does, `shares`. `gain`: half of it for each, and the other half
by weight × what the last half of that has gained. The figure is the mean regret of the problems, by their weights.
These are drawn anew for each seed, log-normal with the given sigma; 0: all are equal. Needs no GPU and no torch.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from common import options
from recording import Recording
from simulate import simulate_seeds
from spaces import SPACES
from strategies import recorded

from atune.engine.search.registry import make_strategy
from atune.engine.search.survey_columns import fields_of_facts, figures_for
from atune.frontends.sets.budget import shares

SETS = {"gemm": tuple(name for name in SPACES if name.startswith("gemm")), "all": tuple(SPACES)}
WAYS = ("equal", "weight", "gain")


@cache
def read(space: str) -> tuple[Recording, dict[str, Any]]:
    """Return a recorded space, and what the prior knows of it."""
    recording = recorded(space)
    return recording, fields_of_facts(recording.facts, figures_for(recording.target, recording.devices))


@cache
def curve(space: str, strategy: str, seed: int, budget: int) -> tuple[float, ...]:
    """Return the regret after each candidate of one run, where nothing is slower than the median: it is the default's.

    All but random have the prior.
    """
    recording, known = read(space)
    make, known = partial(make_strategy, strategy), {} if strategy == "random" else known
    [trial] = simulate_seeds(recording, make, budget=budget, seeds=[seed], known=known)
    known_ms = [tried.latency_ms for tried in recording.tried.values() if tried.latency_ms is not None]
    return tuple(min(best, statistics.median(known_ms)) / recording.best_ms - 1 for best in trial.curve)


def budgets(
    way: str, weights: Sequence[float], strategy: str, spaces: Sequence[str], seed: int, each: int
) -> list[int]:
    """Return how many candidates each problem tries: no more than `each` times the problems together."""
    if way == "equal":
        return [each] * len(spaces)
    if way == "weight":
        return [math.floor(round(share * each, 6)) for share in shares(weights)]
    half, found = each // 2, [each // 2] * len(spaces)
    runs = [curve(space, strategy, seed, half) for space in spaces]
    gains = [w * (math.log1p(run[half // 2 - 1]) - math.log1p(run[-1])) for w, run in zip(weights, runs, strict=True)]
    for _ in range(each * len(spaces) - sum(found)):  # in proportion, one at a time: D'Hondt's way
        found[max(range(len(found)), key=lambda n: (gains[n] / (found[n] - half + 1), -found[n]))] += 1
    return found


def regret(way: str, strategy: str, spaces: Sequence[str], seed: int, each: int, sigma: float) -> float:
    """Return the weighted regret of a set, whose weights `seed` draws."""
    draw = random.Random(seed)
    weights = [math.exp(draw.gauss(0, sigma)) for _ in spaces]
    counts = budgets(way, weights, strategy, spaces, seed, each)
    assert sum(counts) <= each * len(spaces)
    ends = [curve(space, strategy, seed, count)[-1] for space, count in zip(spaces, counts, strict=True)]
    return math.fsum(w * end for w, end in zip(weights, ends, strict=True)) / math.fsum(weights)


def main() -> None:
    given = options("where a set's budget goes", 590.0, seeds=40, forest_seeds=12, budget=24)
    rows = []
    for strategy, sigma in ((s, sigma) for s in ("random", "prior", "forest") for sigma in (0.0, 1.5)):
        seeds = range(given.forest_seeds if strategy == "forest" else given.seeds)
        for name, spaces in SETS.items():
            row: dict[str, Any] = {"set": name, "strategy": strategy, "sigma": sigma, "seeds": len(seeds)}
            found = {
                way: [regret(way, strategy, spaces, seed, given.budget, sigma) for seed in seeds]
                for way in WAYS
                if way != "gain" or strategy != "forest"  # whose second half depends on what it was told
            }
            for way, ends in found.items():
                saved = [end - equal for end, equal in zip(ends, found["equal"], strict=True)]
                error = statistics.stdev(saved) / math.sqrt(len(saved))
                row[way] = {"regret": round(statistics.fmean(ends), 5), "to_equal": round(statistics.fmean(saved), 5)}
                row[way]["standard_error"] = round(error, 5)
            rows.append(row)
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    if given.out is not None:
        command = f"python bench/set_budget.py {' '.join(sys.argv[1:])}"
        text = json.dumps({"command": command, "budget": given.budget, "rows": rows}, indent=1)
        (given.out / "set_budget.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

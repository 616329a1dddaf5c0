"""How often tunings of the same set agree: 14 problems, five times, on one GPU, on all, and on a busy host.

    python bench/agreement.py --out bench/results/agreement

Each tuning is a fresh process with empty caches and the same budget. For each problem the most frequent winner is the
standard. Counted are the winners that differ from it; for each of these, how much slower it is than the standard, by
the latencies of its own run: the final's where both were in it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections import Counter
from contextlib import contextmanager
from typing import Any

from common import options, report
from sets import PROBLEMS, tuned
from vs_tilelang import machine

from atune.model.candidate import config_key


def spin() -> None:
    while True:
        pass


@contextmanager
def busy(n: int) -> Any:
    """Keep `n` cores busy meanwhile."""
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(n)]
    for one in spinning:
        one.start()
    try:
        yield
    finally:
        for one in spinning:
            one.kill()


def agreement(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many winners differ from their problem's most frequent one, and how much slower these are."""
    winners, slower = 0, []
    for rows in zip(*(run["rows"] for run in runs), strict=True):
        keys = [config_key(row["config"]) for row in rows]
        standard, _ = Counter(keys).most_common(1)[0]
        winners += len(keys)
        for key, row in zip(keys, rows, strict=True):
            if key != standard:
                known = row["by_key"].get(standard)
                slower.append(
                    {"problem": row["problem"], "slower": None if known is None else row["latency_ms"] / known}
                )
    return {"winners": winners, "differ": len(slower), "slower": slower}


def main() -> None:
    given = options("agreement of winners", 590.0, budget=12, sample=14, runs=5, conditions="one,all,busy")
    problems = PROBLEMS[:: max(1, len(PROBLEMS) // given.sample)][: given.sample]
    found, table = {}, [("condition", "winners", "differ", "slower at most", "set, s")]
    for condition in given.conditions.split(","):
        more = {"by_key": True, "options": {"devices": ["0"]} if condition == "one" else {}}
        with busy((os.cpu_count() or 1) if condition == "busy" else 0):
            runs = [tuned("set", problems, given.budget, given, **more) for _ in range(given.runs)]
        found[condition] = told = agreement(runs)
        ratios = [one["slower"] for one in told["slower"] if one["slower"]]
        wall = round(statistics.median(run["wall_s"] for run in runs), 1)
        table.append((condition, told["winners"], told["differ"], round(max(ratios, default=1.0), 4), wall))
    command = f"python bench/agreement.py {' '.join(sys.argv[1:])}"
    report(given, "agreement", table, {"command": command, "machine": machine(), "conditions": found})


if __name__ == "__main__":
    main()

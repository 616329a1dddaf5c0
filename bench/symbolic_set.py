"""A set whose sizes are ranked together on symbolic code, against each problem tuned by itself, in turn.

    python bench/symbolic_set.py --out bench/results/symbolic_set

The 56 problems of `sets.py`, each with 144 configurations and the same budget; every set in a fresh process with empty
caches. Then the winners of both ways meet in one final of each problem: by how much the first way's is slower. At last
the set is killed while it runs and continued: how often a candidate was measured twice.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from common import ROOT, options, report
from counted import empty_caches
from sets import PROBLEMS, tuned
from vs_tilelang import machine

from atune.journal.events import CandidateMeasured
from atune.journal.reader import JournalReader
from atune.model.candidate import config_key


def in_one_final(ways: list[dict[str, Any]], given: Any) -> list[dict[str, Any]]:
    """Time the winners of two ways in one final for each problem; return how they compare."""
    rows, chosen = [], {}
    for one, other in zip(ways[0]["rows"], ways[1]["rows"], strict=True):
        configs = [one["config"], other["config"]]
        rows.append({"problem": one["problem"], "configs": configs, "ratio": 1.0})
        if configs[0] != configs[1]:
            chosen[config_key(one["problem"])] = configs
    os.environ["ATUNE_BENCH_CHOSEN"] = json.dumps(chosen)
    differ = [row["problem"] for row in rows if config_key(row["problem"]) in chosen]
    both = tuned("apart", differ, 0, given, file=f"{ROOT}/bench/kernels.py:TWO", by_key=True)["rows"] if differ else []
    final = {config_key(row["problem"]): row["by_key"] for row in both}
    for row in rows:
        if (by_key := final.get(config_key(row["problem"]))) is not None:
            one, other = (by_key[config_key(config)] for config in row["configs"])
            row["ratio"] = round(one / other, 4)
    return rows


def killed(problems: list[dict[str, int]], budget: int, after_s: float) -> dict[str, Any]:
    """Kill a set and continue it; return how many candidates were measured twice in a journal, and of how many."""
    with empty_caches("killed-") as (folder, env):
        job = {"way": "set", "problems": problems, "budget": budget, "journal": str(folder / "set")}
        for ends in (True, False):
            (folder / "job.json").write_text(json.dumps({**job, "answer": str(folder / "answer.json")}))
            command = [sys.executable, f"{ROOT}/bench/sets.py", "--child", str(folder / "job.json")]
            child = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.DEVNULL)
            if ends:
                time.sleep(after_s)
                child.send_signal(signal.SIGKILL)
            child.wait()
        found = Counter(
            (path.name, event.index)
            for path in (folder / "set").glob("*.jsonl")
            for event in JournalReader(path)
            if isinstance(event, CandidateMeasured)
        )
        ended = json.loads((folder / "answer.json").read_bytes())
    winners = sum(row["config"] is not None for row in ended["rows"])
    return {"twice": sum(n > 1 for n in found.values()), "measured": len(found), "winners": winners}


def main() -> None:
    given = options("sets on symbolic code", 590.0, budget=12, problems=56, pairs=1, kill_s=16)
    problems, ways = PROBLEMS[: given.problems], ("set", "apart")
    pairs = [
        {way: tuned(way, problems, given.budget, given, f"{way}-{i}") for way in ways[:: (-1, 1)[i % 2]]}
        for i in range(given.pairs)
    ]
    ratios = [round(pair["set"]["wall_s"] / pair["apart"]["wall_s"], 4) for pair in pairs]
    rows = in_one_final([pairs[-1][way] for way in ways], given)
    slower = sorted(row["ratio"] for row in rows)
    table: list[tuple[Any, ...]] = [("what", "value")]
    table += [(f"ranked together / apart, {len(problems)} problems", ratio) for ratio in ratios]
    table.append(("winners slower by more than 2 %", sum(ratio > 1.02 for ratio in slower)))
    table += [("slowest winner", slower[-1]), ("median winner", round(statistics.median(slower), 4))]
    end = killed(problems[:28], given.budget, given.kill_s) if given.kill_s else {}
    table += [(f"killed after {given.kill_s} s: {name}", value) for name, value in end.items()]
    report(given, "symbolic_set", table, {
        "command": f"python bench/symbolic_set.py {' '.join(sys.argv[1:])}", "machine": machine(), "ratios": ratios,
        "pairs": pairs, "finals": rows, "killed": end,
    })  # fmt: skip


if __name__ == "__main__":
    main()

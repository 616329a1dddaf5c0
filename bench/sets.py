"""Tune the matrix products of a model's layers as a set and one after another, in turn, each in a fresh process.

    python bench/sets.py --out bench/results/sets

56 problems: the four (N, K) of a layer of a model with seven billion parameters, and 14 batch sizes. Each has 144
configurations and the same budget. A sample of `--sample` problems is tuned in both ways, `--pairs` times; then the
whole set is tuned, unless `--whole 0`. `--exhaustive` problems of the last set are also tuned without a budget, to show
how far the set's winners are from the best. `--ways set` leaves out the other way. tilelang's tuner on a problem with
144 configurations:

    ATUNE_BENCH_PROBLEM='{"M": 64, "N": 4096, "K": 4096}' python bench/vs_tilelang.py --space bench/kernels.py:SHAPES
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from common import ROOT, options, report
from counted import empty_caches, run_counted
from vs_tilelang import machine

import atune
from atune import Problems, events
from atune.journal.reader import JournalReader
from atune.model.candidate import config_key
from atune.workload.pickling import FileRef

LAYERS = {"qkv": (12288, 4096), "o": (4096, 4096), "gate and up": (22016, 4096), "down": (4096, 11008)}
BATCHES = [2**i for i in range(14)]
PROBLEMS = [{"M": m, "N": n, "K": k} for m in BATCHES for n, k in LAYERS.values()]
FILE = FileRef(f"{ROOT}/bench/kernels.py", "SHAPES")


def breakdown(journals: Sequence[Path], began: float) -> dict[str, Any]:
    """Return where the seconds of a run or of a set's runs went. `began`: `time.time()` when their process started.

    `first_s`: seconds from there to the first event of each kind. `last_s`: seconds from a run's start to its last
    event of the kind, the median of the runs. `runs` and `workers`: how many runs and compile workers were at work on
    average, from the first run's start to the end. `devices`: the seconds of each device's process starts,
    measurements, waits for other runs before them, and finals.
    """
    first, last, total = dict[str, float](), defaultdict[str, list[float]](list), Counter[str]()
    devices, end = defaultdict[str, Counter[str]](Counter), began
    for journal in journals:
        seen, begun = dict[str, float](), dict[str, float]()
        for event in JournalReader(str(journal)):
            kind = type(event).__name__
            seen[kind], end = event.time, max(end, event.time)
            first[kind] = min(event.time, first.get(kind, math.inf))
            if isinstance(event, (events.CandidateLowered, events.ArtifactBuilt)):
                total["workers"] += event.seconds
            elif isinstance(event, events.DeviceReady):
                devices[event.worker]["start"] += event.start_s
            elif isinstance(event, (events.BenchmarkStarted, events.FinalStarted)):
                begun[event.worker] = event.time
            elif isinstance(event, events.CandidateMeasured):
                devices[event.worker]["measuring"] += event.seconds
                devices[event.worker]["waiting"] += event.time - begun[event.worker] - event.seconds
            elif isinstance(event, events.FinalOrdered):
                devices[event.worker]["final"] += event.time - begun[event.worker]
        start = seen["RunStarted"]
        total["runs"] += seen.get("RunFinished", start) - start
        for kind, at in seen.items():
            last[kind].append(at - start)
    span_s = max(1e-9, end - first["RunStarted"])
    return {
        "first_s": {kind: round(at - began, 2) for kind, at in first.items()}, "end_s": round(end - began, 2),
        "last_s": {kind: round(statistics.median(seconds), 2) for kind, seconds in last.items()},
        **{name: round(seconds / span_s, 2) for name, seconds in total.items()},
        "devices": {name: {k: round(v, 2) for k, v in seconds.items()} for name, seconds in devices.items()},
    }  # fmt: skip


def child(job: dict[str, Any]) -> dict[str, Any]:
    """Tune problems as a set or one after another. Return the wall seconds, and each winner."""
    given: dict[str, Any] = {"target": "cuda", "budget": job["budget"] or None, "progress": False, "cached": False}
    given |= job.get("options", {})
    began = time.perf_counter()
    if job["way"] != "one by one":
        tuned_set = atune.run_set(FILE, Problems(job["problems"]), journal=job["journal"], **given)
        results = [row.result for row in tuned_set]
    else:
        results = [atune.run(msgspec.structs.replace(FILE, arguments=each), **given) for each in job["problems"]]
    wall_s = time.perf_counter() - began
    rows = []
    for problem, result in zip(job["problems"], results, strict=True):
        row = {"problem": problem, "config": None if result is None else result.best_config}
        if result is not None:
            row |= {
                "latency_ms": result.latency_ms, "default_ms": result.default_ms, "reference_ms": result.reference_ms,
                "measured": result.measured, "failed": result.failed, "run_s": round(result.wall_s, 3),
            }  # fmt: skip
            if not job["budget"]:
                row["by_key"] = {r.key: r.latency_ms for r in result.records if r.latency_ms is not None}
        rows.append(row)
    return {"way": job["way"], "wall_s": round(wall_s, 3), "rows": rows}


def tuned(
    way: str, problems: list[dict[str, int]], budget: int, given: Any, name: str = "", **more: Any
) -> dict[str, Any]:
    """Run `child` in a fresh process with empty caches."""
    with empty_caches("sets-") as (folder, env):
        answer, journals = folder / "answer.json", given.out / name if given.out and name else folder / "set"
        job = {"way": way, "problems": problems, "budget": budget, "journal": str(journals), **more}
        (folder / "job.json").write_text(json.dumps({**job, "answer": str(answer)}))
        command = [sys.executable, str(Path(__file__).resolve()), "--child", str(folder / "job.json")]
        done = run_counted(command, env=env, cwd=folder, timeout_s=given.limit)
        if not answer.exists():
            raise SystemExit(f"{way} of {len(problems)} failed, exit status {done.status}:\n{done.output[-3000:]}")
        result: dict[str, Any] = json.loads(answer.read_bytes())
        measured = sum(row.get("measured", 0) for row in result["rows"])
        print(f"{way}: {len(problems)} problems, {measured} measured, {result['wall_s']:.1f} s", flush=True)
        if way != "one by one":
            result["stages"] = breakdown(sorted(journals.glob("*.jsonl")), done.started)
            print(json.dumps(result["stages"]), flush=True)
        return {**result, "cpu_s": round(done.cpu_s, 1), "measured": measured}


def main() -> None:
    given = options(
        "sets of problems", 590.0, budget=12, sample=14, pairs=2, exhaustive=4, whole=1, ways="set,one by one"
    )
    problems = PROBLEMS
    sample = problems[:: max(1, len(problems) // given.sample)][: given.sample] if given.sample else []
    ways = given.ways.split(",")
    pairs = [
        {way: tuned(way, sample, given.budget, given) for way in ways[:: (1, -1)[i % 2]]}
        for i in range(given.pairs if sample else 0)
    ]
    whole = tuned("set", problems, given.budget, given, "whole") if given.whole else None
    gaps = []
    last = whole or (pairs[-1]["set"] if pairs else None)
    if last is not None and given.exhaustive:
        by_problem = {json.dumps(row["problem"]): row for row in last["rows"]}
        among = [row["problem"] for row in last["rows"]]
        chosen = among[1 :: max(1, len(among) // given.exhaustive)][: given.exhaustive]
        for row in tuned("one by one", chosen, 0, given)["rows"]:
            winner = by_problem[json.dumps(row["problem"])]["config"]
            by_key = row.pop("by_key")
            mine, best = by_key[config_key(winner)], by_key[config_key(row["config"])]
            gaps.append({**row, "set_config": winner, "set_ms": mine, "best_ms": best, "ratio": round(mine / best, 4)})
    both = [pair for pair in pairs if len(pair) == 2]
    ratios = [round(pair[ways[0]]["wall_s"] / pair[ways[1]]["wall_s"], 4) for pair in both]
    table = [("what", "value"), *((f"{' / '.join(ways)}, {len(sample)} problems", ratio) for ratio in ratios)]
    if ratios:
        table.append(("median", round(statistics.median(ratios), 4)))
    if whole is not None:
        table.append((f"the set of {len(problems)}, s", whole["wall_s"]))
        table.append(("candidates measured", whole["measured"]))
    table += [(f"winner / exhaustive best, {gap['problem']}", gap["ratio"]) for gap in gaps]
    report(given, "sets", table, {
        "command": f"python bench/sets.py {' '.join(sys.argv[1:])}", "machine": machine(), "ratios": ratios,
        "pairs": pairs, "whole": whole, "gaps": gaps,
    })  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        job = json.loads(Path(sys.argv[2]).read_bytes())
        Path(job["answer"]).write_text(json.dumps(child(job)))
        sys.stdout.flush()
        os._exit(0)
    main()

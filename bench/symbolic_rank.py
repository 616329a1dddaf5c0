"""Does code with a symbolic batch size rank configurations as code with the number does?

    python bench/symbolic_rank.py --out bench/results/symbolic_rank

The products of a model's layers (`sets.py`): four (N, K), each with 14 batch sizes M. Of each (N, K) the prior picks 48
configurations, in turn for a small, a middle and a large M. Every problem is tuned twice over these, without a budget:
with M as a number, and with M symbolic (`T.dynamic("M")`), whose library serves all batch sizes. For each problem: the
rank correlation of the two, and by how much the static code of the symbolic winner, and of the best of the symbolic
first three, is slower than the best static code.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tilelang.language as T
from common import options, report
from kernels import SHAPES, matmul, reference
from sets import BATCHES, LAYERS
from vs_tilelang import machine

import atune
from atune.model.candidate import config_key


def symbolic(M: int, N: int, K: int, **config: Any) -> Any:
    """`matmul` whose batch size is symbolic: the same code for every M."""
    return matmul(T.dynamic("M"), N, K, **config)


def inputs(M: int, N: int, K: int) -> list[Any]:
    import torch

    return [torch.randn(M, K).bfloat16().cuda(), torch.randn(N, K).bfloat16().cuda()]


def picked(n: int, k: int, most: int) -> list[dict[str, Any]]:
    """Return configurations of the prior's order, in turn for a small, a middle and a large batch size."""
    orders = []
    for m in (16, 512, 8192):
        work = atune.Workload(matmul, SHAPES.space, arguments={"M": m, "N": n, "K": k}, reference=reference)
        orders.append([one.config for one in atune.pick(work, n=most, gpu="H100").choices])
    found: dict[str, dict[str, Any]] = {}
    for row in zip(*orders, strict=False):
        for config in row:
            if len(found) < most:
                found.setdefault(config_key(config), config)
    return list(found.values())


def latencies(work: atune.Workload, problems: list[dict[str, int]]) -> tuple[list[dict[str, float]], float, str]:
    """Tune every problem over the whole space; return the latencies by configuration, the seconds, and a failure."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = atune.run_set(work, problems, target="cuda", journal=Path(folder) / "set", progress=False)
        wall_s = time.perf_counter() - began
        failed = next((r.message for row in found if row.result for r in row.result.failures), "")
        rows = [
            {} if row.result is None else {r.key: r.latency_ms for r in row.result.records if r.latency_ms is not None}
            for row in found
        ]
    return rows, wall_s, failed


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(i) for i in range(len(values))]


def compared(static: dict[str, float], dynamic: dict[str, float]) -> dict[str, Any]:
    """Return what ranking by the symbolic code costs under the static code."""
    both = sorted(static.keys() & dynamic.keys())
    if len(both) < 3:
        return {"both": len(both)}
    ordered, best = sorted(both, key=dynamic.__getitem__), min(static.values())
    correlation = statistics.correlation(ranks([static[k] for k in both]), ranks([dynamic[k] for k in both]))
    return {
        "both": len(both), "correlation": round(correlation, 4), "static_ms": best, "dynamic_ms": min(dynamic.values()),
        "regret": round(static[ordered[0]] / best - 1, 4),
        "regret3": round(min(static[k] for k in ordered[:3]) / best - 1, 4),
    }  # fmt: skip


def main() -> None:
    given = options("symbolic ranking", 590.0, layers=",".join(LAYERS), batches=14, configs=48)
    batches, rows, walls = BATCHES[:: max(1, 14 // given.batches)], [], []
    for layer in given.layers.split(","):
        n, k = LAYERS[layer]
        configs, problems = picked(n, k, given.configs), [{"M": m, "N": n, "K": k} for m in batches]
        first = atune.Workload(matmul, configs, arguments=problems[0], reference=reference, name="static")
        second = atune.Workload(
            symbolic, configs, arguments=problems[0], reference=reference, inputs=inputs, name="symbolic"
        )
        static, static_s, _ = latencies(first, problems)
        dynamic, dynamic_s, failed = latencies(second, problems)
        walls.append({"layer": layer, "static_s": round(static_s, 1), "symbolic_s": round(dynamic_s, 1), "why": failed})
        print(walls[-1], flush=True)
        rows += [p | compared(one, other) for p, one, other in zip(problems, static, dynamic, strict=True)]
        known = [row for row in rows if "regret3" in row]
        bad = sum(row["regret3"] > 0.02 for row in known)
        command = f"python bench/symbolic_rank.py {' '.join(sys.argv[1:])}"
        table = [("M", "N", "K", "both", "correlation", "regret", "of first 3")]
        table += [
            tuple(row.get(c, "") for c in ("M", "N", "K", "both", "correlation", "regret", "regret3")) for row in rows
        ]
        table.append((f"first three worse than 2 %: {bad} of {len(rows)}", "", "", "", "", "", ""))
        results = {"command": command, "machine": machine(), "rows": rows, "walls": walls, "worse": bad}
        report(given, "symbolic_rank", table, results)  # after each layer: a time limit keeps what is there


if __name__ == "__main__":
    main()

"""Ten tunings of the 40 best configurations of the GEMM space: how good are their winners really?

python bench/reproducible.py --out results        (a GPU; about five minutes)
"""

from __future__ import annotations

import json
import os
from typing import Any

import anyio
from common import ROOT, journal, options, report, roles
from scaling import built

import atune
from atune.model.jobs import FinalJob, PrepareJob, StartJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef

N_BEST = 40
TRUE_ROUNDS = 300
KERNELS = str(ROOT / "bench" / "kernels.py")


async def true_latencies() -> list[float]:
    """Time all chosen configurations in turn, for long, while nothing else runs; ms in the space's order."""
    benchmark = BenchmarkSettings(benchmark_timeout_s=60)
    plain = CompileSettings(cicc=False)  # as tilelang compiles them
    reference = FileRef(KERNELS, "CHOSEN")
    machine = LocalMachine(reference, target="cuda", devices=("0",), compile=plain, benchmark=benchmark)
    async with machine.open():
        await machine.describe()
        await machine.discover()
        artifacts = await built(machine, machine.compile_workers(), N_BEST)
        [worker] = machine.device_workers()
        await worker.run(StartJob())
        await worker.run(PrepareJob(artifacts[0].params, roles(artifacts[0])))
        found = await worker.run(FinalJob(tuple(artifacts), roles(artifacts[0]), TRUE_ROUNDS))
        return [entry.timing.latency_ms for entry in sorted(found.entries, key=lambda entry: entry.index)]


def main() -> None:
    arguments = options(__doc__ or "", 580, runs=10)
    quick = BenchmarkSettings(n_final=0)
    everything = atune.run(
        f"{KERNELS}:FULL",
        target="cuda",
        devices=["0"],
        benchmark=quick,
        cached=False,
        journal=journal(arguments, "reproducible-all"),
    )
    records = sorted((r for r in everything.records if r.latency_ms), key=lambda r: r.latency_ms or 0.0)
    configs = [r.config for r in records[:N_BEST]]
    os.environ["ATUNE_BENCH_CONFIGS"] = json.dumps(configs)  # `kernels.CHOSEN` reads it, in the workers
    winners: list[tuple[int, float, float]] = []
    for number in range(arguments.runs):
        path = journal(arguments, f"reproducible-{number}")
        result = atune.run(f"{KERNELS}:CHOSEN", target="cuda", devices=["0"], journal=path, cached=False)
        winners.append((result.best_index or 0, result.latency_ms or 0.0, result.wall_s))
        print(
            f"run {number}: candidate {result.best_index}, {result.latency_ms:.5f} ms, {result.wall_s:.1f} s",
            flush=True,
        )
    truth = anyio.run(true_latencies)
    best = min(truth)
    rows: list[list[Any]] = [["run", "winner", "its figure ms", "true ms", "above the best"]]
    for number, (index, latency, _) in enumerate(winners):
        rows.append([number, index, f"{latency:.5f}", f"{truth[index]:.5f}", f"{truth[index] / best - 1:.2%}"])
    near = sum(truth[index] <= 1.005 * best for index, _, _ in winners)
    report(arguments, "reproducible", rows, {"configs": configs, "winners": winners, "truth_ms": truth})
    distinct = len({index for index, _, _ in winners})
    print(f"within 0.5 % of the best: {near} of {len(winners)} (goal 9 of 10); {distinct} different winners")


if __name__ == "__main__":
    main()

"""Timings on an idle host and beside a full compile load, by atune's method and by tilelang's `do_bench`.

python bench/fidelity.py --out results        (a GPU; about a minute)
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any

import anyio
from common import ROOT, options, report, roles

from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.device import Target
from atune.model.jobs import BuildJob, LowerJob, MeasureJob, PrepareJob, StartJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef

ROUNDS = 200


def do_bench(path: str, symbol: str, n: int) -> None:
    """In a process of its own: tilelang's `do_bench` of one kernel, several times; prints the medians in µs."""
    import torch
    from tilelang import tvm
    from tilelang.profiler.bench import do_bench

    function = tvm.runtime.load_module(path)[symbol]
    A, B, C = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(3))
    found = [1e3 * float(do_bench(lambda: function(A, B, C), warmup=5, rep=50, backend="event")) for _ in range(5)]
    print(json.dumps(found))


async def tilelangs(artifact: Artifact, n: int) -> float:
    command = [sys.executable, __file__, "--do-bench", artifact.path, artifact.symbol, str(n)]
    done = await anyio.run_process(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return statistics.median(json.loads(done.stdout.splitlines()[-1]))


async def compile_for_ever(worker: Any, candidates: list[Candidate], offset: int) -> None:
    """Keep one compile worker busy: lower and build one configuration after the other."""
    for number in range(10**6):
        lowered = await worker.run(LowerJob(candidates[(offset + number * 17) % len(candidates)]))
        if isinstance(lowered, Lowered):
            await worker.run(BuildJob((lowered,)))


async def one_artifact(machine: LocalMachine) -> Artifact:
    spec = await machine.describe()
    await machine.discover()
    [worker] = machine.compile_workers()
    config = thaw(spec.configs[0])
    lowered = await worker.run(LowerJob(Candidate(0, config_key(config), config)))
    assert isinstance(lowered, Lowered), lowered
    [artifact] = await worker.run(BuildJob((lowered,)))
    assert isinstance(artifact, Artifact), artifact
    return artifact


async def measured(worker: LocalDeviceWorker, artifact: Artifact) -> tuple[float, float]:
    """Return (median µs, spread) over several calls, as the search takes them."""
    answers = [await worker.run(MeasureJob(artifact, roles(artifact))) for _ in range(5)]
    medians = [answer.timing.latency_ms * 1e3 for answer in answers]  # type: ignore[union-attr]
    return statistics.median(medians), (max(medians) - min(medians)) / statistics.median(medians)


async def compared(name: str, n: int, load: LocalMachine) -> list[dict[str, Any]]:
    file = FileRef(str(ROOT / "bench" / "kernels.py"), name)
    benchmark = BenchmarkSettings(n_repeat=ROUNDS)
    machine = LocalMachine(file, target="cuda", devices=("0",), compile=CompileSettings(workers=1), benchmark=benchmark)
    async with machine.open():
        artifact = await one_artifact(machine)
        [worker] = machine.device_workers()
        await worker.run(StartJob())
        await worker.run(PrepareJob(artifact.params, roles(artifact)))
        rows = []
        idle = {"atune": await measured(worker, artifact), "tilelang do_bench": (await tilelangs(artifact, n), 0.0)}
        spec = await load.describe()
        candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs))]
        async with anyio.create_task_group() as tasks:
            for i, compile_worker in enumerate(load.compile_workers()):
                tasks.start_soon(compile_for_ever, compile_worker, candidates, i * 5)
            await anyio.sleep(4)  # until all of them compile
            average = os.getloadavg()[0]
            busy = {"atune": await measured(worker, artifact), "tilelang do_bench": (await tilelangs(artifact, n), 0.0)}
            tasks.cancel_scope.cancel()
        for method, (us, _) in idle.items():
            ratio = busy[method][0] / us
            rows.append(
                {
                    "kernel": name,
                    "method": method,
                    "idle_us": us,
                    "busy_us": busy[method][0],
                    "ratio": ratio,
                    "load": average,
                }
            )
        return rows


async def run() -> list[dict[str, Any]]:
    """The load: as many compile workers as the machine has cores, at the niceness that they have in a run."""
    cores = os.cpu_count() or 1
    load = LocalMachine(
        FileRef(str(ROOT / "bench" / "kernels.py"), "FULL"),
        target=Target("cuda", "sm_90a"), devices=(), compile=CompileSettings(workers=cores),
    )  # fmt: skip
    async with load.open():
        await load.describe()
        await load.discover()
        return [*await compared("SMALL", 1024, load), *await compared("LARGE", 4096, load)]


def main() -> None:
    if sys.argv[1:2] == ["--do-bench"]:
        do_bench(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    arguments = options(__doc__ or "", 240)
    results = anyio.run(run)
    rows: list[list[Any]] = [["kernel", "method", "idle µs", "busy µs", "busy/idle"]]
    for r in results:
        rows.append([r["kernel"], r["method"], f"{r['idle_us']:.2f}", f"{r['busy_us']:.2f}", f"{r['ratio']:.4f}"])
    report(arguments, "fidelity", rows, results)
    worst = max(abs(r["ratio"] - 1) for r in results if r["method"] == "atune")
    print(f"atune's medians differ by {worst:.2%} at most (goal 1 %), load average {results[-1]['load']:.0f}")


if __name__ == "__main__":
    main()

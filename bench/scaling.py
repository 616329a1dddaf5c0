"""The benchmark stage on 1, 2 and 4 GPUs, from ready artifacts.

python bench/scaling.py --out results        (several GPUs; about two minutes)
"""

from __future__ import annotations

import time
from typing import Any

import anyio
from common import ROOT, options, report

from atune.artifact import Artifact, Lowered
from atune.candidate import Candidate, config_key, thaw
from atune.local import LocalBackend, LocalDeviceLane
from atune.measurement import Measurement
from atune.settings import BenchmarkSettings
from atune.workload import FileRef

GROUP = 8


async def built(backend: LocalBackend, n: int) -> list[Artifact]:
    """Compile the first `n` configurations on all compile lanes; those that fail are left out."""
    spec = await backend.describe()
    candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs))][:n]
    groups = [candidates[i : i + GROUP] for i in range(0, len(candidates), GROUP)]
    artifacts: list[Artifact] = []

    async def work(lane: Any) -> None:
        while groups:
            lowered = [await lane.lower(candidate) for candidate in groups.pop()]
            answers = await lane.build([one for one in lowered if isinstance(one, Lowered)])
            artifacts.extend(one for one in answers if isinstance(one, Artifact))

    async with anyio.create_task_group() as tasks:
        for lane in backend.compile_lanes():
            tasks.start_soon(work, lane)
    return sorted(artifacts, key=lambda artifact: artifact.index)


async def stage(lanes: list[LocalDeviceLane], artifacts: list[Artifact]) -> tuple[float, int, list[float]]:
    """Measure all of `artifacts` on `lanes`, from one stream; return seconds, how many worked, references."""
    waiting, good, references = list(artifacts), 0, []

    async def ready(lane: LocalDeviceLane) -> None:
        await lane.start()
        timing = await lane.prepare(artifacts[0])
        references.append(timing.latency_ms if timing else 0.0)
        await lane.measure(artifacts[0])

    async def work(lane: LocalDeviceLane) -> None:
        nonlocal good
        while waiting:
            outcome = await lane.measure(waiting.pop())
            good += isinstance(outcome, Measurement)

    async with anyio.create_task_group() as tasks:
        for lane in lanes:
            tasks.start_soon(ready, lane)
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for lane in lanes:
            tasks.start_soon(work, lane)
    return time.perf_counter() - started, good, references


async def run(n: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    benchmark = BenchmarkSettings(adaptive=False, standby=False)
    backend = LocalBackend(FileRef(str(ROOT / "bench" / "kernels.py"), "EVEN"), target="cuda", benchmark=benchmark)
    async with backend.open():
        await backend.describe()
        await backend.discover()
        artifacts = await built(backend, n)
        for devices in (1, 2, 4, 8):
            lanes = backend.device_lanes()[:devices]
            if len(lanes) < devices:
                break
            seconds, good, references = await stage(lanes, artifacts * 16)
            results.append({"devices": devices, "seconds": seconds, "measured": good, "reference_ms": references})
            for lane in lanes:
                await lane._stop()
    return results


def main() -> None:
    arguments = options(__doc__ or "", 420, candidates=64)
    results = anyio.run(run, arguments.candidates)
    rows: list[list[Any]] = [["GPUs", "seconds", "measured", "times faster", "goal", "reference ms"]]
    goals = {1: "", 2: "1.95", 4: "3.8", 8: ""}
    for r in results:
        times, references = results[0]["seconds"] / r["seconds"], " ".join(f"{ms:.4f}" for ms in r["reference_ms"])
        rows.append(
            [r["devices"], f"{r['seconds']:.2f}", r["measured"], f"{times:.2f}", goals[r["devices"]], references]
        )
    report(arguments, "scaling", rows, results)


if __name__ == "__main__":
    main()

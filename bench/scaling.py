"""The benchmark stage on 1, 2, 4 and 8 GPUs, as many as there are, from ready artifacts.

    python bench/scaling.py --out results        (several GPUs; about three minutes)

Two parts. `stage`: the devices' processes are started once, with their inputs made; then 1, 2, 4 … of them take the
same artifacts from one stream, each count as often as `--passes` says, in turn; the seconds are medians. `engine`: the
whole run, journal included, of the same configurations on 1, 2, 4 … devices, with libraries found in the artifact
store and measuring begun when all are there; its journals and what they say of each device are kept.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from common import ROOT, journal, options, report, roles

import atune
from atune.engine.benchmark_stage import SPEED_TOLERANCE, speed_outliers
from atune.engine.interfaces import CompileWorker, DeviceWorker, Machine
from atune.journal.events import (
    BenchmarkStarted,
    CandidateMeasured,
    DeviceExcluded,
    DeviceLost,
    FinalOrdered,
    ReferenceMeasured,
)
from atune.journal.reader import JournalReader
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.jobs import BuildJob, FindJob, GroupFailed, LowerJob, MeasureJob, PrepareJob, StartJob
from atune.model.measurement import Measurement
from atune.model.settings import BenchmarkSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.pickling import FileRef

COUNTS = (1, 2, 4, 8)
GOALS = {2: 1.95, 4: 3.8}
GROUP = 8
BENCHMARK = BenchmarkSettings(adaptive=False)
Make = Callable[[Sequence[str]], Machine]
"""Makes a machine on the devices so named; on all for ``("all",)``."""


def local(devices: Sequence[str]) -> LocalMachine:
    reference = FileRef(str(ROOT / "bench" / "kernels.py"), "EVEN")
    return LocalMachine(reference, target="cuda", devices=devices, benchmark=BENCHMARK)


def say(text: str) -> None:
    print(text, flush=True)


async def built(machine: Machine, workers: Sequence[CompileWorker], n: int) -> list[Artifact]:
    """Compile the first `n` configurations, or find them in the store; those that fail are left out."""
    spec = await machine.describe()
    candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs))][:n]
    groups = [candidates[i : i + GROUP] for i in range(0, len(candidates), GROUP)]
    artifacts: list[Artifact] = []

    async def work(worker: CompileWorker) -> None:
        while groups:
            missing = []
            for candidate in groups.pop():
                lowered = await worker.run(LowerJob(candidate))
                if isinstance(lowered, Lowered):
                    found = await worker.run(FindJob(lowered))
                    artifacts.append(found) if found is not None else missing.append(lowered)
            answers = await worker.run(BuildJob(tuple(missing))) if missing else []
            if isinstance(answers, GroupFailed):
                alone = [await worker.run(BuildJob((one,))) for one in missing]
                answers = [answer for one in alone if isinstance(one, list) for answer in one]
            artifacts.extend(one for one in answers if isinstance(one, Artifact))

    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(work, worker)
    return sorted(artifacts, key=lambda artifact: artifact.index)


async def prepared(workers: Sequence[DeviceWorker], artifact: Artifact) -> dict[str, float]:
    """Start the devices' processes, make their inputs and measure one candidate; return the reference's ms on each."""
    references: dict[str, float] = {}

    async def ready(worker: DeviceWorker) -> None:
        await worker.run(StartJob())
        timing = (await worker.run(PrepareJob(artifact.params, roles(artifact)))).reference
        if timing is not None:
            references[worker.name] = timing.latency_ms
        await worker.run(MeasureJob(artifact, roles(artifact)))

    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(ready, worker)
    return dict(sorted(references.items()))


async def stage(workers: Sequence[DeviceWorker], artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Measure all of `artifacts` on `workers`, from one stream; return the seconds, and how many worked on each."""
    waiting, good, failed = list(reversed(artifacts)), Counter[str](), Counter[str]()

    async def work(worker: DeviceWorker) -> None:
        while waiting:
            artifact = waiting.pop()
            answer = await worker.run(MeasureJob(artifact, roles(artifact)))
            if isinstance(answer, Measurement):
                good[worker.name] += 1
            else:
                failed[answer.kind] += 1
            if not worker.alive:
                await worker.run(StartJob())

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(work, worker)
    seconds = time.perf_counter() - started
    return {"seconds": round(seconds, 4), "measured": dict(sorted(good.items())), "failed": dict(failed)}


async def stages(make: Make, n: int, repeats: int, passes: int) -> dict[str, Any]:
    """Time the stage on 1, 2, 4 … devices in turn, `passes` times each."""
    machine = make(("all",))
    async with machine.open():
        await machine.describe()
        _, devices = await machine.discover()
        counts = [c for c in COUNTS if c <= len(devices)]
        began = time.perf_counter()
        artifacts = await built(machine, machine.compile_workers(), n)
        if not artifacts:
            raise SystemExit("scaling.py: no configuration compiled")
        say(f"{len(artifacts)} of {n} libraries ready after {time.perf_counter() - began:.1f} s")
        workers = list(machine.device_workers())[: counts[-1]]
        references = await prepared(workers, artifacts[0])
        say("reference: " + ", ".join(f"device {name} {ms:.4f} ms" for name, ms in references.items()))
        found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
        for number in range(passes):
            for count in counts:
                one = await stage(workers[:count], artifacts * repeats)
                found[count].append(one)
                say(f"pass {number + 1}, {count} devices: {one['seconds']:.2f} s, {one['measured']} {one['failed']}")
    seconds = {count: statistics.median(one["seconds"] for one in runs) for count, runs in found.items()}
    faster = {count: round(seconds[1] / seconds[count], 3) for count in counts}
    outliers = speed_outliers(references)
    return {
        "devices": [f"{d.id}: {d.name} {d.uuid}" for d in devices],
        "artifacts": len(artifacts),
        "measurements": len(artifacts) * repeats,
        "reference_ms": references,
        "reference_off": {name: round(factor, 4) for name, factor in outliers.items()},
        "seconds": seconds,
        "times_faster": faster,
        "passes": found,
    }


def recorded(events: Sequence[Any]) -> dict[str, Any]:
    """Return what a run's journal says of its devices and of its benchmark stage."""
    started = [e.mono for e in events if isinstance(e, BenchmarkStarted)]
    measured = [e for e in events if isinstance(e, CandidateMeasured)]
    final = [e for e in events if isinstance(e, FinalOrdered)]
    return {
        "stage_s": round(max((e.mono for e in measured), default=0.0) - min(started, default=0.0), 4),
        "measured": dict(sorted(Counter(e.device for e in measured).items())),
        "reference_ms": {e.device: e.timing.latency_ms for e in events if isinstance(e, ReferenceMeasured)},
        "excluded": {e.device: e.reason for e in events if isinstance(e, DeviceExcluded)},
        "lost": [f"{e.device}: {e.reason}" for e in events if isinstance(e, DeviceLost)],
        "final_on": final[-1].device if final else None,
    }


async def engine_run(make: Make, count: int, path: str | None) -> dict[str, Any]:
    """Tune on the first `count` devices, measuring once all libraries are there; return what its record says."""
    events: list[Any] = []
    machine = make([str(i) for i in range(count)])
    result = await atune.tune(
        machine=machine, benchmark=BENCHMARK, pipeline=False, journal=path, on_event=events.append
    )
    record = recorded(events)
    if path is not None and recorded(list(JournalReader(path))) != record:
        raise SystemExit(f"scaling.py: {path} does not hold what happened")
    return {**record, "winner": result.best_config, "latency_ms": result.latency_ms, "wall_s": result.wall_s}


def summary(results: dict[str, Any]) -> list[str]:
    """Return a line for each goal, and what is to be known of the devices."""
    part = results["stage"]
    references = part["reference_ms"].values()
    apart = max(references) / min(references) - 1 if references else 0.0
    lines = [
        f"{count} GPUs: {part['times_faster'][count]:.2f} times faster (goal {goal}): "
        + ("reached" if part["times_faster"][count] >= goal else "NOT reached")
        for count, goal in GOALS.items()
        if count in part["times_faster"]
    ]
    off = f"left out by the engine's rule: {part['reference_off']}" if part["reference_off"] else "none is left out"
    return [*lines, f"references at most {apart:.2%} apart (tolerance {SPEED_TOLERANCE:.0%}); {off}"]


def run(arguments: Any, make: Make = local) -> dict[str, Any]:
    """Do both parts; results so far are written as they come."""
    results: dict[str, Any] = {}

    def keep() -> None:
        if arguments.out is not None:
            (arguments.out / "scaling.json").write_text(json.dumps(results, indent=1) + "\n")

    results["stage"] = anyio.run(stages, make, arguments.candidates, arguments.repeats, arguments.passes)
    keep()
    results["engine"] = {}
    for count in results["stage"]["seconds"]:
        path = journal(arguments, f"scaling-{count}")
        results["engine"][count] = record = anyio.run(engine_run, make, count, path)
        say(f"engine, {count} devices: stage {record['stage_s']:.2f} s, {record['measured']}")
        keep()
    rows: list[list[Any]] = [
        ["GPUs", "stage s", "passes", "times faster", "goal", "engine's stage s", "measured by", "reference ms"]
    ]
    part = results["stage"]
    for count, seconds in part["seconds"].items():
        record = results["engine"][count]
        rows.append(
            [
                count,
                f"{seconds:.2f}",
                " ".join(f"{one['seconds']:.2f}" for one in part["passes"][count]),
                f"{part['times_faster'][count]:.2f}",
                GOALS.get(count, ""),
                f"{record['stage_s']:.2f}",
                " ".join(f"{name}:{n}" for name, n in record["measured"].items()),
                " ".join(f"{ms:.4f}" for ms in record["reference_ms"].values()),
            ]
        )
    report(arguments, "scaling", rows, results)
    for line in summary(results):
        say(line)
    return results


def main() -> None:
    arguments = options(__doc__ or "", 290, candidates=128, repeats=8, passes=3)
    results = run(arguments)
    if len(results["stage"]["seconds"]) < 2:
        raise SystemExit("scaling.py: there is one GPU: nothing to compare")


if __name__ == "__main__":
    main()

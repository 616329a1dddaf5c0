"""How long the second tuning in one program takes to its first artifact, over that candidate's own compile time.

    python bench/second_tune.py --out bench/results/second_tune              # nvcc, and no GPU
    python bench/second_tune.py --target cuda --out bench/results/second_tune

Each repetition is a fresh process with empty caches. It tunes a few candidates of one space to the end; then, with the
artifact store emptied, it tunes another space, and leaves at the first artifact. Seconds count from that second call to
the event `artifact_built`. What the candidate itself takes is in the events, as its worker timed it: lowering and
building. The rest is `over`: taking over the server, describing the workload, finding devices, forking and loading the
workers, passing candidates to them, waiting for one.

With `--groups 1` the first artifact holds one candidate. With `auto` it may hold two. Then `own` is the critical path
of the group: the lowering of its members that the worker of the last one lowered one after the other, and the building
of the library. A member that another worker lowered at the same time does not count. `over one` is what the call took
over the lowering of the member lowered last and the building, so it has the other member's lowering in it.

For an arch such as sm_90a there is no device: an idle worker takes what is built. That leaves out what a GPU's process
does beside the first candidate, on a core that compile workers use too: its start, its context, the inputs.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from common import ROOT, options, report
from counted import empty_caches, run_counted
from idle import CompileOnly

import atune
from atune.frontends.api.tuner import Tuner
from atune.journal.events import AnyEvent, ArtifactBuilt, CandidateLowered, Event, RunStarted
from atune.model.folders import artifacts_folder
from atune.model.settings import ACCELERATE
from atune.workload.workload import FileRef, parse_file_ref

FIRST = f"{ROOT}/examples/gemm.py:WORKLOAD"
SECOND = f"{ROOT}/bench/kernels.py:EVEN"
BEFORE = 4
"""Candidates of the first tuning."""
FIGURES = ("first_artifact_s", "own_s", "over_s", "over_one_s", "started_s", "loaded_s", "lowering_s", "building_s")


def child(job: dict[str, Any]) -> dict[str, Any]:
    """Tune twice; return the figures of the second time and its events' times, in seconds from the call."""
    timeline: list[tuple[float, AnyEvent]] = []

    async def both() -> None:
        # Both are called as a program would: `tune`'s parameters, and its handle, which can be left.
        async with Tuner(**arguments(job, FIRST, BEFORE, None)) as first:
            await first.result()
        shutil.rmtree(artifacts_folder(), ignore_errors=True)
        called = time.perf_counter()

        def note(event: Any) -> None:
            timeline.append((time.perf_counter() - called, event))

        async with Tuner(**arguments(job, SECOND, job["candidates"], job["group"]), on_event=note) as second:
            async for event in second.events():
                if isinstance(event, ArtifactBuilt):
                    break

    anyio.run(both)
    seen = [(round(at, 4), _name(event), event.worker) for at, event in timeline]
    return {**figures(timeline), "timeline": seen}


def arguments(job: dict[str, Any], space: str, candidates: int, group: int | None) -> dict[str, Any]:
    """Return the parameters of one tuning; without a GPU the compile stage's alone."""
    budget = candidates or None
    compile = atune.CompileSettings(workers=job["workers"], group_size=group, accelerate=job["accelerate"])
    if job["target"] == "cuda":
        return {"workload": space, "target": "cuda", "budget": budget, "compile": compile, "cached": False}
    benchmark = atune.BenchmarkSettings(n_final=0)
    ref = parse_file_ref(space)
    machine = CompileOnly(
        FileRef(ref.path, ref.name), target=job["target"], devices=(), compile=compile, benchmark=benchmark
    )
    return {"machine": machine, "budget": budget, "compile": compile, "benchmark": benchmark}


def figures(timeline: Sequence[tuple[float, Event]]) -> dict[str, Any]:
    """Return where the time to the first artifact went; times are seconds from the call."""
    built_s, built = next((at, e) for at, e in timeline if isinstance(e, ArtifactBuilt))
    lowered = [(at, e) for at, e in timeline if isinstance(e, CandidateLowered) and e.index in built.indices]
    last = lowered[-1][1]
    path = [(at, e) for at, e in lowered if e.worker == last.worker]
    lowering_s = sum(e.seconds for _, e in path)
    begun_s = path[0][0] - path[0][1].seconds
    own_s = lowering_s + built.seconds
    found = {
        "first_artifact_s": built_s,
        "own_s": own_s,
        "over_s": built_s - own_s,
        "over_one_s": built_s - last.seconds - built.seconds,
        "started_s": next(at for at, e in timeline if isinstance(e, RunStarted)),
        "loaded_s": begun_s - next(at for at, e in timeline if isinstance(e, RunStarted)),
        "lowering_s": lowering_s,
        "building_s": built.seconds,
    }
    members = {"members": len(built.indices), "in_a_row": len(path), "reason": built.reason}
    return {**{k: round(v, 4) for k, v in found.items()}, **members, "compiler": built.compiler, "why": built.why}


def _name(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


def repetition(job: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Run `child` in a fresh process with empty caches."""
    with empty_caches("second-tune-") as (folder, env):
        answer = folder / "answer.json"
        env.pop(ACCELERATE, None)  # --accelerate says it
        (folder / "job.json").write_text(json.dumps({**job, "answer": str(answer)}))
        command = [sys.executable, str(Path(__file__).resolve()), "--job", str(folder / "job.json")]
        done = run_counted(command, env=env, cwd=folder, timeout_s=limit_s)
        if not answer.exists():
            raise SystemExit(f"{job} failed, exit status {done.status}:\n{done.output[-3000:]}")
        found: dict[str, Any] = json.loads(answer.read_bytes())
        return {**found, "load_average": round(os.getloadavg()[0], 1)}


def main() -> None:
    given = options(
        "Seconds from the second tune() in one program to its first artifact, over the candidate's own.",
        limit_s=900, target="sm_90a", groups="1,auto", candidates=8, repeats=5, workers=0, accelerate="auto", cores=0,
        job="",
    )  # fmt: skip
    if given.job:
        job = json.loads(Path(given.job).read_bytes())
        Path(job["answer"]).write_text(json.dumps(child(job)))
        return
    if given.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    common = {"target": given.target, "candidates": given.candidates, "accelerate": given.accelerate}
    results: dict[str, Any] = {**common, "cores": len(os.sched_getaffinity(0)), "repeats": given.repeats}
    rows: list[list[Any]] = [["group", "members", "compiler", *FIGURES, "over_s, all"]]
    for text in given.groups.split(","):
        group = None if text == "auto" else int(text)
        job = {**common, "group": group, "workers": given.workers or None}
        runs = [repetition(job, given.limit) for _ in range(given.repeats)]
        medians = {name: round(statistics.median(run[name] for run in runs), 3) for name in FIGURES}
        results[text] = {"median": medians, "runs": runs}
        every = " ".join(f"{run['over_s']:.3f}" for run in runs)
        rows.append([text, _all("members", runs), _all("compiler", runs), *medians.values(), every])
    report(given, "second_tune", rows, results)


def _all(name: str, runs: Sequence[dict[str, Any]]) -> str:
    return "/".join(sorted({str(run[name]) for run in runs}))


if __name__ == "__main__":
    main()

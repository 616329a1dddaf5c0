"""CPU and wall seconds a candidate of the compile stage, atune's and tilelang's own; needs nvcc and no GPU.

    python bench/compile_stages.py --cores 2 --accelerate auto --accelerate off --out bench/results/compile_stages

The compile stage as it runs, over 48 configurations drawn from the 288 GEMM configurations of examples/gemm.py, for
sm_90a, without a device: start of the process to its end, CPU seconds of every descendant (imports, fork server,
headers) by candidate; and the same for tilelang's own tuner with its timing on the device left out (gcc is run for each
kernel, as its first call would). No winner is proven. With `--rounds` all of these in turn, several times: shared
machines are faster one minute than the next.

Whole tunings on a GPU are compared by vs_tilelang.py, and with each accelerator off by accelerators.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from counted import empty_caches, run_counted
from vs_tilelang import MODES, machine, make_tuner, space_of

from atune.engine.engine import Engine
from atune.engine.search.fixed_orders import Random
from atune.engine.search.interface import Searched
from atune.engine.start import EngineSettings
from atune.errors import UsageError
from atune.journal.events import (
    AnyEvent,
    ArtifactBuilt,
    BuildFailed,
    CandidateLowered,
    CandidateMeasured,
    RunStarted,
    Warned,
)
from atune.journal.recorder import Recorder
from atune.model.settings import ACCELERATE, Acceleration, BenchmarkSettings, Budget, CompileSettings
from atune.testing import IdleDeviceWorker
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import FileRef, candidates_of, parse_file_ref

BENCH = Path(__file__).resolve().parent
ARCH = "sm_90a"
PATHS = {"auto": True, "no-pipeline": False}
"""By the option's word, whether groups are kept small at first for a device that waits."""


class CompileOnly(LocalMachine):
    def device_workers(self) -> Any:
        return [IdleDeviceWorker()]


def child_atune(job: dict[str, Any]) -> dict[str, Any]:
    """Compile with atune's engine what the strategy `random` draws first."""
    settings = CompileSettings(workers=job["workers"], accelerate=job["accelerate"], prove=False)
    ref = parse_file_ref(job["space"])
    machine = CompileOnly(FileRef(ref.path, ref.name), target=ARCH, devices=(), compile=settings)
    events: list[AnyEvent] = []
    recorder = Recorder(None, (events.append,))
    options = EngineSettings(
        compile=settings, benchmark=BenchmarkSettings(n_final=0), strategy="random",
        seed=job["seed"], budget=Budget(candidates=job["candidates"]), pipeline=job["pipeline"],
    )  # fmt: skip
    anyio.run(Engine(machine, recorder, options).run)
    built = [e for e in events if isinstance(e, ArtifactBuilt)]
    return {
        "delivered": sum(isinstance(e, CandidateMeasured) for e in events),
        "failed": [e.message for e in events if isinstance(e, BuildFailed)],
        "warned": [e.message for e in events if isinstance(e, Warned)],
        "accelerators": [name for e in events if isinstance(e, RunStarted) for name in e.accelerators],
        "groups": dict(sorted(Counter(len(e.indices) for e in built).items())),
        "compilers": dict(Counter(e.compiler for e in built)),
        "why": built[-1].why if built else "",
        "lowering_s": round(sum(e.seconds for e in events if isinstance(e, CandidateLowered)), 2),
        "building_s": round(sum(e.seconds for e in built), 2),
    }


def child_tilelang(job: dict[str, Any]) -> dict[str, Any]:
    """Compile the same with tilelang's tuner; gcc runs where its first call of a kernel would run it."""
    from atune.workload.workload import load

    work = load(parse_file_ref(job["space"]))
    drawn = Random(Searched({one.index: one.config for one in candidates_of(work)}, job["seed"]))
    indices = [drawn.ask() for _ in range(job["candidates"])]
    tuner = make_tuner(work, check=False, rtol=0.02, target={"kind": "cuda", "arch": ARCH})
    tuner.configs = [tuner.configs[i] for i in indices if i is not None]
    delivered = []

    def linked(jit_kernel: Any, **_: Any) -> tuple[float, None]:
        jit_kernel.adapter.get_exportable_executable().jit()
        delivered.append(jit_kernel)
        return 1.0, None

    tuner._benchmark_target = linked
    tuner.run(**job["run"])
    return {"delivered": len(delivered)}


def whole(job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Run one child to its end; return what it says with wall and CPU seconds."""
    with empty_caches("compile-stages-") as (folder, env):
        answer = folder / "answer.json"
        (folder / "job.json").write_text(json.dumps({**job, "answer": str(answer)}))
        env.pop(ACCELERATE, None)  # --accelerate says it
        command = [sys.executable, str(BENCH / "compile_stages.py"), "--job", str(folder / "job.json")]
        done = run_counted(command, env=env, cwd=folder, timeout_s=timeout_s)
        if not answer.exists():
            raise SystemExit(f"{job} failed, exit status {done.status}:\n{done.output[-3000:]}")
        found: dict[str, Any] = json.loads(answer.read_bytes())
        load = round(os.getloadavg()[1], 1)
        found |= {"wall_s": round(done.wall_s, 2), "cpu_s": round(done.cpu_s, 2), "load_average": load}
        return found


CHILDREN = {"atune": child_atune, "tilelang": child_tilelang}


# ---- what it writes


def markdown(result: dict[str, Any]) -> str:
    where = result["machine"]
    lines = [
        f"`{result['command']}`",
        "",
        f"{where['cores']} cores, {result['cpu']}, GPU: {where['gpu']}; tilelang {where['versions']['tilelang']}.",
        "",
    ]
    if result["rounds"]:
        n, rounds = result["candidates"], result["rounds"]
        base = next((name for name in rounds[0] if "tilelang" in name), "")
        lines += [
            f"## The compile stage as it runs: {n} configurations, {ARCH}, no GPU",
            "",
            "CPU seconds of every descendant, imports and headers included, from the start to the end. "
            "Load: the machine's 5-minute average at the end; above the cores, others were at work, and CPU seconds "
            "grew.",
        ]
        if len(rounds) > 1:
            lines[-1] += (
                f" All were run in turn, {len(rounds)} times: seconds are medians, and ratios those within a round, "
                "their median with the least and the largest; libraries are the first round's."
            )
        lines += [
            "",
            "| path | delivered | wall s | CPU s | wall s a candidate | CPU s a candidate | of tilelang's wall s | "
            "of its CPU s | libraries by size | compiler | load |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name, run in rounds[0].items():
            runs = [found[name] for found in rounds if name in found]
            wall_s, cpu_s, load = (
                statistics.median(one[key] for one in runs) for key in ("wall_s", "cpu_s", "load_average")
            )
            both = [(found[name], found[base]) for found in rounds if {name, base} <= found.keys()]
            of_wall, of_cpu = (_spread([own[key] / of[key] for own, of in both]) for key in ("wall_s", "cpu_s"))
            groups = ", ".join(f"{size}: {count}" for size, count in run.get("groups", {}).items()) or "–"
            used = ", ".join(f"{k} {v}" for k, v in run.get("compilers", {}).items()) or "–"
            delivered = min(one["delivered"] for one in runs)
            lines.append(
                f"| {name} | {delivered} | {wall_s:.1f} | {cpu_s:.1f} | {wall_s / n:.3f} | **{cpu_s / n:.3f}** | "
                f"{of_wall} | {of_cpu} | {groups} | {used} | {load:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    middle = f"{statistics.median(ratios):.3f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.3f}–{max(ratios):.3f})"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--space", default="gemm288", help="gemm288, roller20, or FILE.py:NAME")
    made.add_argument("--candidates", type=int, default=48)
    made.add_argument("--tilelang", default="default", help=f"modes of tilelang's tuner, of {','.join(MODES)}")
    made.add_argument("--paths", default=",".join(PATHS), help=f"of atune's, of {','.join(PATHS)}")
    made.add_argument(
        "--accelerate", action="append", metavar="TEXT",
        help="of atune's paths: auto, off, names, or auto less some; repeatable, each is run (auto)",
    )  # fmt: skip
    made.add_argument("--rounds", type=int, default=1, help="each path once, in turn")
    made.add_argument("--cores", type=int, help="restrict everything to the first N cores")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--timeout", type=float, default=900.0, help="seconds for each run")
    made.add_argument("--out", type=Path, help="folder for result.json and table.md")
    made.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return made


def tilelang_jobs(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what is run of tilelang's tuner, by the names of the table."""
    found = {}
    for mode in filter(None, options.tilelang.split(",")):
        run = {**MODES[mode], "warmup": 1, "rep": 1}
        if run.get("enable_grouped_compile"):
            run["group_compile_size"] = 4
        found[f"tilelang, {mode}"] = {"child": "tilelang", "run": run}
    return found


def atune_jobs(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what is run of atune, by the names of the table. Exits with a message on an unknown accelerator."""
    found = {}
    for accelerate in options.accelerate or ["auto"]:
        try:
            Acceleration.parse(accelerate, "--accelerate")
        except UsageError as error:
            raise SystemExit(str(error)) from None
        for path in filter(None, options.paths.split(",")):
            words = ["atune", *([] if accelerate == "auto" else [f"--accelerate {accelerate}"])]
            name = ", ".join([*words, *([] if PATHS[path] else ["--no-pipeline"])])
            found[name] = {"child": "atune", "accelerate": accelerate, "pipeline": PATHS[path]}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.job:
        job = json.loads(options.job.read_bytes())
        Path(job["answer"]).write_text(json.dumps(CHILDREN[job["child"]](job)))
        return 0
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    job = {
        "space": space_of(options.space), "seed": options.seed, "candidates": options.candidates,
        "workers": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    jobs = {**tilelang_jobs(options), **atune_jobs(options)}
    result: dict[str, Any] = {
        "command": " ".join(["python", "bench/compile_stages.py", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "cpu": _cpu(),
        "candidates": options.candidates,
        "rounds": [],
    }
    with empty_caches("compile-warm-") as (folder, env):
        run_counted([sys.executable, "-c", "import tilelang"], env=env, cwd=folder, timeout_s=300)
    for _ in range(options.rounds):
        result["rounds"].append(found := {})
        for name, more in jobs.items():
            found[name] = whole({**job, **more}, options.timeout)
            _write(options, result)
    print(_write(options, result), end="")
    return 0


def _cpu() -> str:
    found = subprocess.run(["sed", "-n", "s/^model name.*: //p", "/proc/cpuinfo"], capture_output=True, text=True)
    return next(iter(found.stdout.splitlines()), "CPU")


def _write(options: argparse.Namespace, result: dict[str, Any]) -> str:
    text = markdown(result)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "table.md").write_text(text)
    return text


if __name__ == "__main__":
    raise SystemExit(main())

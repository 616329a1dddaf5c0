"""CPU seconds a candidate, by stage of the compile path and by group size; needs nvcc and no GPU.

    python bench/compile_stages.py --cores 2 --out bench/results/compile_stages

Two measurements of the 288 GEMM configurations of examples/gemm.py, for sm_90a:

- stages: one process, one candidate or group at a time, every stage's CPU seconds apart, children included, for each
  device compiler: nvcc, cicc (nvcc with the headers parsed once), NVRTC without and with a precompiled header (PCH).
  Configurations that atune's screen would put last in line (256 or more accumulators a thread) are left out here, so
  that groups are alike.
- whole: the compile stage as it runs, over 48 configurations drawn from all, without a device: start of the process to
  its end, CPU seconds of every descendant (imports, fork server, headers) by candidate; and the same for tilelang's own
  tuner with its timing on the device left out (gcc is run for each kernel, as its first call would). With `--rounds`
  all of these in turn, several times: shared machines are faster one minute than the next.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from counted import empty_caches, run_counted
from vs_tilelang import MODES, machine, make_tuner, space_of

from atune.engine.engine import Engine
from atune.engine.strategy import make_strategy
from atune.journal.events import AnyEvent, ArtifactBuilt, BuildFailed, CandidateLowered, CandidateMeasured, Warned
from atune.journal.recorder import Recorder
from atune.local.backend import LocalBackend
from atune.model.artifact import Lowered
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.processes.messages import Session
from atune.system.folders import SERVER_FOLDER
from atune.testing import IdleDeviceLane
from atune.workload.workload import FileRef, parse_file_ref

BENCH = Path(__file__).resolve().parent
ARCH = "sm_90a"
COMPILERS = ("nvcc", "cicc", "nvrtc", "nvrtc+pch")
SIZES = (1, 2, 4, 8, 16, 32)
STAGES = ("elaborate", "lower", "source", "keys", "merge", "device compiler", "link", "load")
"""keys: pickling and digests. merge: both halves' merging and the host's C. link: gcc."""
PATHS = {
    "auto": ("atune", "auto", True), "no-pipeline": ("atune, --no-pipeline", "auto", False),
    "nvcc": ("atune, nvcc", "nvcc", True), "cicc": ("atune, cicc", "cicc", True),
    "nvrtc": ("atune, NVRTC with PCH", "nvrtc", True),
}  # fmt: skip
"""By the option's word: a name, the compiler, and whether groups are kept small at first for a device that waits."""
COLOURS = ("#4e79a7", "#59a14f", "#9c755f", "#bab0ac", "#edc948", "#e15759", "#b07aa1", "#76b7b2")


# ---- by stage, in one process


_servers: list[int] = []
"""Processes that work for this one while it lasts."""


def cpu_s() -> float:
    """CPU seconds of this process, of its servers, and of the children that they have waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    for pid in _servers:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        found += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


class Clock:
    """Charges CPU seconds to the innermost stage that is open."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._last = cpu_s()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **named)

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds by stage and start again at zero."""
        self._charge()
        found = dict(self.seconds)
        self.seconds.clear()
        return found

    def _charge(self) -> None:
        now = cpu_s()
        if self._open:
            self.seconds[self._open[-1]] += now - self._last
        self._last = now


def child_stages(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one device compiler. Returns CPU seconds by group size and stage, each for a candidate."""
    from atune.stages.accelerators import counting

    with tempfile.TemporaryDirectory() as folder:  # as in the fork server, before tilelang is imported
        os.environ[SERVER_FOLDER] = folder
        counting.begin()
        counting.load()
        del os.environ[SERVER_FOLDER]
        assert counting._library is not None, "threads are counted by z3"
    import tvm_ffi
    from tilelang import tvm

    from atune.engine.screen import SPILL_REGISTERS
    from atune.stages.accelerators import mutation, z3_tables
    from atune.stages.compile import codegen, linking, lowering
    from atune.stages.session.session import session

    engine: Any = importlib.import_module("tilelang.engine.lower")  # the package's attribute is its function
    clock = Clock()
    mutation.install()
    assert z3_tables.shrink(), "z3 writes large tables"
    with tempfile.TemporaryDirectory() as run_dir:
        ref = parse_file_ref(job["space"])
        begun = Session(ref, Target("cuda", ARCH), CompileSettings(), BenchmarkSettings(n_final=0), run_dir)
        session.begin(msgspec.msgpack.encode(begun))
        candidates = session.workload().candidates()
        random.Random(job["seed"]).shuffle(candidates)
        elaborate, lower_ir = lowering.elaborate, engine.lower_to_host_device_ir
        lowering.elaborate = clock.wrap("elaborate", elaborate)
        engine.lower_to_host_device_ir = clock.wrap("lower", lower_ir)
        sources = engine.device_codegen_without_compile, engine.host_codegen
        engine.device_codegen_without_compile = clock.wrap("source", sources[0])
        engine.host_codegen = clock.wrap("source", sources[1])
        lowering.lower(candidates.pop())  # the first pays for imports and for tilelang's lazy set-up
        clock.take()
        lowered: list[Lowered] = []
        lowering_s: Counter[str] = Counter()
        for candidate in candidates:
            with clock.stage("keys"):
                one = lowering.lower(candidate)
            seconds = clock.take()
            if (one.facts.accumulators or 0) < SPILL_REGISTERS:
                lowered.append(one)
                lowering_s.update(seconds)
            if len(lowered) == max(SIZES):
                break
        common = {name: seconds / len(lowered) for name, seconds in lowering_s.items()}
        engine.host_codegen = sources[1]
        linking.link = clock.wrap("link", linking.link)
        header_s = 0.0
        if job["compiler"] == "nvcc":
            nvcc = tvm_ffi.get_global_func(codegen.DeviceCompiler.NAME)
            tvm_ffi.register_global_func(
                codegen.DeviceCompiler.NAME, clock.wrap("device compiler", nvcc), override=True
            )
        else:
            start = _start_cicc if job["compiler"] == "cicc" else _start_nvrtc
            header_s = start(run_dir, codegen, clock, job["compiler"])
        found, wanted = {}, job["compiler"].partition("+")[0]
        for size in SIZES:
            clock.take()
            groups = _sampled(lowered, size)
            for n, group in enumerate(groups):
                path = os.path.join(run_dir, f"{size}-{n}.so")
                with clock.stage("merge"):
                    artifacts = codegen.build(group, path, wanted if wanted != "nvcc" else "")
                assert {a.compiler for a in artifacts} == {wanted}, artifacts[0].why
                with clock.stage("load"):
                    library = tvm.runtime.load_module(path)
                    assert all(library[a.symbol] is not None for a in artifacts)
            members = sum(map(len, groups))
            found[size] = {**common, **{name: s / members for name, s in clock.take().items()}}
            print(job["compiler"], size, round(sum(found[size].values()), 3), file=sys.stderr, flush=True)
    return {"per_candidate_s": found, "header_s": header_s, "lowered": len(lowered)}


def _sampled(lowered: Sequence[Lowered], size: int) -> list[list[Lowered]]:
    """Return some groups of `size`: up to eight, spread over all candidates so that each size sees the same mix."""
    groups = [list(lowered[i : i + size]) for i in range(0, len(lowered), size)]
    step = max(1, len(groups) // 8)
    return groups[::step]


def _start_cicc(run_dir: str, codegen: Any, clock: Clock, _: str) -> float:
    """Compile with a server of cicc, as the compile service does. Returns what parsing the headers cost."""
    from atune.stages.accelerators import cicc
    from atune.stages.compile.device_source import Flavour

    begun, folder = cpu_s(), os.path.join(run_dir, "server")
    os.mkdir(folder)
    server = cicc.Server(Flavour(ARCH), cicc.includes_for(ARCH), folder)
    server.link(run_dir)
    _servers.append(server.process.pid)
    codegen.cicc.compile_remotely = clock.wrap("device compiler", codegen.cicc.compile_remotely)
    return cpu_s() - begun


def _start_nvrtc(_: str, codegen: Any, clock: Clock, compiler: str) -> float:
    """Compile with NVRTC in forks of this process, as the compile service does. Returns what its header cost."""
    from atune.stages.accelerators import nvrtc
    from atune.stages.compile.device_source import Flavour, guess

    begun, pch = cpu_s(), compiler == "nvrtc+pch"
    if pch:
        nvrtc.make(Flavour(ARCH), guess(ARCH))
    else:
        nvrtc._service.nvrtc = nvrtc.Nvrtc()
    header_s = cpu_s() - begun

    def compile_in_fork(source: str, flavour: Any, _run_dir: str) -> bytes:
        with tempfile.NamedTemporaryFile() as answer:
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    Path(answer.name).write_bytes(nvrtc.compile_here(source, flavour))
                    status = 0
                finally:
                    os._exit(status)
            _, ended = os.waitpid(pid, 0)
            assert ended == 0, "NVRTC refused what it should compile"
            return Path(answer.name).read_bytes()

    codegen.nvrtc.compile_remotely = clock.wrap("device compiler", compile_in_fork)
    return header_s if pch else 0.0


# ---- the whole compile stage, as it runs


class CompileOnly(LocalBackend):
    def device_lanes(self) -> Any:
        return [IdleDeviceLane()]


def child_atune(job: dict[str, Any]) -> dict[str, Any]:
    """Compile with atune's engine what the strategy `random` draws first."""
    settings = CompileSettings(workers=job["workers"], compiler=job["compiler"])
    ref = parse_file_ref(job["space"])
    backend = CompileOnly(FileRef(ref.path, ref.name), target=ARCH, devices=(), compile=settings)
    events: list[AnyEvent] = []
    recorder = Recorder(None, (events.append,))
    engine = Engine(
        backend, recorder, compile=settings, benchmark=BenchmarkSettings(n_final=0), strategy="random",
        seed=job["seed"], budget=Budget(candidates=job["candidates"]), pipeline=job["pipeline"],
    )  # fmt: skip
    anyio.run(engine.run)
    built = [e for e in events if isinstance(e, ArtifactBuilt)]
    return {
        "delivered": sum(isinstance(e, CandidateMeasured) for e in events),
        "failed": [e.message for e in events if isinstance(e, BuildFailed)],
        "warned": [e.message for e in events if isinstance(e, Warned)],
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
    drawn = make_strategy("random", len(work.candidates()), job["seed"])
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
        command = [sys.executable, str(BENCH / "compile_stages.py"), "--job", str(folder / "job.json")]
        done = run_counted(command, env=env, cwd=folder, timeout_s=timeout_s)
        if not answer.exists():
            raise SystemExit(f"{job} failed, exit status {done.status}:\n{done.output[-3000:]}")
        found: dict[str, Any] = json.loads(answer.read_bytes())
        load = round(os.getloadavg()[1], 1)
        found |= {"wall_s": round(done.wall_s, 2), "cpu_s": round(done.cpu_s, 2), "load_average": load}
        return found


CHILDREN = {"stages": child_stages, "atune": child_atune, "tilelang": child_tilelang}


# ---- what it writes


def markdown(result: dict[str, Any]) -> str:
    where = result["machine"]
    lines = [
        f"`{result['command']}`",
        "",
        f"{where['cores']} cores, {result['cpu']}, GPU: {where['gpu']}; tilelang {where['versions']['tilelang']}.",
        "",
    ]
    if result["stages"]:
        lines += ["## CPU seconds a candidate, by stage and group size", ""]
    for compiler, found in result["stages"].items():
        header = f"; parsing the headers: {found['header_s']:.2f} s, once" if found["header_s"] else ""
        lines += [f"### {compiler}{header}", "", f"| group | {' | '.join(STAGES)} | sum |", "|---" * 10 + "|"]
        for size, stages in found["per_candidate_s"].items():
            cells = " | ".join(f"{stages.get(name, 0.0):.3f}" for name in STAGES)
            lines.append(f"| {size} | {cells} | **{sum(stages.values()):.3f}** |")
        lines.append("")
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
            "| path | delivered | wall s | CPU s | CPU s a candidate | of tilelang's | libraries by size | compiler | "
            "load |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name, run in rounds[0].items():
            runs = [found[name] for found in rounds if name in found]
            wall_s, cpu_s, load = (
                statistics.median(one[key] for one in runs) for key in ("wall_s", "cpu_s", "load_average")
            )
            ratios = [found[name]["cpu_s"] / found[base]["cpu_s"] for found in rounds if {name, base} <= found.keys()]
            groups = ", ".join(f"{size}: {count}" for size, count in run.get("groups", {}).items()) or "–"
            used = ", ".join(f"{k} {v}" for k, v in run.get("compilers", {}).items()) or "–"
            delivered = min(one["delivered"] for one in runs)
            lines.append(
                f"| {name} | {delivered} | {wall_s:.1f} | {cpu_s:.1f} | **{cpu_s / n:.3f}** | {_spread(ratios)} | "
                f"{groups} | {used} | {load:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    middle = f"{statistics.median(ratios):.3f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.3f}–{max(ratios):.3f})"


def svg(stages: dict[str, Any]) -> str:
    """Draw stacked bars: a panel for each compiler, a bar for each group size."""
    width, height, left, top, gap = 250, 300, 50, 50, 30
    tallest = max(sum(s.values()) for found in stages.values() for s in found["per_candidate_s"].values())
    scale = height / (tallest * 1.05)
    total = left + len(stages) * (width + gap) + 150
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height + top + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{total}" height="{height + top + 50}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">CPU seconds a candidate by group size, {ARCH}, no GPU</text>',
    ]
    step = next(s for s in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if tallest / s <= 8 or s == 5.0)
    for i in range(int(tallest / step) + 1):
        y = top + height - i * step * scale
        end = left + len(stages) * (width + gap) - gap
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{end}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for p, (compiler, found) in enumerate(stages.items()):
        x0 = left + p * (width + gap)
        parts.append(f'<text x="{x0 + width / 2}" y="{top - 10}" text-anchor="middle">{compiler}</text>')
        sizes = list(found["per_candidate_s"].items())
        slot = width / len(sizes)
        for b, (size, seconds) in enumerate(sizes):
            x, y = x0 + b * slot + slot * 0.15, float(top + height)
            for name, colour in zip(STAGES, COLOURS, strict=True):
                tall = seconds.get(name, 0.0) * scale
                y -= tall
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{slot * 0.7:.1f}" height="{tall:.1f}" fill="{colour}">'
                    f"<title>{compiler}, {size}, {name}: {seconds.get(name, 0.0):.3f} s</title></rect>"
                )
            middle = x + slot * 0.35
            parts.append(
                f'<text x="{middle:.1f}" y="{y - 4:.1f}" text-anchor="middle" font-size="10">'
                f"{sum(seconds.values()):.2f}</text>"
            )
            parts.append(f'<text x="{middle:.1f}" y="{top + height + 16}" text-anchor="middle">{size}</text>')
    for i, (name, colour) in enumerate(zip(STAGES, COLOURS, strict=True)):
        y = top + 20 * (len(STAGES) - i)
        x = left + len(stages) * (width + gap)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--space", default="gemm288", help="gemm288, roller20, or FILE.py:NAME")
    made.add_argument("--compilers", default=",".join(COMPILERS), help="for the stages; empty leaves them out")
    made.add_argument("--candidates", type=int, default=48, help="of the whole; 0 leaves it out")
    made.add_argument("--tilelang", default="default", help=f"modes of tilelang's tuner, of {','.join(MODES)}")
    made.add_argument("--paths", default=",".join(PATHS), help="of atune's, for the whole")
    made.add_argument("--rounds", type=int, default=1, help="of the whole: each path once, in turn")
    made.add_argument("--cores", type=int, help="restrict everything to the first N cores")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--timeout", type=float, default=900.0, help="seconds for each part")
    made.add_argument("--out", type=Path, help="folder for result.json, table.md and stages.svg")
    made.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.job:
        job = json.loads(options.job.read_bytes())
        Path(job["answer"]).write_text(json.dumps(CHILDREN[job["child"]](job)))
        return 0
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    common = {"space": space_of(options.space), "seed": options.seed}
    result: dict[str, Any] = {
        "command": " ".join(["python", "bench/compile_stages.py", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "cpu": _cpu(),
        "candidates": options.candidates,
        "stages": {},
        "rounds": [],
    }
    with empty_caches("compile-warm-") as (folder, env):
        run_counted([sys.executable, "-c", "import tilelang"], env=env, cwd=folder, timeout_s=300)
    job = {**common, "candidates": options.candidates, "workers": len(os.sched_getaffinity(0))}
    for _ in range(options.rounds if options.candidates else 0):
        result["rounds"].append(found := {})
        for mode in filter(None, options.tilelang.split(",")):
            run = {**MODES[mode], "warmup": 1, "rep": 1}
            if run.get("enable_grouped_compile"):
                run["group_compile_size"] = 4
            found[f"tilelang, {mode}"] = whole({**job, "child": "tilelang", "run": run}, options.timeout)
            _write(options, result)
        for path in filter(None, options.paths.split(",")):
            name, compiler, pipeline = PATHS[path]
            child = {"child": "atune", "compiler": compiler, "pipeline": pipeline}
            found[name] = whole({**job, **child}, options.timeout)
            _write(options, result)
    for compiler in filter(None, options.compilers.split(",")):
        result["stages"][compiler] = whole({**common, "child": "stages", "compiler": compiler}, options.timeout)
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
        if result["stages"]:
            (options.out / "stages.svg").write_text(svg(result["stages"]))
    return text


if __name__ == "__main__":
    raise SystemExit(main())

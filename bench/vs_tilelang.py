"""Compare tilelang's own tuner with atune, each in a fresh process, on the same kernel, space and repeats.

    python bench/vs_tilelang.py --space gemm288 --tuners default,atune --cores 16 --out bench/results/gemm288

Prints a table and, with --out, writes it with all figures as JSON and atune's journal. A third process, the common
harness, compiles both winners in the same way by tilelang and times them again, interleaved, with launches queued
behind a device sleep. The caches of both tuners are empty and off.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from counted import Finished, empty_caches, run_counted

from atune.journal.events import ArtifactBuilt, CandidateLowered, CandidateMeasured, RunFinished, RunStarted
from atune.journal.reader import JournalReader
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, with_tuples
from atune.model.measurement import Timing, ratio_interval
from atune.model.settings import BenchmarkSettings
from atune.stages.gpu import no_gpu_reason, visible_gpus
from atune.workload.workload import candidates_of

BENCH = Path(__file__).resolve().parent
SPACES = {
    "gemm288": str(BENCH.parent / "examples" / "gemm.py") + ":WORKLOAD",
    "roller20": str(BENCH.parent / "examples" / "gemm_roller.py") + ":WORKLOAD",
    "attention": str(BENCH / "attention.py") + ":WORKLOAD",
}
MODES: dict[str, dict[str, bool]] = {
    "default": {},
    "pipeline": {"use_pipeline": True},
    "grouped": {"enable_grouped_compile": True},
    "both": {"use_pipeline": True, "enable_grouped_compile": True},
}
"""Modes of tilelang's tuner: arguments of `AutoTuner.run`."""
TUNERS = (*MODES, "atune")
WARMUP = BenchmarkSettings().n_warmup
"""Calls before the first sample, for every tuner."""


class Report(msgspec.Struct, kw_only=True):
    """The run of a tuner. Seconds are None if the tuner does not report them."""

    tuner: str
    error: str = ""
    wall_s: float = 0.0
    """From the start of the process to its end."""
    result_s: float | None = None
    """From the start of the process to the result, if that is known."""
    cpu_s: float = 0.0
    best_config: dict[str, Any] | None = None
    latency_ms: float | None = None
    """The winner's latency, as this tuner timed it."""
    measured: int = 0
    total: int = 0
    checked: bool = False
    first_artifact_s: float | None = None
    """From the start of the process to the first compiled candidate."""
    stages_s: dict[str, float] = {}
    """Wall seconds, summed over workers or threads."""
    groups: dict[int, int] = {}
    """Numbers of libraries, by the number of their candidates."""
    outcomes: dict[str, int] = {}
    retimed_ms: float | None = None
    """The winner's latency in the common harness."""
    retimed_correct: bool | None = None
    """Whether the winner's outputs were within the workload's tolerances in the common harness."""


class Retimed(msgspec.Struct, kw_only=True):
    """A winner in the common harness."""

    label: str
    timing: Timing
    correct: bool | None
    max_error: float


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--space", default="gemm288", help=f"{', '.join(SPACES)}, or FILE.py:NAME")
    made.add_argument("--tuners", default="default,atune", help=f"of {','.join(TUNERS)}, in the order of their runs")
    made.add_argument("--target", choices=["cuda", "c"], default="cuda", help="c: only atune")
    made.add_argument("--cores", type=int, help="restrict everything to the first N cores")
    made.add_argument("--timeout", type=float, default=570.0, help="seconds for each tuner")
    made.add_argument("--check", choices=["own", "on", "off"], default="own", help="own: only atune checks")
    made.add_argument("--rep", type=int, default=20)
    made.add_argument("--group-compile-size", type=int, default=4, help="for tilelang's modes grouped and both")
    made.add_argument("--rounds", type=int, default=200, help="rounds of the common harness")
    made.add_argument("--out", type=Path, help="folder for result.json, table.md and atune's journal")
    made.add_argument("--child", choices=["tilelang", "retime"], help=argparse.SUPPRESS)
    made.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return made


def chosen_tuners(text: str) -> list[str]:
    """Read ``--tuners``. Exits with status 2 on an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TUNERS]:
        raise SystemExit(f"--tuners: {unknown[0]!r} is unknown: choose from {', '.join(TUNERS)}")
    return names


def space_of(text: str) -> str:
    """Return ``FILE.py:NAME`` with an absolute path."""
    path, _, name = SPACES.get(text, text).rpartition(":")
    if not path or not os.path.isfile(path):
        raise SystemExit(f"--space: {text!r} is neither FILE.py:NAME nor any of {', '.join(SPACES)}")
    return f"{os.path.abspath(path)}:{name}"


def checks(options: argparse.Namespace, tuner: str) -> bool:
    return tuner == "atune" if options.check == "own" else options.check == "on"


def atune_command(options: argparse.Namespace, journal: Path) -> list[str]:
    """Return the command line of atune's run."""
    command = [sys.executable, "-m", "atune", "tune", space_of(options.space), "--target", options.target]
    command += ["--rep", str(options.rep), "--journal", str(journal)]
    return [*command, *([] if checks(options, "atune") else ["--skip-check"]), "--quiet", "--json"]


def child_command(child: str, job: Path) -> list[str]:
    return [sys.executable, str(BENCH / "vs_tilelang.py"), "--child", child, "--job", str(job)]


def tilelang_job(options: argparse.Namespace, mode: str, answer: Path) -> dict[str, Any]:
    run = {**MODES[mode], "warmup": WARMUP, "rep": options.rep}
    if MODES[mode].get("enable_grouped_compile"):
        run["group_compile_size"] = options.group_compile_size
    check = checks(options, mode)
    work = {"space": space_of(options.space), "target": options.target}
    return {**work, "run": run, "check": check, "answer": str(answer)}


# ---- running the tuners


def run_atune(options: argparse.Namespace) -> tuple[Report, bytes]:
    """Run atune's command line. Return the report and the journal."""
    report = Report(tuner="atune", checked=checks(options, "atune"))
    with empty_caches("vs-atune-") as (folder, env):
        journal = folder / "journal.jsonl"
        done = run_counted(atune_command(options, journal), env=env, cwd=folder, timeout_s=options.timeout)
        _note(report, done)
        if journal.exists():
            read_journal(report, journal, done.started)
        lines = done.output.splitlines()
        if lines and lines[-1].startswith("{"):
            summary = json.loads(lines[-1])
            report.best_config, report.latency_ms = summary["best_config"], summary["latency_ms"]
            report.total, report.measured = summary["total"], summary["measured"]
            keys = ("measured", "failed", "pruned", "duplicates", "remaining")
            report.outcomes = {key: summary[key] for key in keys if summary[key]}
        return report, journal.read_bytes() if journal.exists() else b""


def read_journal(report: Report, journal: Path, started: float) -> None:
    """Fill in the figures from atune's journal: the stages' seconds, the first artifact and the groups."""
    stages: Counter[str] = Counter()
    groups: Counter[int] = Counter()
    for event in JournalReader(str(journal)):
        if isinstance(event, RunStarted):
            stages["start"] = event.time - started
        elif isinstance(event, CandidateLowered):
            stages["lowering"] += event.seconds
        elif isinstance(event, ArtifactBuilt):
            stages["building"] += event.seconds
            groups[len(event.indices)] += 1
            if report.first_artifact_s is None:
                report.first_artifact_s = event.time - started
        elif isinstance(event, CandidateMeasured):
            stages["measuring"] += event.seconds
        elif isinstance(event, RunFinished):
            report.result_s = event.time - started
    report.stages_s = {name: round(seconds, 2) for name, seconds in stages.items()}
    report.groups = dict(sorted(groups.items()))


def run_tilelang(options: argparse.Namespace, mode: str) -> Report:
    report = Report(tuner=f"tilelang {mode}", checked=checks(options, mode))
    with empty_caches("vs-tilelang-") as (folder, env):
        job, answer = folder / "job.json", folder / "answer.json"
        job.write_text(json.dumps(tilelang_job(options, mode, answer)))
        done = run_counted(child_command("tilelang", job), env=env, cwd=folder, timeout_s=options.timeout)
        _note(report, done)
        report.measured = done.output.count("Tuned Latency")
        if answer.exists():
            result = json.loads(answer.read_bytes())
            report.best_config, report.latency_ms = result["config"], result["latency_ms"]
            report.total, report.stages_s = result["total"], result["stages_s"]
            report.result_s, first = result["result"] - done.started, result["first_artifact"]
            report.first_artifact_s = first - done.started if first else None
            if report.error and not done.timed_out:  # it has a result, so a failure at its end is only noted
                report.outcomes, report.error = {f"exit status {done.status} after the result": 1}, ""
        return report


def _note(report: Report, done: Finished) -> None:
    report.wall_s, report.cpu_s = round(done.wall_s, 2), round(done.cpu_s, 2)
    if done.timed_out:
        report.error = f"exceeded --timeout, {done.wall_s:.0f} s"
    elif done.status != 0:
        tail = [line for line in done.output.splitlines() if line.strip()][-3:]
        report.error = f"exit status {done.status}: {' | '.join(tail)}"[:800]


def retime(options: argparse.Namespace, reports: Sequence[Report]) -> list[Retimed]:
    """Time the winners in the common harness, and enter the results in `reports`."""
    winners = [r for r in reports if r.best_config is not None]
    if not winners:
        return []
    with empty_caches("vs-retime-") as (folder, env):
        job, answer = folder / "job.json", folder / "answer.json"
        entries = [{"label": r.tuner, "config": r.best_config} for r in winners]
        work = {"space": space_of(options.space), "target": options.target, "rounds": options.rounds}
        job.write_text(json.dumps({**work, "entries": entries, "answer": str(answer)}))
        done = run_counted(child_command("retime", job), env=env, cwd=folder, timeout_s=options.timeout)
        if not answer.exists():
            print(f"the common harness failed, exit status {done.status}\n{done.output[-3000:]}", file=sys.stderr)
            return []
        retimed = msgspec.json.decode(answer.read_bytes(), type=list[Retimed])
    for report, again in zip(winners, retimed, strict=True):
        report.retimed_ms, report.retimed_correct = round(again.timing.latency_ms, 5), again.correct
    return retimed


# ---- in the child processes


def child_tilelang(job: dict[str, Any]) -> None:
    """Tune with tilelang's AutoTuner, as in its documentation, and write the winner."""
    import threading

    import tilelang.autotuner.tuner as tuner_module

    from atune.stages.check import RTOL
    from atune.workload.pickling import load, parse_file_ref

    work = load(parse_file_ref(job["space"]))
    tuner = make_tuner(work, check=job["check"], rtol=RTOL["bfloat16"], target=job["target"])
    seconds: Counter[str] = Counter()
    first: list[float] = []
    lock = threading.Lock()

    def timed(stage: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                with lock:
                    seconds[stage] += time.perf_counter() - begun
                    if stage == "compiling" and not first:
                        first.append(time.time())

        return call

    # Timing these calls is the only change to tilelang.
    tuner.jit_compile = timed("compiling", tuner._default_compile)
    tuner_module.compile_grouped_unit_tvm_ffi = timed("compiling", tuner_module.compile_grouped_unit_tvm_ffi)
    tuner._benchmark_target = timed("measuring", tuner._benchmark_target)
    result = tuner.run(**job["run"])
    ended = time.time()
    config = {k: v for k, v in result.config.items() if k not in work.arguments}
    answer = {
        "config": config,
        "latency_ms": result.latency,
        "total": len(tuner.configs),
        "result": ended,
        "first_artifact": first[0] if first else None,
        "stages_s": {name: round(value, 2) for name, value in seconds.items()},
    }
    Path(job["answer"]).write_text(json.dumps(answer))


def make_tuner(work: Any, *, check: bool, rtol: float, target: Any) -> Any:
    """Return tilelang's AutoTuner for the workload's space. Each configuration includes the problem's arguments."""
    from tilelang.autotuner import AutoTuner

    from atune.workload.fingerprint import function_of

    configs = [{**work.arguments, **_tilelang_config(candidate.config)} for candidate in candidates_of(work)]
    tuner = AutoTuner.from_kernel(kernel=function_of(work.kernel), configs=configs)
    tuner.set_compile_args(out_idx=list(work.out_idx or [-1]), target=target, pass_configs=work.pass_configs or None)
    supply = None if work.inputs is None else (lambda _params: _inputs(work))
    tuner.set_profile_args(
        supply_prog=supply,
        ref_prog=work.reference if check else None,
        skip_check=not check,
        rtol=work.rtol if work.rtol is not None else rtol,
        atol=work.atol if work.atol is not None else 1.0,
        max_mismatched_ratio=work.max_mismatched_ratio,
        cache_input_tensors=True,
    )
    return tuner


def _tilelang_config(config: Any) -> dict[str, Any]:
    """Return a configuration as tilelang takes it, with compile flags in the pass configuration."""
    given = with_tuples({k: v for k, v in config.items() if k != COMPILE_FLAGS})
    if config.get(COMPILE_FLAGS):
        given[PASS_CONFIGS] = {**given.get(PASS_CONFIGS, {}), "tl.device_compile_flags": list(config[COMPILE_FLAGS])}
    return given


def _inputs(work: Any) -> list[Any]:
    import torch

    given = work.inputs() if callable(work.inputs) else work.inputs
    return [value.cuda() if isinstance(value, torch.Tensor) else value for value in given]


def child_retime(job: dict[str, Any]) -> None:
    """Compile all winners in the same way, check them, and time them in turn."""
    import tilelang

    from atune.stages.arguments import POISONS, KernelArguments
    from atune.stages.check import expected_outputs, judged
    from atune.stages.frontend import kernel_parameters, roles_of
    from atune.stages.timer import DeviceStream, Timed, make_timer
    from atune.workload.fingerprint import function_of
    from atune.workload.pickling import load, parse_file_ref

    work = load(parse_file_ref(job["space"]))
    on_cpu = job["target"] == "c"
    device = "cpu" if on_cpu else "cuda"
    calls, checked = [], []
    arguments: Any = None
    timer = make_timer(DeviceStream(device))
    for entry in job["entries"]:
        config = _tilelang_config(entry["config"])
        pass_configs = {**work.pass_configs, **config.pop(PASS_CONFIGS, {})}
        function = function_of(work.kernel)(**with_tuples(work.arguments), **config)
        backend = "cython" if on_cpu else "tvm_ffi"
        kernel = tilelang.compile(
            function, target=job["target"], execution_backend=backend, pass_configs=pass_configs or None
        )
        if arguments is None:
            roles = roles_of(function, work.out_idx, work.zero)
            arguments = KernelArguments(work, kernel_parameters(function), roles, device)
            expected = expected_outputs(work, arguments) if work.reference is not None else None
        arguments.fill_outputs(POISONS[0])
        kernel(*arguments.values)
        timer.synchronise()
        mismatch, error = judged(work, arguments, expected, arguments.still_holding(POISONS[0]))
        checked.append((entry["label"], None if expected is None else mismatch is None, error or 0.0))
        calls.append(Timed(functools.partial(kernel, *arguments.values)))
    samples = timer.interleaved(calls, job["rounds"], 10)
    answer = [
        Retimed(label=label, timing=Timing.of(us, timer.method(call)), correct=correct, max_error=error)
        for (label, correct, error), call, us in zip(checked, calls, samples, strict=True)
    ]
    Path(job["answer"]).write_bytes(msgspec.json.encode(answer))


# ---- the table


def machine() -> dict[str, Any]:
    """Describe this machine: GPU, cores and versions."""
    names = ("tilelang-atune", "tilelang", "torch", "apache-tvm-ffi")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "from the source tree"
    gpu = ""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip().replace("\n", "; ")
    cores = len(os.sched_getaffinity(0))
    return {"gpu": gpu or "none", "cores": cores, "python": platform.python_version(), "versions": versions}


def gpus() -> list[str]:
    """Return the numbers of this machine's GPUs."""
    gpu = machine()["gpu"]
    return [] if gpu == "none" else [str(n) for n in range(gpu.count(";") + 1)]


def table(options: argparse.Namespace, reports: Sequence[Report], retimed: Sequence[Retimed]) -> str:
    """Return the table and the ratios as Markdown."""
    where = machine()
    lines = [
        f"`{' '.join(['python', 'bench/vs_tilelang.py', *sys.argv[1:]])}`",
        "",
        f"{where['gpu']}; {where['cores']} cores used; tilelang {where['versions']['tilelang']}, "
        f"torch {where['versions']['torch']}. Warm-up {WARMUP}, repeats {options.rep}, as each tuner defines them. "
        "Each tuner ran in a fresh process, with its caches empty and off. Wall seconds count from the start of this "
        "process, and CPU seconds include its descendants."
        + (" The common harness is tilelang's own compile, which gives g++ no -O." if options.target == "c" else ""),
        "",
        "| tuner | checks | wall s | result after s | CPU s | measured | first artifact s | stages, summed s | winner, "
        "its own timing | in the common harness |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in reports:
        stages = ", ".join(f"{name} {value:g}" for name, value in r.stages_s.items()) or "–"
        config = ", ".join(f"{k}={v}" for k, v in (r.best_config or {}).items())
        winner = f"{config}: {r.latency_ms:.4f} ms" if r.latency_ms is not None else r.error or "none"
        right = {None: "unchecked", True: "right", False: "WRONG"}[r.retimed_correct]
        again = f"{r.retimed_ms:.4f} ms, {right}" if r.retimed_ms is not None else "–"
        lines.append(
            f"| {r.tuner} | {'on' if r.checked else 'off'} | {r.wall_s:.1f} | {_number(r.result_s)} | {r.cpu_s:.1f} | "
            f"{r.measured} of {r.total or '?'} | {_number(r.first_artifact_s)} | {stages} | {winner} | {again} |"
        )
    lines.append("")
    lines += [f"{r.tuner}: {r.error}" for r in reports if r.error]
    ours = next((r for r in reports if r.tuner == "atune"), None)
    if ours is not None and ours.groups:
        shown = ", ".join(f"{size}: {count}" for size, count in ours.groups.items())
        lines.append(f"atune's libraries by their number of candidates: {shown}.")
        lines.append(f"atune's candidates by outcome: {', '.join(f'{k} {v}' for k, v in ours.outcomes.items())}.")
    theirs = [r for r in reports if r.tuner != "atune" and not r.error]
    if ours is not None and not ours.error and theirs:
        best = min(theirs, key=_until_result)
        which = "best mode here" if len(theirs) > 1 else "only mode here"
        lines.append(
            f"atune against tilelang's {which} ({best.tuner}), start of the process to the result: "
            f"{_until_result(ours) / _until_result(best):.3f} of the wall seconds; "
            f"{ours.cpu_s / best.cpu_s:.3f} of the CPU seconds."
        )
    by_label = {winner.label: winner.timing for winner in retimed}
    if "atune" in by_label:
        for label, timing in by_label.items():
            if label != "atune":
                low, middle, high = ratio_interval(by_label["atune"], timing)
                lines.append(
                    f"Winners in the common harness, latency of atune's over {label}'s: {middle:.4f} "
                    f"(95 % interval {low:.4f} to {high:.4f})."
                )
    return "\n".join(lines) + "\n"


def _until_result(report: Report) -> float:
    return report.wall_s if report.result_s is None else report.result_s


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.child:
        job = json.loads(options.job.read_bytes())
        (child_tilelang if options.child == "tilelang" else child_retime)(job)
        return 0
    tuners = chosen_tuners(options.tuners)
    if options.target == "c" and tuners != ["atune"]:
        raise SystemExit("--target c: tilelang's own tuner needs a GPU; use --tuners atune")
    if options.target == "cuda" and not visible_gpus():
        print(f"vs_tilelang.py compares two tuners on a CUDA GPU, but {no_gpu_reason()}", file=sys.stderr)
        return 2
    space_of(options.space)
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    with empty_caches("vs-warm-") as (folder, env):  # or the first tuner would read the packages from the disk
        run_counted([sys.executable, "-c", "import tilelang"], env=env, cwd=folder, timeout_s=300)
    reports, journal = [], b""
    for tuner in tuners:
        print(f"{tuner} tunes {options.space}, for at most {options.timeout:g} s", file=sys.stderr, flush=True)
        report, journal = run_atune(options) if tuner == "atune" else (run_tilelang(options, tuner), journal)
        reports.append(report)
        print(f"{report.tuner}: {report.wall_s:.1f} s {report.error}", file=sys.stderr, flush=True)
        _write(options, reports, [], journal)  # keeps the results so far if a later tuner fails
    retimed = retime(options, reports)
    text = _write(options, reports, retimed, journal)
    print(text, end="")
    return 1 if any(r.error for r in reports) or len(retimed) < len(reports) else 0


def _write(options: argparse.Namespace, reports: list[Report], retimed: list[Retimed], journal: bytes) -> str:
    text = table(options, reports, retimed)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        everything = {
            "command": re.sub(r"\s+", " ", " ".join(["bench/vs_tilelang.py", *sys.argv[1:]])),
            "machine": machine(),
            "tuners": [msgspec.to_builtins(r) for r in reports],
            "common_harness": [msgspec.to_builtins(r) for r in retimed],
        }
        (options.out / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(everything), indent=1))
        (options.out / "table.md").write_text(text)
        if journal:
            (options.out / "atune.jsonl").write_bytes(journal)
    return text


if __name__ == "__main__":
    raise SystemExit(main())

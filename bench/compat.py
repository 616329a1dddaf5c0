"""Kernels written for tilelang's autotuner: tune them by it and, with one import line changed, by atune.

    python bench/compat.py --out bench/results/compat

Each tuning runs in a fresh process with empty caches, over the same space with the same settings, checks included.
Another process then compiles both winners in the same way by tilelang, checks them, and times them in turn. Prints a
table and, with --out, writes it there with all figures as JSON.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import common
import msgspec
from counted import empty_caches, run_counted
from vs_tilelang import machine

from atune.model.measurement import Timing, ratio_interval

FOLDER = common.ROOT / "examples" / "compat"
EXAMPLES = ("gemm", "softmax", "flash_attention", "dequant_gemm")
TUNERS = ("tilelang", "atune")
IMPORT = re.compile(r"^from atune\.compat\.tilelang import ([\w, ]+)", re.MULTILINE)


class Row(msgspec.Struct, kw_only=True):
    """A tuning of an example. Seconds count from the start of its process."""

    example: str
    tuner: str
    error: str = ""
    output: str = ""
    """The end of the process's output, if it failed."""
    result_s: float | None = None
    """Seconds to the tuned kernel."""
    wall_s: float = 0.0
    """Seconds to the end of the process and of all its descendants."""
    config: dict[str, Any] | None = None
    latency_ms: float | None = None
    """The winner's latency, as this tuner timed it."""
    reference_ms: float | None = None
    retimed: Timing | None = None
    """The winner's timing in the common harness."""
    correct: bool | None = None


def path_of(example: str) -> Path:
    """Return the file of an example, by its name or path."""
    path = FOLDER / f"{example}.py" if example in EXAMPLES else Path(example).resolve()
    if not path.is_file():
        raise SystemExit(f"--examples: {example!r} is not a file, nor any of {', '.join(EXAMPLES)}")
    return path


def for_tilelang(text: str) -> str:
    """Return an example's source with the import line for tilelang's own autotuner."""
    changed, n = IMPORT.subn(r"from tilelang.autotuner import \1", text)
    if n != 1:
        raise SystemExit(f"the example has {n} lines that import from atune.compat.tilelang, but must have exactly one")
    return changed


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # inspect looks it up there
    spec.loader.exec_module(module)
    return module


def kernel_of(module: ModuleType) -> Any:
    """Return the example's `@tilelang.jit` kernel."""
    [tuned] = [value for value in vars(module).values() if hasattr(value, "jit_impl")]
    return tuned.jit_impl


# ---- the processes


def child_tune(job: dict[str, Any]) -> None:
    path = Path(job["path"])
    if job["tuner"] == "tilelang":
        copy = Path("for_tilelang.py")
        copy.write_text(for_tilelang(path.read_text()))
        path = copy.resolve()
    kernel = load(path).tuned()
    ended = time.time()
    answer = {
        "result": ended,
        "config": kernel.config,
        "latency_ms": kernel.latency,
        "reference_ms": kernel.ref_latency,
    }
    Path(job["answer"]).write_text(json.dumps(answer))


def child_retime(job: dict[str, Any]) -> None:
    """Compile the winners in the same way, check them, and time them in turn."""
    import torch

    from atune.stages.timer import DeviceStream, Timed, make_timer

    module = load(Path(job["path"]))
    jit, inputs = kernel_of(module), module.inputs()
    timer = make_timer(DeviceStream("cpu" if jit.target == "c" else "cuda"))
    expected = module.reference(*inputs).float()
    calls, correct = [], []
    for config in job["configs"]:
        kernel = jit.compile(*module.arguments(), **config)
        answer = kernel(*inputs).float()
        timer.synchronise()
        close = torch.isclose(answer, expected, rtol=2e-2, atol=2e-2 * expected.square().mean().sqrt().item())
        correct.append(bool(close.float().mean() >= 0.99))
        calls.append(Timed(functools.partial(kernel, *inputs)))
    samples = timer.interleaved(calls, job["rounds"], 10)
    timings = [Timing.of(us, timer.method(call)) for us, call in zip(samples, calls, strict=True)]
    Path(job["answer"]).write_bytes(msgspec.json.encode([timings, correct]))


def run_child(child: str, job: dict[str, Any], timeout_s: float) -> tuple[Any, bytes]:
    """Run a child in a fresh process with empty caches. Return the finished process and its answer, or empty bytes."""
    with empty_caches("compat-") as (folder, env):
        answer, file = folder / "answer.json", folder / "job.json"
        file.write_text(json.dumps({**job, "answer": str(answer)}))
        command = [sys.executable, os.path.abspath(__file__), "--child", child, "--job", str(file)]
        done = run_counted(command, env=env, cwd=folder, timeout_s=timeout_s)
        return done, answer.read_bytes() if answer.exists() else b""


def tune(example: str, tuner: str, timeout_s: float) -> Row:
    row = Row(example=Path(example).stem, tuner=tuner)
    done, answer = run_child("tune", {"path": str(path_of(example)), "tuner": tuner}, timeout_s)
    row.wall_s = round(done.wall_s, 2)
    if not answer:
        lines = [line.strip() for line in done.output.splitlines() if line.strip()] or ["it printed nothing"]
        row.error = f"ran past {timeout_s:g} s" if done.timed_out else f"exit status {done.status}: {lines[-1][:200]}"
        row.output = done.output[-4000:]
        return row
    winner = json.loads(answer)
    row.result_s = round(winner["result"] - done.started, 2)
    row.config, row.latency_ms, row.reference_ms = winner["config"], winner["latency_ms"], winner["reference_ms"]
    return row


def retime(example: str, rows: list[Row], rounds: int, timeout_s: float) -> None:
    """Time the winners again in the common harness, and enter the timings in `rows`."""
    winners = [row for row in rows if row.config is not None]
    if not winners:
        return
    job = {"path": str(path_of(example)), "configs": [row.config for row in winners], "rounds": rounds}
    done, answer = run_child("retime", job, timeout_s)
    if not answer:
        print(
            f"{example}: the common harness failed, exit status {done.status}\n{done.output[-3000:]}", file=sys.stderr
        )
        return
    timings, correct = msgspec.json.decode(answer, type=tuple[list[Timing], list[bool]])
    for row, timing, right in zip(winners, timings, correct, strict=True):
        row.retimed, row.correct = timing, right


# ---- the table


HEAD = ("example", "tuner", "result after s", "wall s", "winner", "its own timing", "in the common harness", "ratio")


def table(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the table's cells. `ratio`: latency of atune's winner over tilelang's, with its 95 % interval."""
    lines = [HEAD]
    for row in rows:
        config = ", ".join(f"{name}={value}" for name, value in (row.config or {}).items())
        own = "–" if row.latency_ms is None else f"{row.latency_ms:.4f} ms"
        again = (
            "–" if row.retimed is None else f"{row.retimed.latency_ms:.4f} ms, {'right' if row.correct else 'WRONG'}"
        )
        other = next((r for r in rows if r.example == row.example and r.tuner == "tilelang"), None)
        ratio = "–"
        if row.tuner == "atune" and row.retimed is not None and other is not None and other.retimed is not None:
            low, middle, high = ratio_interval(row.retimed, other.retimed)
            ratio = f"{middle:.4f} ({low:.4f} to {high:.4f})"
        after = "–" if row.result_s is None else f"{row.result_s:.1f}"
        lines.append((row.example, row.tuner, after, f"{row.wall_s:.1f}", config or row.error, own, again, ratio))
    return lines


def main() -> int:
    options = common.options(
        __doc__ or "", 480.0, examples=",".join(EXAMPLES), tuners=",".join(TUNERS), rounds=200, timeout=110.0,
        child="", job="",
    )  # fmt: skip
    if options.child:
        job = json.loads(Path(options.job).read_bytes())
        (child_tune if options.child == "tune" else child_retime)(job)
        return 0
    tuners = [name.strip() for name in options.tuners.split(",")]
    if unknown := [name for name in tuners if name not in TUNERS]:
        raise SystemExit(f"--tuners: {unknown[0]!r} is unknown: choose from {', '.join(TUNERS)}")
    examples = [name.strip() for name in options.examples.split(",")]
    for example in examples:
        for_tilelang(path_of(example).read_text())
    with empty_caches("compat-warm-") as (folder, env):  # or the first tuner would read the packages from the disk
        run_counted([sys.executable, "-c", "import tilelang"], env=env, cwd=folder, timeout_s=300)
    deadline = time.monotonic() + options.limit - 15.0  # so that no child is left when the time limit ends this process

    def seconds() -> float:
        return max(1.0, min(options.timeout, deadline - time.monotonic()))

    rows: list[Row] = []
    for example in examples:
        pair = []
        for tuner in tuners:
            pair.append(tune(example, tuner, seconds()))
            print(f"{example}, {tuner}: {pair[-1].wall_s:.1f} s {pair[-1].error}", file=sys.stderr, flush=True)
        retime(example, pair, options.rounds, seconds())
        rows += pair
        _write(options, rows)  # keeps the results so far if a later run fails
    common.report(options, "compat", table(rows), _results(rows))
    return 1 if any(row.error or row.retimed is None or not row.correct for row in rows) else 0


def _results(rows: list[Row]) -> dict[str, Any]:
    return {"machine": machine(), "rows": [msgspec.to_builtins(row) for row in rows]}


def _write(options: Any, rows: list[Row]) -> None:
    if options.out is None:
        return
    where = machine()
    lines = [f"{where['gpu']}; {where['cores']} cores; tilelang {where['versions']['tilelang']}.", ""]
    for i, cells in enumerate(table(rows)):
        lines.append(f"| {' | '.join(cells)} |")
        lines += ["|" + "---|" * len(cells)] if i == 0 else []
    (options.out / "compat.md").write_text("\n".join(lines) + "\n")
    (options.out / "compat.json").write_text(json.dumps(_results(rows), indent=1, default=str) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

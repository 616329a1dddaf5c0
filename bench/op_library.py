"""A library that wraps tilelang's tuner, under that tuner and, with another module's `autotune`, under atune.

    python bench/op_library.py --out bench/results/op_library

The library is tests/operators.py. Each tuner has one process with empty caches, in which the operators are made and
called one after another. An operator's seconds are those from its making to its first output, which is checked; imports
are done by then, and a GPU's context is made. All winners are then compiled by tilelang alone, and timed in turn in one
more process. An operator that has not ended after --timeout ends its process, and those after it go on in a new one.
Prints a table and writes all figures as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import common
import msgspec
from counted import empty_caches, run_counted
from vs_tilelang import machine

from atune.model.measurement import Timing, ratio_interval

TUNERS = {"tilelang": "tilelang.autotuner", "atune": "atune.compat.tilelang"}
OPERATORS = ("Silu", "RmsNorm", "SplitKGemm")
GOALS = (0.5, 0.35)
"""The most of tilelang's seconds that a first call may take: the first of a process, and those after it."""


class Row(msgspec.Struct, kw_only=True):
    """One operator under one tuner."""

    operator: str
    tuner: str
    place: int = 0
    """Its place among the operators of its process, from zero."""
    error: str = ""
    ready_s: float | None = None
    """From the start of the process to the making of the operator."""
    seconds: float | None = None
    """From making the operator to its first output."""
    ended_after_s: float | None = None
    """The seconds after which it was ended."""
    candidates: int = 0
    correct: bool | None = None
    configs: dict[str, dict[str, Any]] = {}
    """The winners, by kernel."""
    own_ms: dict[str, float] = {}
    """Their latencies, as this tuner timed them."""
    retimed: dict[str, Timing] = {}
    """Their latencies, in the common harness."""


# ---- the processes


def library() -> Any:
    """Return the library. The variable OPERATORS_TUNER says which tuner it has."""
    sys.path.insert(0, str(common.ROOT / "tests"))
    import operators

    return operators


def child_tune(job: dict[str, Any]) -> None:
    """Make and call the operators, one after another. Adds a line to the answer for each."""
    lib = library()
    import torch

    synchronise = torch.cuda.synchronize if job["target"] == "cuda" else lambda: None
    for place, name in enumerate(job["operators"]):
        kind, sizes = lib.OPERATORS[name], lib.SIZES[job["target"]][name]
        inputs = untuned(kind, sizes, job["target"]).inputs()
        synchronise()
        watchdog = threading.Timer(job["timeout"], os._exit, (124,))
        watchdog.daemon = True
        watchdog.start()
        ready_s, begun = time.time() - job["started"], time.perf_counter()
        operator = kind(**sizes, target=job["target"], tune=True)
        output = operator(*inputs)
        synchronise()
        seconds = time.perf_counter() - begun
        watchdog.cancel()
        expected = operator.expected(*inputs).float()
        scale = expected.square().mean().sqrt().item()
        row = Row(
            operator=name,
            tuner=job["tuner"],
            place=place,
            ready_s=round(ready_s, 2),
            seconds=round(seconds, 2),
            candidates=sum(len(part.configs) for part in operator.parts().values()),
            correct=bool(torch.isclose(output.float(), expected, rtol=2e-2, atol=2e-2 * scale).all()),
            configs={part: kernel.config for part, kernel in operator.kernels.items()},
            own_ms={part: kernel.latency for part, kernel in operator.kernels.items()},
        )
        with open(job["answer"], "ab") as answer:
            answer.write(msgspec.json.encode(row) + b"\n")


def untuned(kind: Any, sizes: dict[str, int], target: str) -> Any:
    """Return an operator without kernels."""
    bare = type(kind.__name__, (kind,), {"init_config": lambda self, config, tune: None})
    return bare(**sizes, target=target)


def child_retime(job: dict[str, Any]) -> None:
    """Compile the winners of one operator the same way, and time those of each kernel in turn."""
    lib = library()

    from atune.stages.measure.timer import Timed, make_timer

    operator = untuned(lib.OPERATORS[job["operator"]], lib.SIZES[job["target"]][job["operator"]], job["target"])
    timer = make_timer("cpu" if job["target"] == "c" else "cuda")
    found: list[dict[str, Timing]] = [{} for _ in job["winners"]]
    for name, part in operator.parts().items():
        inputs = part.supply(None)
        calls = [Timed(functools.partial(part.jit(**configs[name]), *inputs)) for configs in job["winners"]]
        for timings, us in zip(found, timer.interleaved(calls, job["rounds"], 10), strict=True):
            timings[name] = Timing.of(us, timer.method)
    Path(job["answer"]).write_bytes(msgspec.json.encode(found))


def run_child(child: str, job: dict[str, Any], timeout_s: float, tuner: str = "atune") -> tuple[Any, bytes]:
    """Run a child in a fresh process with empty caches; return how it ended and its answer, empty without one."""
    with empty_caches("op-library-") as (folder, env):
        del env["TILELANG_DISABLE_CACHE"]  # a library's caches are on
        answer, file = folder / "answer.json", folder / "job.json"
        file.write_text(json.dumps({**job, "answer": str(answer)}))
        command = [sys.executable, os.path.abspath(__file__), "--child", child, "--job", str(file)]
        env["OPERATORS_TUNER"] = TUNERS[tuner]
        done = run_counted(command, env=env, cwd=folder, timeout_s=timeout_s)
        return done, answer.read_bytes() if answer.exists() else b""


def tune(tuner: str, options: Any, operators: list[str]) -> list[Row]:
    """Return the rows of all operators: one process, and a new one after each operator that did not end."""
    rows: list[Row] = []
    while left := operators[len(rows) :]:
        job = {"tuner": tuner, "target": options.target, "operators": left, "timeout": options.timeout}
        job["started"] = time.time()
        done, answer = run_child("tune", job, options.timeout * len(left) + 60, tuner)
        ended = [msgspec.json.decode(line, type=Row) for line in answer.splitlines()]
        rows += ended
        if len(ended) == len(left):
            break
        lines = [line.strip() for line in done.output.splitlines() if line.strip()] or ["it said nothing"]
        late = done.timed_out or done.status == 124
        error = f"not ended after {options.timeout:g} s" if late else f"exit status {done.status}: {lines[-1][:300]}"
        lost = Row(operator=left[len(ended)], tuner=tuner, place=len(ended), error=error)
        rows.append(msgspec.structs.replace(lost, ended_after_s=options.timeout) if late else lost)
        print(f"{tuner}, {rows[-1].operator}: {error}\n{done.output[-3000:]}", file=sys.stderr, flush=True)
    return rows


def retime(options: Any, rows: list[Row]) -> None:
    """Time one operator's winners in the common harness, and note it in `rows`."""
    winners = [row for row in rows if row.configs]
    if not winners:
        return
    job = {
        "operator": rows[0].operator,
        "target": options.target,
        "winners": [row.configs for row in winners],
        "rounds": options.rounds,
    }
    done, answer = run_child("retime", job, 200.0)
    if not answer:
        print(f"{rows[0].operator}: the common harness failed\n{done.output[-3000:]}", file=sys.stderr, flush=True)
        return
    for row, timings in zip(winners, msgspec.json.decode(answer, type=list[dict[str, Timing]]), strict=True):
        row.retimed = timings


# ---- the table


HEAD = (
    "operator", "candidates", "ready after s", "tilelang s", "atune s", "ratio", "goal", "tilelang ms", "atune ms",
    "ratio", "by kernel", "right",
)  # fmt: skip


def compared(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return the figures as text. Ratios: atune's over tilelang's; latencies are those of the common harness."""
    found = [HEAD]
    for name in dict.fromkeys(row.operator for row in rows):
        theirs, ours = (next((r for r in rows if (r.operator, r.tuner) == (name, tuner)), None) for tuner in TUNERS)
        each = [row for row in (theirs, ours) if row is not None]
        found.append(
            (
                name,
                str(max(row.candidates for row in each)),
                ", ".join("–" if row.ready_s is None else f"{row.ready_s:.1f}" for row in each),
                *(_seconds(row) for row in (theirs, ours)),
                *_ratio_of_seconds(theirs, ours),
                *(_latency(row) for row in (theirs, ours)),
                *_ratio_of_latencies(theirs, ours),
                ", ".join(f"{row.tuner} {'not known' if row.correct is None else row.correct}" for row in each),
            )
        )
    return found


def _seconds(row: Row | None) -> str:
    return "–" if row is None else row.error if row.seconds is None else f"{row.seconds:.1f}"


def _ratio_of_seconds(theirs: Row | None, ours: Row | None) -> tuple[str, str]:
    least = None if theirs is None else theirs.seconds or theirs.ended_after_s
    if theirs is None or ours is None or ours.seconds is None or least is None:
        return "–", "–"
    ratio, goal = ours.seconds / least, GOALS[min(theirs.place, ours.place, 1)]
    if theirs.seconds is None:
        return f"< {ratio:.3f}", f"met ({goal:g})" if ratio <= goal else f"not known ({goal:g})"
    return f"{ratio:.3f}", f"{'met' if ratio <= goal else 'missed'} ({goal:g})"


def _latency(row: Row | None) -> str:
    return "–" if row is None or not row.retimed else f"{sum(t.latency_ms for t in row.retimed.values()):.4f}"


def _ratio_of_latencies(theirs: Row | None, ours: Row | None) -> tuple[str, str]:
    """Return the ratio of an operator's latencies, and each kernel's with its 95 % interval."""
    if theirs is None or ours is None or not theirs.retimed or not ours.retimed:
        return "–", "–"
    total = [sum(t.latency_ms for t in row.retimed.values()) for row in (ours, theirs)]
    parts = []
    for name, timing in ours.retimed.items():
        low, middle, high = ratio_interval(timing, theirs.retimed[name])
        parts.append(f"{name} {middle:.3f} ({low:.3f} to {high:.3f})")
    return f"{total[0] / total[1]:.3f}", ", ".join(parts)


def main() -> int:
    options = common.options(
        __doc__ or "", 540.0, operators=",".join(OPERATORS), tuners=",".join(TUNERS), target="cuda", rounds=200,
        timeout=110.0, child="", job="",
    )  # fmt: skip
    if options.child:
        job = json.loads(Path(options.job).read_bytes())
        (child_tune if options.child == "tune" else child_retime)(job)
        return 0
    tuners, operators = ([name.strip() for name in text.split(",")] for text in (options.tuners, options.operators))
    for option, names, known in (("--tuners", tuners, TUNERS), ("--operators", operators, OPERATORS)):
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"{option}: {unknown[0]!r} is unknown; there are {', '.join(known)}")
    if options.target == "c" and tuners != ["atune"]:
        raise SystemExit("--target c: tilelang's own tuner does not run without a GPU; use --tuners atune")
    with empty_caches("op-library-warm-") as (folder, env):  # the first to import would read packages from the disk
        run_counted([sys.executable, "-c", "import tilelang"], env=env, cwd=folder, timeout_s=300)
    rows: list[Row] = []
    for tuner in tuners:
        rows += tune(tuner, options, operators)
        _write(options, rows)  # what is done stays, whatever comes
        for row in rows:
            print(f"{row.tuner}, {row.operator}: {row.seconds} s {row.error}", file=sys.stderr, flush=True)
    for name in operators:
        retime(options, [row for row in rows if row.operator == name])
        _write(options, rows)
    common.report(options, "op_library", compared(rows), _results(options, rows))
    return 1 if any(row.error or not row.correct or not row.retimed for row in rows if row.tuner == "atune") else 0


def _results(options: Any, rows: list[Row]) -> dict[str, Any]:
    asked = {name: getattr(options, name) for name in ("target", "timeout", "rounds")}
    return {"machine": machine(), **asked, "rows": [msgspec.to_builtins(row) for row in rows], "table": compared(rows)}


def _write(options: Any, rows: list[Row]) -> None:
    if options.out is not None:
        (options.out / "op_library.json").write_text(json.dumps(_results(options, rows), indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

"""The fault matrix: each kind of fault once among twenty good candidates, compared with a run of only the good ones.

python bench/faults.py --out results        (a GPU; about two minutes)
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from common import ROOT, journal, options, report

import atune
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    CandidateMeasured,
    DeviceLost,
    DeviceReady,
)
from atune.journal.result import TuneResult
from atune.model.measurement import Timing
from atune.model.settings import BenchmarkSettings
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

FAULTS = {
    2: ("trap", "fault"), 5: ("illegal address", "fault"), 8: ("misaligned", "fault"), 11: ("endless", "timeout"),
    14: ("out of memory", "out_of_memory"), 17: ("wrong", "mismatch"), 20: ("NaN", "non_finite"),
    23: ("writes nothing", "unwritten"), 26: ("killed outside", "measured"),
}  # fmt: skip
"""The fault of each bad candidate of `kernels.FAULTY`, and its expected failure kind. A candidate whose process gets
SIGKILL from outside is not at fault, so it is measured again, and counts."""
KILLED = 26


class Watched(LocalMachine):
    """A machine that can kill its device's process from outside."""

    def device_workers(self) -> list[LocalDeviceWorker]:
        self.workers = super().device_workers()
        return self.workers

    def kill(self) -> None:
        worker = self.workers[0]._worker
        if worker is not None and worker.alive:
            os.kill(worker.pid, signal.SIGKILL)


def tuned(name: str, benchmark: BenchmarkSettings, journal_path: str | None, kill: bool) -> tuple[Any, list[Any]]:
    reference = FileRef(str(ROOT / "bench" / "kernels.py"), name)
    machine = Watched(reference, target="cuda", devices=("0",), benchmark=benchmark)
    events: list[Any] = []
    killed: list[threading.Timer] = []

    def listen(event: Any) -> None:
        events.append(event)
        if kill and isinstance(event, BenchmarkStarted) and event.index == KILLED and not killed:
            killed.append(threading.Timer(0.3, machine.kill))  # its check takes longer than that
            killed[0].start()

    result = atune.run(machine=machine, benchmark=benchmark, journal=journal_path, on_event=listen)
    return result, events


def main() -> None:
    arguments = options(__doc__ or "", 300, deadline=5.0)
    benchmark = BenchmarkSettings(benchmark_timeout_s=arguments.deadline, n_repeat=50)
    clean, _ = tuned("CLEAN", benchmark, journal(arguments, "faults-clean"), kill=False)
    faulty, events = tuned("FAULTY", benchmark, journal(arguments, "faults"), kill=True)
    second, _ = tuned("CLEAN", benchmark, journal(arguments, "faults-clean-again"), kill=False)
    kinds = {e.index: e.kind for e in events if isinstance(e, BenchmarkFailed)}
    kinds |= {e.index: "measured" for e in events if isinstance(e, CandidateMeasured)}
    kinds |= {r.index: r.kind for r in faulty.records if r.index not in kinds}
    repeated = {e.index for e in events if isinstance(e, BenchmarkRepeated)}
    rows: list[list[Any]] = [["fault", "named", "right", "kill s", "ready s", "again s", "words"]]
    wrong = []
    for index, (fault, want) in FAULTS.items():
        at = next(
            (i for i, e in enumerate(events) if isinstance(e, BenchmarkStarted) and e.index == index), len(events)
        )
        lost = ready = None
        for event in events[at + 1 :]:
            if isinstance(event, BenchmarkStarted):
                break
            lost = event if isinstance(event, DeviceLost) else lost
            ready = event if isinstance(event, DeviceReady) else ready
        right = kinds.get(index) == want and (index in repeated) == (fault == "killed outside")
        wrong += [] if right else [fault]
        started = next((e for e in events[at + 1 :] if isinstance(e, BenchmarkStarted)), None)
        again = f"{started.mono - lost.mono + lost.kill_s:.3f}" if lost and started else "-"
        record = next((r for r in faulty.records if r.index == index), None)
        words = (record.message if record else "not proposed")[:70]
        kill_s = f"{lost.kill_s:.3f}" if lost else "-"
        took = [f"{ready.start_s:.3f}"] if ready else ["-"]
        rows.append([fault, kinds.get(index), "yes" if right else "NO", kill_s, *took, again, words])
    before, after, third = first_timings(clean), first_timings(faulty), first_timings(second)
    ratios, clean_ratios = compared(before, after), compared(before, third)
    off, clean_off = farthest(ratios), farthest(clean_ratios)
    results: dict[str, Any] = {"rows": rows, "ratios": ratios, "clean_ratios": clean_ratios, "wrong": wrong}
    for name, timings in (("clean", before), ("faulty", after), ("clean again", third)):
        results[f"{name}_ms"] = {x: t.latency_ms for x, t in timings.items()}
        results[f"{name}_samples"] = {x: [t.n_samples, t.spread] for x, t in timings.items()}
    report(arguments, "faults", rows, results)
    print(
        f"good candidates measured: {len(ratios)} of {len(before)}; "
        f"largest difference to the clean run {off:.2%} (goal 2 %); of a second clean run {clean_off:.2%}"
    )
    but = f", except {', '.join(wrong)}" if wrong else ""
    print(f"faults reported correctly: {len(FAULTS) - len(wrong)} of {len(FAULTS)}{but}")


def first_timings(result: TuneResult) -> dict[int, Timing]:
    """Return the first timings, by candidate of `kernels.FAULTY`."""
    configs = {r.index: r.config for r in result.all_records}
    return {configs[m.index]["x"]: m.timing for m in result.measurements}


def compared(before: dict[int, Timing], after: dict[int, Timing]) -> dict[int, float]:
    return {x: after[x].latency_ms / before[x].latency_ms for x in before if x in after}


def farthest(ratios: dict[int, float]) -> float:
    return max((abs(ratio - 1) for ratio in ratios.values()), default=float("inf"))


if __name__ == "__main__":
    main()

"""A GPU that faults or hangs while another one measures; and a run that is killed, and resumed with one GPU fewer.

    python bench/faults_apart.py --devices 0,1 --out bench/results/faults_apart        (two GPUs; about two minutes)

`apart`: the good candidates of `bench/faults.py` on each device alone, on all at once, and then on all among faulty
ones, as often as `--repeats` says. A figure that a device took while another one was faulty, from the begin of the
faulty candidate until that device was ready again, is compared with the same device's figure alone.

`resume`: a run on all devices is killed once a share of its candidates is measured, and resumed on all but the last.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, journal, options, report
from faults import FAULTS, KILLED

import atune
from atune.engine.interfaces import Machine
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    CandidateMeasured,
    CandidateProposed,
    DeviceLost,
    DeviceReady,
    Event,
    RunResumed,
    RunStarted,
)
from atune.journal.reader import JournalReader
from atune.model.settings import BenchmarkSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.pickling import FileRef

GOAL = 0.01
"""Share by which no figure may move."""
KILLED_AT = 0.4
"""Share of the candidates that are measured when the run is killed."""
Make = Callable[[Sequence[str], str, BenchmarkSettings], Machine]
"""Makes a machine on the devices so named, for ``CLEAN`` or ``FAULTY`` of kernels.py."""


class Span(NamedTuple):
    """A device's time with one candidate, its restart included where it was lost."""

    device: str
    x: int
    began: float
    ended: float
    latency_ms: float | None
    """None where it was not measured."""


def local(devices: Sequence[str], name: str, benchmark: BenchmarkSettings) -> LocalMachine:
    reference = FileRef(str(ROOT / "bench" / "kernels.py"), name)
    return LocalMachine(reference, target="cuda", devices=devices, benchmark=benchmark)


def spans(events: Sequence[Event]) -> list[Span]:
    """Return what each device did, in the order in which it was over."""
    configs = {event.index: event.config for event in events if isinstance(event, CandidateProposed)}
    began, lost, found = dict[str, tuple[int, float]](), set[str](), list[Span]()

    def end(device: str, mono: float, latency_ms: float | None) -> None:
        index, since = began.pop(device)
        if "x" in configs.get(index, {}):  # the default, outside of the space, is neither good nor faulty
            found.append(Span(device, configs[index]["x"], since, mono, latency_ms))

    for event in events:
        match event:
            case BenchmarkStarted():
                began[event.device] = event.index, event.mono
                lost.discard(event.device)
            case CandidateMeasured() if event.device in began:
                end(event.device, event.mono, event.timing.latency_ms)
            case BenchmarkFailed() | BenchmarkRepeated() if event.device in began:
                end(event.device, event.mono, None)
                lost.add(event.device)
            case DeviceReady() if event.device.id in lost:  # the faulty candidate's time lasts until then
                last = next(n for n in range(len(found) - 1, -1, -1) if found[n].device == event.device.id)
                found[last] = found[last]._replace(ended=event.mono)
                lost.discard(event.device.id)
            case DeviceLost(final=True):
                began.pop(event.device, None)
    return found


def moved(faulty: Sequence[Span], alone: dict[tuple[str, int], float]) -> list[tuple[Span, list[float]]]:
    """Return each faulty candidate's time, with what other devices' figures of that time are of those alone."""
    found = []
    for bad in faulty:
        if bad.x in FAULTS and bad.latency_ms is None:
            beside = [
                one.latency_ms / alone[one.device, one.x]
                for one in faulty
                if one.device != bad.device and one.latency_ms is not None and (one.device, one.x) in alone
                if one.began < bad.ended and one.ended > bad.began
            ]
            found.append((bad, beside))
    return found


def farthest(ratios: Sequence[float]) -> float:
    return max((abs(ratio - 1) for ratio in ratios), default=0.0)


def settled_twice(events: Sequence[Event]) -> list[int]:
    """Return the candidates with more than one outcome on a device."""
    counts = Counter(event.index for event in events if isinstance(event, (CandidateMeasured, BenchmarkFailed)))
    return sorted(index for index, count in counts.items() if count > 1)


def apart(arguments: Any, make: Make = local) -> dict[str, Any]:
    """Do the first part; return and print what it found."""
    devices = arguments.devices.split(",")
    benchmark = BenchmarkSettings(benchmark_timeout_s=arguments.deadline, n_repeat=50, adaptive=False, n_final=0)

    def tuned(on: Sequence[str], name: str, as_: str) -> list[Event]:
        events: list[Event] = []
        path = journal(arguments, as_)
        atune.run(machine=make(on, name, benchmark), benchmark=benchmark, journal=path, on_event=events.append)
        return events

    alone: dict[tuple[str, int], float] = {}
    for device in devices:
        for one in spans(tuned([device], "CLEAN", f"alone-{device}")):
            if one.latency_ms is not None:
                alone[one.device, one.x] = one.latency_ms
    clean = spans(tuned(devices, "CLEAN", "clean"))
    noise = [
        one.latency_ms / alone[one.device, one.x]
        for one in clean
        if one.latency_ms is not None and (one.device, one.x) in alone
    ]
    found, twice, kinds = list[tuple[Span, list[float]]](), list[int](), Counter[str]()
    for number in range(arguments.repeats):
        events = tuned(devices, "FAULTY", f"faulty-{number + 1}")
        found += moved(spans(events), alone)
        twice += settled_twice(events)
        kinds.update(event.kind for event in events if isinstance(event, BenchmarkFailed))
    rows: list[list[Any]] = [["fault", "times", "lasted s", "figures of others meanwhile", "farthest"]]
    for x, (name, _) in FAULTS.items():
        if x == KILLED:  # here nobody kills it
            continue
        own = [(bad, ratios) for bad, ratios in found if bad.x == x]
        lasted = " ".join(f"{bad.ended - bad.began:.2f}" for bad, _ in own) or "–"
        ratios = [ratio for _, beside in own for ratio in beside]
        rows.append([name, len(own), lasted, len(ratios), f"{farthest(ratios):.2%}" if ratios else "–"])
    every = [ratio for _, beside in found for ratio in beside]
    results = {
        "figures": len(every), "farthest": farthest(every), "clean_farthest": farthest(noise), "twice": twice,
        "faults": dict(kinds), "rows": rows,
        "devices": sorted({f"{e.device.id}: {e.device.name}" for e in events if isinstance(e, DeviceReady)}),
    }  # fmt: skip
    report(arguments, "apart", rows, results)
    print(
        f"figures taken while another device was faulty: {len(every)}; farthest from those alone {farthest(every):.2%} "
        f"(goal {GOAL:.0%}); on all devices without faults {farthest(noise):.2%}; measured twice: {twice or 'none'}"
    )
    return results


def resumed(arguments: Any) -> dict[str, Any]:
    """Do the second part; return and print what it found."""
    devices = arguments.devices.split(",")
    with tempfile.TemporaryDirectory(prefix="faults-apart-") as folder:
        path = Path(journal(arguments, "resumed") or f"{folder}/resumed.jsonl")
        tune = [sys.executable, "-m", "atune", "tune", arguments.workload, "--target", arguments.target]
        program = subprocess.Popen(
            [*tune, "--devices", arguments.devices, "--journal", str(path), "--quiet"], cwd=ROOT,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while program.poll() is None and not far_enough(path):
            time.sleep(0.02)
        if program.poll() is not None:
            raise SystemExit(f"faults_apart.py: the run ended with status {program.returncode} before it was killed")
        program.send_signal(signal.SIGKILL)
        program.wait()
        left = ",".join(devices[:-1] or devices)
        again = [sys.executable, "-m", "atune", "resume", str(path), "--devices", left, "--quiet"]
        status = subprocess.run(again, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
        events = list(JournalReader(str(path)))
    at = next((n for n, event in enumerate(events) if isinstance(event, RunResumed)), len(events))
    parts = [
        dict(Counter(e.device for e in part if isinstance(e, CandidateMeasured))) for part in (events[:at], events[at:])
    ]
    results = {"status": status, "measured": parts, "twice": settled_twice(events), "left": left}
    report(arguments, "resumed", [["part", "measured by device"], ["killed", parts[0]], ["resumed", parts[1]]], results)
    print(f"resumed on {left}: status {status}; measured twice: {results['twice'] or 'none'}")
    return results


def far_enough(path: Path) -> bool:
    """Tell whether a share of `KILLED_AT` of the run's candidates is measured, by its journal."""
    try:
        events = list(JournalReader(str(path)))
    except atune.errors.JournalError:  # it has not begun
        return False
    total = next((event.total for event in events if isinstance(event, RunStarted)), 0)
    return sum(isinstance(event, CandidateMeasured) for event in events) > KILLED_AT * total > 0


def main() -> None:
    even = f"{ROOT / 'bench' / 'kernels.py'}:EVEN"
    arguments = options(
        __doc__ or "", 290, devices="0,1", only="", deadline=4.0, repeats=3, workload=even, target="cuda"
    )
    done = {"apart": apart, "resume": resumed}
    if arguments.only and arguments.only not in done:
        raise SystemExit(f"--only: {arguments.only!r} is unknown; there are {', '.join(done)}")
    found = [part(arguments) for name, part in done.items() if arguments.only in ("", name)]
    bad = any(one["twice"] or one.get("status") or one.get("farthest", 0.0) > GOAL for one in found)
    raise SystemExit(int(bad))


if __name__ == "__main__":
    main()

"""The engine's cost for many devices and candidates: CPU, queues, journal and memory, measured with fakes.

    python bench/cluster_sim.py [--devices 1,8,64,512] [--candidates 20000] [--pace 0] [--out FOLDER]

The engine, the journal and its syncs are real. Compilers and devices are the fakes of `atune.testing`, whose own work
and library files are included in the figures. Messages to other machines are not. Each row runs in its own process, so
that memory peaks do not mix.

With `--pace 0`, the fakes take no time, so the engine is always the bottleneck, and the inverse of its CPU time per
candidate is the highest rate that it can sustain. With `--pace 1`, they take realistic times: 0.1 s to lower, 1 s for a
library plus 0.5 s for each member, 0.2 s to measure. Queues and workers are then as full as in a real run. Other paces
scale these times. `load` is the share of time in which the engine's thread ran; 1 is the limit. `starved` is the share
in which other programs held the cores, which `load` leaves out. `--candidates` can list a number for each of --devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from common import ROOT, options, report

SAMPLED = 64
"""Events between two looks at the queues."""
HEAD = [
    "devices", "workers", "pace", "candidates", "CPU ms", "wall s", "load", "starved", "candidates/s", "compilers busy",
    "devices busy", "proposals", "artifacts", "journal B", "peak MB", "kB",
]  # fmt: skip


def main() -> None:
    arguments = options(
        __doc__ or "", 900.0,
        devices="1,8,64,512", candidates="20000", workers=2, pace=0.0, one=0, folder=tempfile.gettempdir(),
    )  # fmt: skip
    devices, counts = ([int(part) for part in text.split(",")] for text in (arguments.devices, arguments.candidates))
    if arguments.one:
        print(json.dumps(simulated(devices[0], counts[0], arguments)))
        return
    each = counts if len(counts) == len(devices) else counts * len(devices)
    results = [measured(*point, arguments) for point in zip(devices, each, strict=True)]
    report(arguments, "cluster_sim", [HEAD, *(list(row.values()) for row in results)], results)


def measured(devices: int, candidates: int, arguments: Any) -> dict[str, Any]:
    """Run a simulation in a new process, and return its figures."""
    given = {"devices": devices, "candidates": candidates} | {
        name: getattr(arguments, name) for name in ("workers", "pace", "limit", "folder")
    }
    command = [
        sys.executable,
        __file__,
        "--one",
        "1",
        *(text for name in given for text in (f"--{name}", str(given[name]))),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(figures, flush=True)
    return figures


def simulated(devices: int, candidates: int, arguments: Any) -> dict[str, Any]:
    """Tune `candidates` on `devices` fakes with `arguments.workers` compile workers each. Return a row's figures."""
    from atune.frontends.tuner import tune
    from atune.testing import FakeMachine, Script

    pace, workers = arguments.pace, arguments.workers * devices
    script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % candidates) / candidates)
    machine = FakeMachine(candidates, script, workers=workers, devices=devices, clock=clock_of(pace))
    depths = Depths()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as there:
        path, before = Path(there) / "run.jsonl", peak_bytes()
        started, worked, looped = time.perf_counter(), time.process_time(), of_this_thread()
        with depths.watched():
            result = anyio.run(lambda: tune(machine=machine, journal=path, on_event=depths.look))
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
        ran, waited = (now - then for now, then in zip(of_this_thread(), looped, strict=True))
        assert result.measured == candidates
        compiling, measuring = seconds_of_work(machine)
        peak = peak_bytes()
        return {
            "devices": devices,
            "workers": workers,
            "pace": pace,
            "candidates": candidates,
            "cpu_ms_per_candidate": round(1e3 * worked / candidates, 3),
            "wall_s": round(seconds, 1),
            "load": round(ran / (seconds - waited), 3),
            "starved": round(waited / seconds, 3),
            "candidates_per_s": round(candidates / seconds, 1),
            "compilers_busy": round(pace * compiling / workers / seconds, 3),
            "devices_busy": round(pace * measuring / devices / seconds, 3),
            "proposals": depths.figures(0),
            "artifacts": depths.figures(1),
            "journal_bytes_per_candidate": round(path.stat().st_size / candidates),
            "peak_mb": round(peak / 1e6),
            "kb_per_candidate": round((peak - before) / candidates / 1e3, 2),
        }


def of_this_thread() -> tuple[float, float]:
    """Return the seconds in which the engine's thread, which is this one, ran, and in which it waited for a core."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def clock_of(pace: float) -> Any:
    """Return a clock whose sleeps take `pace` real seconds for each second, and may overlap."""
    from idle import InstantClock

    class PacedClock(InstantClock):
        async def sleep(self, seconds: float) -> None:
            await anyio.sleep(seconds * pace)

    return PacedClock() if pace else InstantClock()


def seconds_of_work(machine: Any) -> tuple[float, float]:
    """Return the busy seconds of compile workers and of devices, by the script."""
    script, groups = machine.script, machine.groups
    compiling = len(machine.lowered) * script.lower_s + len(groups) * script.library_s
    return compiling + sum(map(len, groups)) * script.compile_s, machine.begun.total() * script.measure_s


class Depths:
    """Numbers of items that wait in the engine's two streams, sampled during the run."""

    def __init__(self) -> None:
        self._streams: list[Any] = []
        self._seen: list[list[int]] = []
        self._events = 0

    def watched(self) -> Any:
        """Return a context in which the streams that the engine makes are recorded."""
        from unittest.mock import patch

        make = anyio.create_memory_object_stream

        class Noting:
            def __getitem__(_, item: Any) -> Any:
                return lambda size: self._noted(make[item](size))

            def __call__(_, *given: Any) -> Any:
                return make(*given)

        return patch("anyio.create_memory_object_stream", Noting())

    def _noted(self, pair: Any) -> Any:
        self._streams.append(pair[0])
        self._seen.append([])
        return pair

    def look(self, event: object) -> None:
        self._events += 1
        if self._events % SAMPLED == 0:
            for stream, seen in zip(self._streams, self._seen, strict=True):
                seen.append(stream.statistics().current_buffer_used)

    def figures(self, number: int) -> dict[str, float]:
        """Return the mean and the largest depth of a stream, and its capacity."""
        seen = self._seen[number]
        bound = self._streams[number].statistics().max_buffer_size
        return {"mean": round(sum(seen) / len(seen), 1), "most": max(seen), "bound": bound}


def peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

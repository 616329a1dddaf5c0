"""What the engine costs with more devices and candidates: CPU, queues, journal and memory, over fakes.

    python bench/cluster_sim.py [--devices 1,8,64,512] [--candidates 20000] [--out FOLDER]

The engine, the journal and its syncs are real. Compilers and devices are the fakes of `atune.testing`, which take no
time, so the engine is always the bottleneck: its CPU a candidate is the inverse of the rate at which it scales no more.
Messages to other machines are not in it. Each row comes from a process of its own, so that peaks of memory do not mix.
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
"""Queues are looked at after so many events."""
HEAD = [
    "devices", "workers", "candidates", "CPU ms", "wall s", "candidates/s", "proposals", "artifacts", "journal B",
    "peak MB", "kB",
]  # fmt: skip


def main() -> None:
    arguments = options(
        __doc__ or "", 900.0, devices="1,8,64,512", candidates="20000", workers=2, one="", folder=tempfile.gettempdir()
    )
    if arguments.one:
        devices, candidates = map(int, arguments.one.split(","))
        print(json.dumps(simulated(devices, candidates, arguments.workers, Path(arguments.folder))))
        return
    results = [
        measured(int(devices), int(candidates), arguments.workers, arguments.folder)
        for candidates in arguments.candidates.split(",")
        for devices in arguments.devices.split(",")
    ]
    report(arguments, "cluster_sim", [HEAD, *(list(row.values()) for row in results)], results)


def measured(devices: int, candidates: int, workers: int, folder: str) -> dict[str, Any]:
    """Return the figures of one run, from a new process."""
    command = [sys.executable, __file__, "--one", f"{devices},{candidates}", "--workers", str(workers)]
    done = subprocess.run(
        [*command, "--folder", folder], stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(figures, flush=True)
    return figures


def simulated(devices: int, candidates: int, workers: int, folder: Path) -> dict[str, Any]:
    """Tune `candidates` on `devices` fakes with `workers` compile workers each; return the figures of a row."""
    from atune.api.tuner import tune
    from atune.testing import FakeMachine, InstantClock, Script

    script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % candidates) / candidates)
    machine = FakeMachine(candidates, script, workers=workers * devices, devices=devices, clock=InstantClock())
    depths = Depths()
    with tempfile.TemporaryDirectory(dir=folder) as there:
        path, before = Path(there) / "run.jsonl", peak_bytes()
        started, worked = time.perf_counter(), time.process_time()
        with depths.watched():
            result = anyio.run(lambda: tune(machine=machine, journal=path, on_event=depths.look))
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
        assert result.measured == candidates
        peak = peak_bytes()
        return {
            "devices": devices,
            "workers": workers * devices,
            "candidates": candidates,
            "cpu_ms_per_candidate": round(1e3 * worked / candidates, 3),
            "wall_s": round(seconds, 1),
            "candidates_per_s": round(candidates / seconds),
            "proposals": depths.text(0),
            "artifacts": depths.text(1),
            "journal_bytes_per_candidate": round(path.stat().st_size / candidates),
            "peak_mb": round(peak / 1e6),
            "kb_per_candidate": round((peak - before) / candidates / 1e3, 2),
        }


class Depths:
    """How many items wait in the engine's two streams, looked at while it runs."""

    def __init__(self) -> None:
        self._streams: list[Any] = []
        self._seen: list[list[int]] = []
        self._events = 0

    def watched(self) -> Any:
        """Return a context in which the engine's streams are noted as it makes them."""
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

    def text(self, number: int) -> str:
        """Return the mean and the largest depth of a stream, and its bound."""
        seen = self._seen[number]
        bound = self._streams[number].statistics().max_buffer_size
        return f"{sum(seen) / len(seen):.0f}, {max(seen)} of {bound:g}"


def peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

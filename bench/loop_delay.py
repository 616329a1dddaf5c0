"""How long atune holds up the event loop that it is awaited in: p50, p99 and the longest, and what it was at then.

    python bench/loop_delay.py --out bench/results/loop_delay

A task that sleeps for a millisecond, over and over, notes how late it wakes; a thread notes where the loop's thread is
while that is overdue. Each situation is a program of its own. The delays hold what else the machine does, too: `cpu` is
what the loop's own thread used of the longest.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import common
from common import ROOT

SLEEP_S = 0.001
OVERDUE_S = 0.005
LARGE_BYTES = 200 << 20
"""What a closure holds in the situations named so."""


class Probe:
    """Watches one event loop, from a task in it and from a thread beside it."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.own: list[float] = []
        """Of each delay, the CPU time of the loop's own thread: what others on the machine do is not in it."""
        self.longest: list[dict[str, Any]] = []
        """The five longest delays: how long, of that the loop's own thread's CPU time, and where it was meanwhile."""
        self._loop_thread = threading.get_ident()
        self._ticked = time.monotonic()
        self._seen: list[str] = []
        self._over = False

    async def watched(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Await `work` in this loop, and watch."""
        threading.Thread(target=self._watch, daemon=True).start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick)
            await anyio.sleep(20 * SLEEP_S)
            await work()
            await anyio.sleep(20 * SLEEP_S)
            tasks.cancel_scope.cancel()
        self._over = True

    async def _tick(self) -> None:
        while True:
            cpu_s, before = time.thread_time(), time.monotonic()
            self._ticked, self._seen = before, []
            await anyio.sleep(SLEEP_S)
            delay_s = time.monotonic() - before - SLEEP_S
            own_s = time.thread_time() - cpu_s
            self.delays.append(delay_s)
            self.own.append(own_s)
            if delay_s > OVERDUE_S:
                figures = {"ms": round(1e3 * delay_s, 1), "cpu_ms": round(1e3 * own_s, 1)}
                self.longest.append({**figures, "at": self._seen})
                self.longest = sorted(self.longest, key=lambda found: -found["ms"])[:5]

    def _watch(self) -> None:
        while not self._over:
            time.sleep(OVERDUE_S / 2)
            if time.monotonic() - self._ticked > OVERDUE_S + SLEEP_S:
                self._seen = [*self._seen[-7:], self._where()]

    def _where(self) -> str:
        """Return atune's innermost line in the loop's thread, and in those others that are at something of atune's."""
        found = []
        for thread, frame in sys._current_frames().items():
            if thread != threading.get_ident():
                ours = [f for f in traceback.extract_stack(frame) if "/atune/" in f.filename]
                name = "loop" if thread == self._loop_thread else "thread"
                found += [f"{name}: {Path(f.filename).name}:{f.lineno} {f.name}" for f in ours[-1:]]
        return "; ".join(sorted(found))

    def figures(self) -> dict[str, Any]:
        late, own = sorted(self.delays), sorted(self.own)

        def at(p: int, values: list[float]) -> float:
            return round(1e3 * values[math.ceil(p / 100 * len(values)) - 1], 2)

        percentiles = {"p50_ms": at(50, late), "p99_ms": at(99, late), "p99_cpu_ms": at(99, own)}
        return {"ticks": len(late), **percentiles, "max_ms": round(1e3 * late[-1], 2), "longest": self.longest}


def workload(large: Any = None) -> Any:
    """Return a kernel for the CPU with a space of twelve; its reference holds `large`."""
    import loop_delay_kernel

    import atune

    def reference(A: Any) -> Any:
        return A * 2 if large is None or len(large) else A

    space = atune.Space(block=[16, 32, 64, 128], factor=[2, 3, 4])
    arguments = {"n": 4096}
    return atune.Workload(loop_delay_kernel.scale, space, arguments=arguments, reference=reference, name="scale")


def large(kind: str) -> Any:
    if kind == "bytes":
        return os.urandom(LARGE_BYTES)
    if kind == "numpy":
        import numpy

        return numpy.ones(LARGE_BYTES, dtype="uint8")
    import torch

    return torch.ones(LARGE_BYTES, dtype=torch.uint8)


def closure(kind: str, folder: Path) -> Callable[[], Awaitable[Any]]:
    import atune

    subject = workload(large(kind))
    return lambda: atune.tune(subject, target="c", journal=folder / "run.jsonl")


def plain(folder: Path) -> Callable[[], Awaitable[Any]]:
    import atune

    subject = workload()
    return lambda: atune.tune(subject, target="c", journal=folder / "run.jsonl")


def again(folder: Path) -> Callable[[], Awaitable[Any]]:
    """A second tuning in one program, from the artifact store."""
    import atune

    subject = workload()
    atune.run(subject, target="c")
    return lambda: atune.tune(subject, target="c", journal=folder / "run.jsonl")


def many(total: int, folder: Path, *, resumed: bool = False) -> Callable[[], Awaitable[Any]]:
    """The engine with candidates that take no time; `resumed`: with their journal, once more."""
    from idle import InstantClock

    import atune
    from atune.testing import FakeMachine, Script

    def machine() -> FakeMachine:
        script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % total) / total)
        return FakeMachine(total, script, workers=4, devices=2, clock=InstantClock())

    journal = folder / "run.jsonl"
    if resumed:
        atune.run(machine=machine(), journal=journal, budget=total - 1)
    return lambda: atune.tune(machine=machine(), journal=journal)


CLIENT = """
import sys, time
import httpx
body = bytes(4 * 1024 * 1024)
with httpx.Client(base_url=sys.argv[1], timeout=60) as client:
    while True:
        client.post("/transpose", content=body)
        time.sleep(0.02)
"""
"""Requests of a web service."""


def service(folder: Path) -> Callable[[], Awaitable[Any]]:
    """examples/service.py under uvicorn, from its start to the last candidate; another program sends it requests."""
    import uvicorn

    sys.path.insert(0, str(ROOT / "examples"))
    application = importlib.import_module("service").app
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="critical"))

    async def served() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            while not server.started:
                await anyio.sleep(0.05)
            port = server.servers[0].sockets[0].getsockname()[1]
            command = [sys.executable, "-c", CLIENT, f"http://127.0.0.1:{port}"]
            client = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            while not application.state.tuned.ended:
                await anyio.sleep(0.05)
            client.kill()
            client.wait()
            server.should_exit = True

    return served


SITUATIONS: dict[str, Callable[[Path], Callable[[], Awaitable[Any]]]] = {
    "plain": plain,
    "again": again,
    "web service": service,
    "closure of 200 MB, bytes": lambda folder: closure("bytes", folder),
    "closure of 200 MB, numpy": lambda folder: closure("numpy", folder),
    "closure of 200 MB, torch": lambda folder: closure("torch", folder),
    "1,000 candidates": lambda folder: many(1_000, folder),
    "20,000 candidates": lambda folder: many(20_000, folder),
    "20,000 candidates, resumed": lambda folder: many(20_000, folder, resumed=True),
}


def measure(name: str) -> dict[str, Any]:
    """Run one situation in this process, with atune's modules imported."""
    import atune.frontends.api.tuner
    import atune.workers.local.machine  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        work, probe = SITUATIONS[name](Path(folder)), Probe()
        anyio.run(probe.watched, work)
        return probe.figures()


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2])))
        return
    arguments = common.options(__doc__ or "", 900.0, only="")
    rows: list[list[Any]] = [["situation", "p50 ms", "p99 ms", "p99 cpu", "max ms", "of it cpu", "at"]]
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "cores": len(os.sched_getaffinity(0))}
    for name in SITUATIONS:
        if arguments.only in name:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench")])}
            command = [sys.executable, __file__, "--measure", name]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
            results[name] = found = json.loads(done.stdout.splitlines()[-1])
            longest = [*found["longest"], {"cpu_ms": "", "at": []}][0]
            seen = [*longest["at"], ""][0]
            rows.append(
                [name, found["p50_ms"], found["p99_ms"], found["p99_cpu_ms"], found["max_ms"], longest["cpu_ms"], seen]
            )
            print(*rows[-1], file=sys.stderr, flush=True)
    common.report(arguments, "loop_delay", rows, results)


if __name__ == "__main__":
    main()

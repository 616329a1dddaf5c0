"""The design card of atune: one task group, streams, processes, CUDA streams, cancellation, events, logs, journal."""

from __future__ import annotations

import os
import re
import threading
import time
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from crashing import Crash, finish, one_round
from event_streams import Stream, write
from fake_runs import anyio_backend as anyio_backend
from fake_runs import valley
from fork_servers import fork_server
from processes import in_groups
from programs import python

import atune
from atune import events as ev
from atune.engine.engine import ARTIFACTS_PER_DEVICE
from atune.engine.scheduler import MAX_GROUP
from atune.errors import WorkerError, WorkerTimeout, WorkloadError
from atune.journal.events import encode
from atune.journal.reader import JournalReader, read
from atune.journal.result import Result
from atune.journal.writer import Journal
from atune.model.requirements import REQUIRES
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
STAGES = (ev.RunStarted, ev.CandidateLowered, ev.ArtifactBuilt, ev.BenchmarkStarted, ev.FinalOrdered)
STORED = ROOT / "tests" / "data" / "schema-1.jsonl"


async def test_c1_one_task_group_compiles_and_measures() -> None:
    """One task group runs compile workers and devices side by side, and ends if a worker or device raises an error."""
    busy: list[int] = []
    machine = FakeMachine(40, workers=5, devices=3)
    await atune.tune(machine=machine, on_event=lambda event: busy.append(machine.running))
    assert 5 < max(busy) <= 8
    machine = FakeMachine(40, Script(prepare_error="the reference raised KeyError: 'B'"), workers=5, devices=3)
    with pytest.raises(WorkloadError, match="the reference raised KeyError"):
        await atune.tune(machine=machine)
    assert machine.closed == 1 and machine.running == 0 and sum(machine.cancelled.values()) > 0


async def test_c2_a_stuck_device_holds_the_compilers_back() -> None:
    """Bounded memory streams connect compilers and devices, so compilers wait for a device that falls behind."""
    script = Script(hangs={0: "measure"}, lower_s=0.001, library_s=0.001, compile_s=0.001)
    machine = FakeMachine(600, script, workers=3, default=0)
    seen: list[tuple[int, int]] = []

    def listen(event: ev.Event) -> None:
        if isinstance(event, ev.BenchmarkFailed):
            seen.append((len(machine.lowered), sum(map(len, machine.groups))))

    result = await atune.tune(machine=machine, on_event=listen)
    [(lowered, built)] = seen
    waiting = ARTIFACTS_PER_DEVICE + 1 + 3 * MAX_GROUP
    assert ARTIFACTS_PER_DEVICE < built <= waiting and built <= lowered <= waiting + 3 * MAX_GROUP
    assert result.measured == 599 and result.failed == 1


async def test_c3_each_worker_is_a_process_group_of_its_own(tmp_path: Path) -> None:
    """A fork server starts each worker as the head of its own process group, so the whole group can be killed."""
    big = os.urandom(5_000_000)
    async with fork_server(str(tmp_path / "run"), ["json"]) as server:
        async with anyio.create_task_group() as tasks:
            for worker in "abc":
                worker = await server.spawn(worker)
                tasks.start_soon(worker.call, "pool_targets:echo", big)
        assert await worker.call("pool_targets:echo", big) == big
        assert await worker.call("pool_targets:echo", b"") == b""
        assert await worker.call("zlib:compress", b"1") != b"1"
        assert len(server.pids()) == len(in_groups(server.pids())) == 4
        assert worker.name == "c-2" and worker.alive
        assert server.process.preload_s is not None
        groups = server.pids()
    assert not in_groups(groups) and not server.pids() and not worker.alive
    with pytest.raises(WorkerError, match="not open"):
        await server.spawn("late")


@pytest.mark.gpu
def test_c4_each_device_has_a_cuda_stream_of_its_own() -> None:
    """Each device has its own CUDA stream for inputs, launches and timing; `device_ready` gives the stream's handle."""
    import torch
    from guide_kernels import scaled

    def told(what: str, tensor: Any) -> Any:
        print(what, torch.cuda.current_stream().cuda_stream, flush=True)
        return tensor

    work = atune.Workload(
        scaled, [{"block": 16}, {"block": 128}], arguments={"n": 1 << 26}, out_idx=-1,
        inputs=lambda n: [told("inputs", torch.ones(n, dtype=torch.float32, device="cuda"))],
        reference=lambda A: told("reference", A * 2),
    )  # fmt: skip
    for device in range(torch.cuda.device_count()):
        events: list[Any] = []
        atune.run(work, target="cuda", devices=[device], on_event=events.append)
        [stream] = {event.stream for event in events if isinstance(event, ev.DeviceReady)}
        printed = "".join(event.printed for event in events if isinstance(event, ev.CandidateMeasured))
        said = set(re.findall(r"(inputs|reference) (\d+)", printed))
        assert stream and said == {("inputs", str(stream)), ("reference", str(stream))}
        timings = [event.timing for event in events if isinstance(event, (ev.ReferenceMeasured, ev.CandidateMeasured))]
        assert len(timings) == 3 and {timing.method for timing in timings} == {"events"}
        assert min(timing.latency_ms for timing in timings) > 0.05  # 512 MiB pass between the stream's events


@pytest.mark.parametrize("moment", STAGES)
async def test_c5_a_cancelled_run_leaves_its_journal_and_nothing_else(moment: type[ev.Event], tmp_path: Path) -> None:
    """Cancelling a run at any stage, on asyncio or trio, leaves a complete journal and nothing else."""
    machine = FakeMachine(60, workers=3, devices=2)
    path = tmp_path / "run.jsonl"
    with anyio.CancelScope() as scope:
        await atune.tune(machine=machine, journal=path, on_event=lambda e: isinstance(e, moment) and scope.cancel())
    assert scope.cancelled_caught
    assert (machine.opened, machine.closed, machine.running) == (1, 1, 0)
    events = read(path)
    assert [e.seq for e in events] == list(range(len(events)))
    assert isinstance(events[-1], ev.RunInterrupted) and events[-1].reason == "cancelled"
    assert not any(isinstance(e, ev.RunFinished) for e in events)
    journal, again = Journal.reopen(path)  # the lock is free
    journal.close()
    assert again == events


async def test_c6_a_timeout_has_the_tail_and_beats_the_gil(tmp_path: Path) -> None:
    """Deadlines are hard: a worker that misses its deadline is killed at once, even while it holds the GIL."""
    async with fork_server(str(tmp_path / "run")) as server:
        worker = await server.spawn("test")
        with pytest.raises(WorkerTimeout) as caught:
            await worker.call("pool_targets:sleep", b"60", timeout_s=0.2)
        assert "going to sleep" in caught.value.detail
        worker = await server.spawn("test")
        group, start = worker.pid, time.monotonic()
        with pytest.raises(WorkerTimeout):
            await worker.call("pool_targets:hold_gil", b"", timeout_s=0.3)
        assert time.monotonic() - start < 0.8
        assert not in_groups([group])


def test_c7_events_are_read_back_as_they_were(tmp_path: Path) -> None:
    """The journal keeps each event as a line of JSON with a checksum, and reads it back unchanged."""
    stream = Stream(total=2, default=0).ready(3.0).candidate(0, 2.0, tile=[1, 2]).candidate(1, 1.0)
    events = stream.final({1: [1.0, 1.1], 0: [2.0, 2.2]}).finished().events
    path = write(tmp_path / "run.jsonl", events)
    assert read(path) == events
    lines = [b'{"crc":"%08x","event":%b}' % (zlib.crc32(encode(event)), encode(event)) for event in events]
    assert path.read_bytes().splitlines() == lines


async def test_c8_the_programs_own_structlog_tells_runs_apart(configured: list[Any], tmp_path: Path) -> None:
    """If your program has configured structlog, each entry of the log names its run. `log=False` turns the log off."""
    async with anyio.create_task_group() as tasks:
        for name in ("one", "two"):
            tasks.start_soon(partial(atune.tune, machine=FakeMachine(4), journal=tmp_path / f"{name}.jsonl"))
    for name in ("one", "two"):
        mine = [entry["event"] for entry in configured if entry["run"] == name]
        assert (mine[0], mine[-1], mine.count("candidate_measured")) == ("run_started", "run_finished", 4)
    assert {entry["workload"] for entry in configured} == {"fake"}
    configured.clear()
    await atune.tune(machine=FakeMachine(4), log=False)
    assert not configured


def test_c9_after_sigkill_nothing_is_lost_or_measured_twice(tmp_path: Path) -> None:
    """A killed run continues from its journal, does not lose or repeat measurements, and ends with the same result."""
    whole, rounds = tmp_path / "whole.jsonl", [Crash() for _ in range(3)]
    anyio.run(finish, whole)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda seed: one_round(tmp_path, seed, whole, rounds[seed]), range(len(rounds))))
    assert all(one.kills and one.measurements for one in rounds)


def test_c10_replay_is_the_same_byte_for_byte_each_time() -> None:
    """`atune replay` prints the same result for a journal every time, byte for byte."""

    def text() -> str:
        done = python("-m", "atune", "replay", STORED, "--json", "--table")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert text() == text()
    assert isinstance(Result.from_events(JournalReader(STORED)), Result)


async def test_c11_a_workload_is_pickled_beside_the_loop() -> None:
    """Slow work, such as pickling a workload's tensors, happens in a thread and leaves the event loop free."""
    here, threads = threading.get_ident(), list[int]()

    class Large:
        def __reduce__(self) -> Any:
            threads.append(threading.get_ident())
            raise TypeError("cannot be pickled")

    large = Large()
    with pytest.raises(WorkloadError, match="cannot be pickled"):
        await atune.tune(atune.Workload(valley, [{"low": 1}], reference=lambda A: large), target="c")
    assert threads and here not in threads


async def test_c12_run_works_inside_a_running_loop() -> None:
    """`run` blocks until the result is there, even inside a running event loop such as a notebook's."""
    assert atune.run(machine=FakeMachine(6, Script(latency_ms=valley(2)))).best_config == {"x": 2}


def test_c13_the_packages_are_those_of_the_card() -> None:
    """atune is built on anyio, msgspec and structlog, and declares the versions that it needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(f"{name}{versions}" for name, versions in REQUIRES.items()) == sorted(project["dependencies"])
    assert {"anyio", "msgspec", "structlog", "tilelang"} <= REQUIRES.keys()

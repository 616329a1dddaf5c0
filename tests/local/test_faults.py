"""Faults on the CPU with real processes: each is named, costs no other candidate."""

from __future__ import annotations

import os
import signal
import struct
import threading
from pathlib import Path

import pytest
from fault_kernels import FAULTS
from hostile_kernels import RAISED
from kernel_outputs import outputs_of
from processes import wait_until
from services import built_by

from atune.frontends.tuner import tune
from atune.journal.events import BenchmarkFailed, BenchmarkRepeated, BenchmarkStarted, DeviceLost, DeviceReady, Event
from atune.journal.reader import read
from atune.journal.result import Result
from atune.model.artifact import Roles
from atune.model.jobs import FinalJob, MeasureJob, StartJob
from atune.model.measurement import Measurement
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import parse_file_ref

OUT = Roles(outputs=(1,))

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "fault_kernels.py"
HOSTILE = KERNELS.with_name("hostile_kernels.py")
UNRANKED = BenchmarkSettings(n_repeat=5, n_final=0)


async def test_every_fault_is_named_and_costs_no_good_candidate(tmp_path: Path) -> None:
    limits = {"compile": CompileSettings(workers=1), "benchmark": BenchmarkSettings(benchmark_timeout_s=2.0)}
    machine = LocalMachine(parse_file_ref(f"{KERNELS}:WORKLOAD"), target="c", **limits)
    events: list[Event] = []
    slow = next(x for x, fault in FAULTS.items() if fault == "slow")

    def kill() -> None:
        """Kill the device's process once the slow candidate sleeps."""
        worker = machine._devices[0]._worker
        assert worker is not None
        where = Path(f"/proc/{worker.pid}/wchan")
        wait_until(lambda: "nanosleep" in where.read_text(), 10, "the slow candidate")
        os.kill(worker.pid, signal.SIGKILL)

    def listen(event: Event) -> None:
        events.append(event)
        first = sum(isinstance(e, BenchmarkStarted) and e.index == slow for e in events) == 1
        if isinstance(event, BenchmarkStarted) and event.index == slow and first:
            threading.Thread(target=kill).start()

    result = await tune(machine=machine, benchmark=machine.benchmark, journal=tmp_path / "j", on_event=listen)
    failed = {FAULTS[e.index]: e.kind for e in events if isinstance(e, BenchmarkFailed)}
    assert failed == {
        "abort": "fault", "segv": "fault", "endless": "timeout", "wrong": "mismatch", "nan": "non_finite",
        "half": "unwritten", "killed": "worker_lost",
    }  # fmt: skip
    assert result.measured == 28 - len(failed) and result.failed == len(failed)
    messages = {FAULTS[r.index]: r.message for r in result.failures}
    assert "SIGABRT" in messages["abort"] and "SIGSEGV" in messages["segv"] and "SIGKILL" in messages["killed"]
    assert "16 of 32 elements were not written" in messages["half"] and "largest difference" in messages["wrong"]
    repeated = [(FAULTS.get(e.index, e.index), e.reason) for e in events if isinstance(e, BenchmarkRepeated)]
    starved = sum("CPU time" in reason for _, reason in repeated)  # on a busy machine
    assert [fault for fault, why in repeated if "CPU time" not in why] == ["abort", "segv", "killed", "slow"], repeated
    lost = [e for e in events if isinstance(e, DeviceLost)]
    ready = [e for e in events if isinstance(e, DeviceReady)]
    assert len(lost) == 8 + starved and len(ready) == 9 + starved  # abort, segv and killed twice, endless and slow once
    late = [e.kill_s for e in lost if e.reason.startswith("timeout")]
    assert min(late) > 0 and max(late) < 1 and all(0 < e.start_s < 10 for e in ready)
    assert Result.from_events(read(tmp_path / "j")).records == result.records


async def test_a_kernel_that_writes_its_input_is_found_out_and_its_input_restored() -> None:
    """Doubled at each call without that, the input would be infinite after a hundred calls, and the final wrong."""
    file = f"{KERNELS}:WRITING"
    machine = LocalMachine(parse_file_ref(file), target="c", compile=CompileSettings(workers=1))
    async with machine.open():
        await machine.discover()
        [artifact] = await built_by(machine.compile_workers()[0], {"x": 0})
        [worker] = machine.device_workers()
        await worker.run(StartJob())
        for _ in range(2):
            answer = await worker.run(MeasureJob(artifact, OUT))
            assert isinstance(answer, Measurement) and answer.checked and answer.writes == (0,), answer
        await worker.run(FinalJob((artifact, artifact), OUT, 200))
        [output] = await outputs_of(worker, artifact)
        assert struct.unpack("32f", output) == tuple(2.0 * i for i in range(1, 33))


async def test_a_kernel_without_outputs_is_compared_by_what_it_writes() -> None:
    """The check of tilelang's tuner passes there, whatever is written."""
    result = await tune(f"{KERNELS}:OWN", target="c", compile=CompileSettings(workers=1))
    assert [r.kind for r in result.failures] == ["mismatch"] and result.failures[0].config == {"x": 0}
    assert result.measured == 2 and all(m.checked and m.writes == (0,) for m in result.measurements)


async def test_what_a_kernel_raises_is_its_failure_alone(tmp_path: Path) -> None:
    """Interrupts, cancellations, skips, panics, exceptions without a message or with one that no journal can hold."""
    result = await tune(
        f"{HOSTILE}:RAISING",
        target="c",
        compile=CompileSettings(workers=1),
        benchmark=UNRANKED,
        journal=tmp_path / "j",
    )
    assert result.measured == 4 and result.failed == len(RAISED)
    failures = {record.config["mode"]: record for record in result.failures}
    assert failures.keys() == RAISED.keys()
    for name, failure in failures.items():
        assert failure.kind == "lower" and failure.message.startswith(f"{name}: "), failure
        assert "raise RAISED[mode]" in failure.detail or "<no traceback>" in failure.detail
    assert failures["Skipped"].message == "Skipped: not today"
    assert failures["Panic"].message == "Panic: index out of bounds"
    assert failures["Speechless"].message == "Speechless: <no message: str() raised RuntimeError>"
    assert failures["SpeechlessPanic"].message == "SpeechlessPanic: <no message: str() raised KeyboardInterrupt>"
    assert failures["ValueError"].message == "ValueError: a lone \\udcff surrogate"
    assert Result.from_events(read(tmp_path / "j")).records == result.records


async def test_kernels_that_meddle_with_their_worker_are_named_and_cost_no_other() -> None:
    """`os.fork()` that returns twice, a socket that is closed, and an answer that nobody asked for."""
    result = await tune(f"{HOSTILE}:MEDDLING", target="c", compile=CompileSettings(workers=1), benchmark=UNRANKED)
    failed = {record.config["mode"]: (record.kind, record.message) for record in result.failures}
    closed = "lowering ended its process: closed the socket for its replies"
    written = "lowering ended its process: something wrote to the socket for its replies"
    assert failed == {
        "closes its socket": ("crash", closed),
        "closes its socket and stays": ("crash", closed),
        "answers": ("crash", written),
    }
    assert result.measured == 4

"""A candidate that changes the process that it runs in costs no other candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
from contaminating_kernels import LEFT, NAMES, N

from atune.errors import WorkerTimeout
from atune.frontends.tuner import tune
from atune.journal.events import BenchmarkRepeated, Event
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers import messages
from atune.workers.compile_worker import PATIENCE
from atune.workers.pool import Worker

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "contaminating_kernels.py"
ALONE = CompileSettings(workers=1, store=False)
JOBS = ("roles", "lower", "build")
UNRANKED = BenchmarkSettings(n_repeat=5, n_final=0)


async def test_what_a_candidate_changes_in_a_compile_worker_fails_no_other() -> None:
    result = await tune(f"{KERNELS}:COMPILING", target="c", compile=ALONE, benchmark=UNRANKED, strategy="exhaustive")
    spoilt = {record.config["k"]: record.message for record in result.failures if not record.config["k"] % 2}
    assert not spoilt and result.measured + result.failed == 2 * len(NAMES) + 1
    assert any("in a process that had run other candidates" in warning for warning in result.warnings)


async def test_what_a_check_changes_in_a_device_process_fails_no_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    (tmp_path / "calls").write_text("0")
    monkeypatch.setenv(LEFT, str(tmp_path))
    events: list[Event] = []
    result = await tune(f"{KERNELS}:MEASURING", target="c", compile=ALONE, benchmark=UNRANKED, on_event=events.append)
    failed = {record.config["k"]: (record.kind, record.message) for record in result.failures}
    assert not failed and result.measured == N and len(list(tmp_path.iterdir())) == 1
    assert any(isinstance(event, BenchmarkRepeated) for event in events)


async def test_a_deadline_that_passed_on_a_busy_machine_is_tried_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, float, str]] = []
    real = Worker.call

    async def busy(self: Worker, entry: str, payload: bytes, timeout_s: float = 1.0) -> bytes:
        first = not any(entry == before for before, *_ in calls)
        calls.append((entry, timeout_s, self.name))
        if entry in (messages.JOBS + job for job in JOBS) and first:
            raise WorkerTimeout("past the deadline", starved=True)
        return await real(self, entry, payload, timeout_s)

    monkeypatch.setattr(Worker, "call", busy)
    result = await tune(f"{KERNELS}:PLAIN", target="c", compile=ALONE, benchmark=UNRANKED)
    assert result.measured == 1 and not result.failures
    for job in JOBS:
        (limit, first), (longer, fresh) = [call for entry, *call in calls if entry == messages.JOBS + job][:2]
        assert longer == PATIENCE * limit and fresh != first

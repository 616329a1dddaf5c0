"""What torch computes by in a program reaches the process that checks and times, and counts for results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workloads import STATED

import atune
from atune.errors import JournalError
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workers.storage.result_key import result_key
from atune.workload.torch_state import USUAL, take_state, torch_state

STATE = {"default_dtype": "float64", "float32_matmul_precision": "medium", "deterministic_debug_mode": 1}


@pytest.fixture(autouse=True)
def stated() -> Iterator[None]:
    assert torch_state() == {}
    take_state({**STATE, "backends.cudnn.allow_tf32": False, "load": "a stranger's"})
    yield
    take_state(USUAL)


def test_a_reference_computes_as_the_program_does(tmp_path: Path) -> None:
    """Also where another program resumes the run; and with other arithmetic it is other work."""
    header = atune.run(STATED, target="c", budget=1, journal=tmp_path / "j").header
    assert header.torch.items() >= {**STATE, "backends.cudnn.allow_tf32": False}.items() and "load" not in header.torch
    plain = result_key(msgspec.structs.replace(header, torch={}))
    assert plain is not None and result_key(header) != plain and "torch" not in plain.measuring
    take_state(USUAL)
    with pytest.raises(JournalError, match=r"settings: torch computed by {'default_dtype': 'float64', .* its own def"):
        atune.run(STATED, target="c", budget=2, journal=tmp_path / "j")
    with pytest.warns(RuntimeWarning, match=r"workloads\.py, which the journal names"):
        assert atune.run_resume(tmp_path / "j", budget=2).measured == 2


def test_a_device_process_is_handed_on_to_a_run_that_computes_alike_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, original = dict[bool, Any](), LocalDeviceWorker._handed_on

    async def handed_on(device: LocalDeviceWorker) -> Any:
        taken[bool(device.session.ref.torch)] = found = await original(device)
        return found

    monkeypatch.setattr(LocalDeviceWorker, "_handed_on", handed_on)
    problems = [{"n": 256}, {"n": 320}, {"n": 512}]  # two at a time, where time is limited
    ends = {"RunFinished": lambda: take_state(USUAL)}
    options = {"target": "c", "budget": "1,60s", "on_event": lambda event: ends.get(type(event).__name__, dict)()}
    found = atune.run_set(STATED, problems, **options)
    assert len(found.winners) == 3 and taken == {True: None, False: None}

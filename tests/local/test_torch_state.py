"""What torch computes by in a program reaches the process that checks and times, and counts for results."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from workloads import STATED

import atune
from atune.errors import JournalError
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.result_key import result_key
from atune.workload.torch_state import TORCH_DEFAULTS, take_state, torch_state
from atune.workload.workload import head

STATE = dict(zip(TORCH_DEFAULTS, ("float64", "medium", 1, False), strict=True))


def test_a_reference_computes_as_the_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another program resumes the run. With other arithmetic it is other work, and in another process."""
    taken, original = dict[bool, Any](), LocalDeviceWorker._handed_on

    async def handed_on(device: LocalDeviceWorker) -> Any:
        taken[bool(device.session.ref.torch)] = found = await original(device)
        return found

    def as_usual(event: Any) -> None:
        if type(event).__name__ == "RunFinished":
            take_state({name: usual for name, (usual, *_) in TORCH_DEFAULTS.items()})

    monkeypatch.setattr(LocalDeviceWorker, "_handed_on", handed_on)
    assert torch_state() == {}
    take_state({**STATE, "load": "a stranger's"})
    problems = [{"n": 256}, {"n": 320}, {"n": 512}]  # two at a time, where time is limited
    found = atune.run_set(STATED, problems, target="c", budget="1,60s", on_event=as_usual)
    assert len(found.winners) == 3 and taken == {True: None, False: None}
    header, journal = found[0].result.header, found[0].result.journal
    assert header.torch == STATE
    plain = result_key(msgspec.structs.replace(header, torch={}))
    assert plain is not None and result_key(header) != plain and "torch" not in plain.measuring
    refused = r"settings: torch computed with {'default_dtype': 'float64', .* its own def"
    with pytest.raises(JournalError, match=refused):
        atune.run(STATED, target="c", budget=2, journal=journal)
    with pytest.warns(RuntimeWarning, match=r"workloads\.py, which the journal names"):
        assert atune.run_resume(journal, budget=2).measured == 2


@pytest.mark.parametrize("part", [{"setup": print}, {"inputs": functools.partial(print)}, {"check": print}, {}])
def test_it_counts_wherever_a_function_of_the_users_may_compute(part: dict[str, Any]) -> None:
    take_state(STATE)
    work = atune.Workload(STATED.kernel, {"block": [16]}, arguments=STATED.arguments, out_idx=STATED.out_idx, **part)
    assert head(work).torch == (STATE if part else {})
    take_state({name: usual for name, (usual, *_) in TORCH_DEFAULTS.items()})

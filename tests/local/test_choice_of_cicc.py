"""Whether a run uses cicc, and what it reports of it to the scheduler."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered, StaticFacts
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.workers.compile_service import NEW_STATE, ServiceProcess
from atune.workers.local_machine import FEW_CANDIDATES, LocalMachine
from atune.workers.messages import Discovery
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio
FOUND = Discovery(target=Target("cuda", "sm_90a"), devices=())
ON_CPU = Discovery(target=Target("c"), devices=(), no_cicc="it is for CUDA")
SWITCHED_OFF = msgspec.structs.replace(FOUND, no_cicc="cicc is switched off")


LOWERED = Lowered(0, "code", "merge", (), StaticFacts(), 0.1, b"blob")
NEW, KNOWN, DIFFERS = ("", ""), ("state", ""), ("state", "the code")


class Tasks:
    """Counts the processes of the compile service that would be started."""

    begun = 0

    def start_soon(self, *_: object) -> None:
        self.begun += 1


def machine(found: Discovery = FOUND, **settings: Any) -> LocalMachine:
    """Return a machine that knows what discovery found, with four compile workers."""
    compile = CompileSettings(workers=4, **settings)
    one = LocalMachine(FileRef("x.py", "X"), target=found.target, devices=(), compile=compile)
    one.discovery = found
    one.use(found.no_cicc)
    return one


@pytest.mark.parametrize(
    ("found", "candidates", "against", "why"),
    [
        (FOUND, 5, False, ""),
        (FOUND, 4, False, ""),
        (ON_CPU, 3, True, ""),
        (SWITCHED_OFF, 100, True, "nvcc, because cicc is switched off"),
    ],
    ids=["many", "few", "on the CPU", "switched off"],
)
async def test_who_compiles(found: Discovery, candidates: int, against: bool, why: str) -> None:
    one = machine(found)
    await one.prepare(candidates)
    assert (one.service._off, one.service.why) == (against, why) and one.hints(0) == CompileHints()


def with_service() -> tuple[LocalMachine, Tasks]:
    one, tasks = machine(), Tasks()
    one.service.process = ServiceProcess()
    one.service._tasks = tasks  # type: ignore[assignment]
    return one, tasks


@pytest.mark.parametrize(("candidates", "few"), [(FEW_CANDIDATES, True), (FEW_CANDIDATES + 1, False)])
async def test_few_candidates_of_a_new_state_are_compiled_by_nvcc(candidates: int, few: bool) -> None:
    """nvcc does not wait for the service, and one build compares the state; in a known state, cicc builds all."""
    one, _ = with_service()
    await one.prepare(candidates)
    one.service.saw(LOWERED, FOUND.target, known=False)
    assert one.hints(0).builds == few and one.service.why == (NEW_STATE if few else "")
    assert [one.service.compilers(["a"], [NEW]) for _ in range(2)] == (["both", "nvcc"] if few else ["nvcc"] * 2)
    assert one.service.compilers([""], [NEW]) == "nvcc", "cicc cannot compile it"
    one.service._settle("")
    later = [one.service.compilers(["b", use], [KNOWN, NEW]) for use in "acc"]
    assert later == (["nvcc", "both", "nvcc"] if few else ["cicc"] * 3), "the new member counts, wherever it is"
    assert one.service.compilers(["b"], [KNOWN]) == "cicc"
    assert one.service.compilers(["b", "b"], [KNOWN, DIFFERS]) == "nvcc"
    known, _ = with_service()
    await known.prepare(candidates)
    known.service.saw(LOWERED, FOUND.target, known=True)
    assert known.service.why == "" and not known.hints(0).builds


@pytest.mark.parametrize("broken", ["", "cicc is gone"])
async def test_building_waits_for_a_service_that_will_soon_be_there(broken: str) -> None:
    one, tasks = with_service()
    assert one.hints(0).builds
    one.service.saw(LOWERED, FOUND.target, known=False)
    one.service.saw(LOWERED, FOUND.target, known=False)  # only the first candidate asks
    assert tasks.begun == 1
    assert not one.hints(0).builds
    one.service._settle(broken)
    assert one.hints(0).builds and one.service.ready == (not broken)
    assert one.service.why == (f"nvcc, because {broken}" if broken else "")


def test_devices_that_measure_take_cores_from_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.workers.local_machine.usable_cores", lambda: list(range(6)))
    monkeypatch.setattr("atune.workers.local_machine.usable_memory_bytes", lambda: None)
    one = LocalMachine(FileRef("x.py", "X"), target=FOUND.target)
    one.discovery = FOUND
    assert len(one.compile_workers()) == 6
    assert [one.hints(measuring).resting for measuring in (0, 1, 2)] == [0, 1, 2]
    asked = machine()
    asked.compile_workers()
    assert asked.hints(2).resting == 0  # the caller decided

"""Whether a run uses cicc, and what it reports of it to the scheduler."""

from __future__ import annotations

from typing import Any, cast

import pytest

from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered, StaticFacts
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.workers.local.machine import PLAIN, LocalMachine, Shared, are_few
from atune.workers.processes.messages import Discovery, ServiceReady
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.anyio
FOUND = Discovery(target=Target("cuda", "sm_90a"), devices=())
ON_CPU = Discovery(target=Target("c"), devices=(), no_cicc="it is for CUDA")


LOWERED = Lowered(0, "code", "merge", (), StaticFacts(), 0.1, b"blob")


class Tasks:
    """Counts the processes of the compile service that would be started."""

    begun = 0

    def start_soon(self, *_: object) -> None:
        self.begun += 1


def machine(found: Discovery = FOUND, **settings: Any) -> LocalMachine:
    """Return a machine that knows what discovery found, with four compile workers."""
    compile = CompileSettings(workers=4, **settings)
    one = LocalMachine(FileRef("x.py", "X"), target=found.target, devices=(), compile=compile)
    one._found = found
    one.use(found.no_cicc)
    return one


async def test_many_candidates_are_compiled_by_cicc() -> None:
    one = machine()
    await one.prepare(50)
    assert one.service._against is None and one.service.why == ""


@pytest.mark.parametrize("found", [FOUND, ON_CPU])
async def test_few_candidates_are_compiled_plain(found: Discovery) -> None:
    one = machine(found)
    await one.prepare(3)
    assert one.service._against is not None and one.hints(0) == CompileHints()
    assert one.service.why == (f"nvcc, because {PLAIN}" if found is FOUND else "")


async def test_few_candidates_of_a_sets_problem_are_not() -> None:
    one = machine()
    one.shared = cast(Shared, object())
    await one.prepare(1)
    assert one.service._against is None


@pytest.mark.parametrize(("workers", "few", "many"), [(1, 4, 5), (2, 4, 5), (4, 4, 5), (8, 6, 7), (16, 12, 13)])
def test_as_many_as_hardly_delay_each_other_are_few(workers: int, few: int, many: int) -> None:
    assert are_few(few, workers) and not are_few(many, workers)


async def test_where_it_cannot_be_used_nvcc_compiles_and_says_why() -> None:
    one = machine(Discovery(target=Target("cuda", "sm_90a"), devices=(), no_cicc="it is switched off"))
    await one.prepare(100)
    assert one.service.why == "nvcc, because it is switched off"


def with_service() -> tuple[LocalMachine, Tasks]:
    one, tasks = machine(), Tasks()
    one.service._tasks = tasks  # type: ignore[assignment]
    return one, tasks


@pytest.mark.parametrize("early", [True, False])
async def test_building_waits_for_a_service_that_will_soon_be_there(early: bool) -> None:
    one, tasks = with_service()
    if early:
        one.service._begin("sm_90a")
    assert one.hints(0).builds == "all" and one.service.why == ""
    one.service.saw(LOWERED, FOUND.target)
    one.service.saw(LOWERED, FOUND.target)  # only the first candidate asks
    assert tasks.begun == 1 and one.service._wanted.is_set()
    assert one.hints(0).builds == "first"
    one.service._answered(ServiceReady(True, header_s=1.25))
    assert one.hints(0).builds == "all" and one.service.ready
    assert one.service.why == "headers parsed in 1.2 s"


async def test_few_candidates_end_a_service_that_has_begun() -> None:
    one, _ = with_service()
    one.service._begin("sm_90a")
    scope = one.service._scope
    await one.prepare(1)
    assert scope is not None and scope.cancel_called and not one.service.warming


def test_devices_that_measure_take_cores_from_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.workers.local.machine.usable_cores", lambda: list(range(6)))
    monkeypatch.setattr("atune.workers.local.machine.usable_memory_bytes", lambda: None)
    one = LocalMachine(FileRef("x.py", "X"), target=FOUND.target)
    one._found = FOUND
    assert len(one.compile_workers()) == 6
    assert [one.hints(measuring).resting for measuring in (0, 1, 2)] == [0, 1, 2]
    asked = machine()
    asked.compile_workers()
    assert asked.hints(2).resting == 0  # the caller decided

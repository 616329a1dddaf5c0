"""Which accelerators a run uses, and what it reports of them to the workers and the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered, StaticFacts
from atune.model.device import Target
from atune.model.settings import ACCELERATE, Acceleration, CompileSettings
from atune.workers.local.machine import PLAIN, LocalMachine, accelerators_for
from atune.workers.local.workers import SharedPlace, SharedServer
from atune.workers.processes.messages import Discovery, ServiceReady
from atune.workload.workload import FileRef

pytestmark = pytest.mark.anyio
ALL = ("swizzle_lowering@2", "cicc@1")
OTHER = {"haste:Haste": "nvcc is not as it is known"}
FOUND = Discovery(target=Target("cuda", "sm_90a"), devices=(), accelerators=ALL, unused=OTHER)
ON_CPU = Discovery(
    target=Target("c"), devices=(), accelerators=("wrong_accelerators:Spy@1",), unused={"cicc": "it is for CUDA"}
)


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
    one.use(found.accelerators, found.unused.get("cicc", ""))
    return one


async def test_many_candidates_are_compiled_by_what_discovery_found() -> None:
    one = machine()
    assert await one.accelerators(50) == (ALL, OTHER)
    [worker, *_] = one.compile_workers()
    assert worker.context.session.accelerators == ("swizzle_lowering", "cicc")
    assert one.hints(0).row == 2 and one.service.why == ""


@pytest.mark.parametrize("found", [FOUND, ON_CPU])
async def test_few_candidates_are_compiled_plain(found: Discovery) -> None:
    one = machine(found)
    used, unused = await one.accelerators(3)
    assert used == () and all(unused[name.partition("@")[0]] == PLAIN for name in found.accelerators)
    assert unused.items() >= found.unused.items()
    [worker, *_] = one.compile_workers()
    assert worker.context.session.accelerators == () and one.hints(0) == CompileHints()
    assert one.service.why == (f"nvcc, because {PLAIN}" if found is FOUND else "")


async def test_few_candidates_of_a_sets_problem_are_not() -> None:
    one = machine()
    one.place = SharedPlace(SharedServer(runs=2, places=2))
    assert await one.accelerators(1) == (ALL, OTHER)


@pytest.mark.parametrize(
    ("workers", "plain", "accelerated"), [(1, 4, 5), (2, 4, 5), (4, 4, 5), (8, 6, 7), (16, 12, 13)]
)
def test_as_many_as_hardly_delay_each_other_are_few(workers: int, plain: int, accelerated: int) -> None:
    auto = Acceleration(auto=True)
    assert accelerators_for(plain, workers, auto, FOUND)[0] == ()
    assert accelerators_for(accelerated, workers, auto, FOUND) == (ALL, OTHER)


async def test_what_was_asked_for_by_name_is_used_for_few_candidates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await machine(accelerate="cicc,swizzle_lowering").accelerators(1))[0] == ALL
    monkeypatch.setenv(ACCELERATE, "cicc,swizzle_lowering")
    assert (await machine().accelerators(1))[0] == ALL
    assert accelerators_for(1, 4, Acceleration(auto=True, without=("cicc",)), FOUND)[0] == ()


async def test_where_discovery_found_none_none_is_used() -> None:
    """`off`, or a machine that is otherwise than they know it."""
    one = machine(Discovery(target=Target("cuda", "sm_90a"), devices=(), unused={"cicc": "it is switched off"}))
    assert await one.accelerators(100) == ((), {"cicc": "it is switched off"})
    assert one.service.why == "nvcc, because it is switched off"
    assert one.hints(0).row == 1


async def test_on_the_cpu_no_neighbours_are_lowered_in_a_row() -> None:
    found = Discovery(target=Target("c"), devices=(), accelerators=("swizzle_lowering@2",))
    one = machine(found)
    await one.accelerators(100)
    assert one.hints(0).row == 1


def with_service() -> tuple[LocalMachine, Tasks]:
    one, tasks = machine(), Tasks()
    one.service._tasks = tasks  # type: ignore[assignment]
    return one, tasks


async def test_building_waits_for_a_service_that_will_soon_be_there() -> None:
    """Headers that were being parsed before the first candidate are awaited; else one group is built at once."""
    for early, builds in ((True, "none"), (False, "first")):
        one, tasks = with_service()
        if early:
            one.service._begin("sm_90a")
        assert one.hints(0).builds == "all" and one.service.why == ""
        one.service.saw(LOWERED, FOUND.target)
        one.service.saw(LOWERED, FOUND.target)  # only the first candidate asks
        assert tasks.begun == 1 and one.service._wanted.is_set()
        assert one.hints(0).builds == builds
        one.service._answered(ServiceReady(True, header_s=1.25))
        assert one.hints(0).builds == "all" and one.service.ready
        assert one.service.why == "headers parsed in 1.2 s"


async def test_a_service_that_does_not_compile_is_the_reason_for_nvcc() -> None:
    one, _ = with_service()
    one.service._begin("sm_90a")
    one.service._answered(ServiceReady(False, "cicc ended"))
    assert one.service.why == ""  # nothing is compiled yet
    one.service.saw(LOWERED, FOUND.target)
    assert one.service.why == "nvcc, because cicc ended" and not one.service._wanted.is_set()
    assert one.hints(0).builds == "all"


async def test_few_candidates_end_a_service_that_has_begun() -> None:
    one, _ = with_service()
    one.service._begin("sm_90a")
    scope = one.service._scope
    await one.accelerators(1)
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

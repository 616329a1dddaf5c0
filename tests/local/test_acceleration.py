"""Which accelerators a run uses, what it is told of them, and what the scheduler is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atune.engine.interfaces import CompileHints
from atune.errors import UsageError
from atune.local.discovery import NO_NEIGHBOURS, NO_PROOF, PLAIN, accelerators_for
from atune.local.machine import LocalMachine
from atune.local.service_state import Ready, Unused, Warming
from atune.model.device import Target
from atune.model.settings import ACCELERATE, Acceleration, BenchmarkSettings, CompileSettings, bare
from atune.processes.messages import Discovery
from atune.workload.workload import FileRef

ALL = ("swizzle_lowering@2", "swizzle_compile@1", "cicc@1")
OTHER = {"haste:Haste": "nvcc is not as it is known"}
FOUND = Discovery(target=Target("cuda", "sm_90a"), devices=(), accelerators=ALL, unused=OTHER)
ON_CPU = Discovery(
    target=Target("c"), devices=(), accelerators=("wrong_accelerators:Spy@1",), unused={"cicc": "it is for CUDA"}
)


def machine(found: Discovery = FOUND, **settings: Any) -> LocalMachine:
    """Return a machine that knows what discovery found, with four compile workers."""
    compile = CompileSettings(workers=4, **settings)
    one = LocalMachine(FileRef("x.py", "X"), target=found.target, devices=(), compile=compile)
    one._found = found
    one.use(found.accelerators, found.unused.get("cicc", ""))
    return one


def test_many_candidates_are_compiled_by_what_discovery_found() -> None:
    one = machine()
    assert one.accelerators(50) == (ALL, OTHER)
    [worker, *_] = one.compile_workers(50)
    assert worker.context.session.accelerators == ("swizzle_lowering", "swizzle_compile", "cicc")
    assert one.hints(0).row == 2 and one.service.why == ""


@pytest.mark.parametrize("found", [FOUND, ON_CPU])
def test_candidates_that_all_have_a_worker_are_compiled_plain(found: Discovery) -> None:
    one = machine(found)
    used, unused = one.accelerators(4)
    assert used == () and all(unused[name.partition("@")[0]] == PLAIN for name in found.accelerators)
    assert unused.items() >= found.unused.items()
    [worker, *_] = one.compile_workers(4)
    assert worker.context.session.accelerators == () and one.hints(0) == CompileHints()
    assert one.service.why == (f"nvcc, because {PLAIN}" if found is FOUND else "")


def test_where_a_proof_would_take_longer_all_are_compiled_plain() -> None:
    assert [machine().accelerators(n)[0] for n in (5, 6, 7)] == [(), (), ALL]
    assert machine().accelerators(5)[1]["cicc"] == NO_PROOF
    assert machine(prove=False).accelerators(5)[0] == ALL  # no proof, nothing to save
    assert machine(accelerate="auto,-swizzle_compile").accelerators(5)[0] == ()
    assert machine(ON_CPU).accelerators(5)[0] == ON_CPU.accelerators  # g++ is not accelerated


@pytest.mark.parametrize(
    ("candidates", "used"), [(12, ()), (13, ("cicc@1",)), (16, ("cicc@1",)), (24, ("cicc@1",)), (25, ALL)]
)
def test_few_candidates_on_many_workers_are_known_early_and_cheaply_proven(
    candidates: int, used: tuple[str, ...]
) -> None:
    """By an accelerator that leaves the lowering plain, so that the proof is one compile."""
    found = msgspec.structs.replace(FOUND, light=("cicc@1",))
    auto = Acceleration(auto=True)
    active, unused = accelerators_for(candidates, 16, auto, found, prove=True)
    assert active == used and set(unused) == {"haste:Haste", *(n for n in map(bare, ALL) if f"{n}@" not in str(used))}
    assert used != ("cicc@1",) or unused["swizzle_lowering"] == NO_PROOF


@pytest.mark.parametrize(
    ("workers", "candidates", "used"), [(7, 7, ()), (7, 10, ()), (8, 7, ("cicc@1",)), (7, 11, ALL)]
)
def test_few_workers_compile_few_candidates_plain(workers: int, candidates: int, used: tuple[str, ...]) -> None:
    """A proof would wait for their compiles."""
    found = msgspec.structs.replace(FOUND, light=("cicc@1",))
    assert accelerators_for(candidates, workers, Acceleration(auto=True), found, prove=True)[0] == used


@pytest.mark.parametrize(("n_final", "used"), [(5, ("cicc@1",)), (0, ())])
def test_where_nothing_is_measured_nothing_must_be_known_early(n_final: int, used: tuple[str, ...]) -> None:
    one = LocalMachine(
        FileRef("x.py", "X"), target=FOUND.target, devices=(), compile=CompileSettings(workers=8),
        benchmark=BenchmarkSettings(n_final=n_final),
    )  # fmt: skip
    one._found = msgspec.structs.replace(FOUND, light=("cicc@1",))
    assert one.accelerators(8)[0] == used


@pytest.mark.parametrize(
    ("candidates", "settings", "few"),
    [(8, {}, True), (12, {}, True), (13, {}, False), (None, {}, False), (8, {"prove": False}, False),
     (8, {"accelerate": "cicc"}, False)],
)  # fmt: skip
def test_workers_know_whether_a_long_compile_decides_the_end(
    candidates: int | None, settings: dict[str, Any], few: bool
) -> None:
    one = LocalMachine(
        FileRef("x.py", "X"), target=FOUND.target, devices=(), compile=CompileSettings(workers=8, **settings)
    )
    one._found = FOUND
    assert one.compile_workers(candidates)[0].context.few is few


def test_without_a_proof_a_single_candidate_is_accelerated_too() -> None:
    found = msgspec.structs.replace(FOUND, light=("cicc@1",))
    used, unused = accelerators_for(1, 2, Acceleration(auto=True), found, prove=False)
    assert used == ("cicc@1",) and unused["swizzle_compile"] == NO_NEIGHBOURS
    on_cpu = msgspec.structs.replace(ON_CPU, light=ON_CPU.accelerators)
    assert accelerators_for(1, 2, Acceleration(auto=True), on_cpu, prove=False)[0] == ()


def test_what_was_asked_for_by_name_is_used_for_few_candidates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine(accelerate="cicc,swizzle_compile,swizzle_lowering").accelerators(1)[0] == ALL
    monkeypatch.setenv(ACCELERATE, "cicc,swizzle_compile,swizzle_lowering")
    assert machine().accelerators(1)[0] == ALL
    assert accelerators_for(1, 4, Acceleration(auto=True, without=("cicc",)), FOUND, prove=True)[0] == ()


def test_where_discovery_found_none_none_is_used() -> None:
    """`off`, or a machine that is otherwise than they know it."""
    one = machine(Discovery(target=Target("cuda", "sm_90a"), devices=(), unused={"cicc": "it is switched off"}))
    assert one.accelerators(100) == ((), {"cicc": "it is switched off"})
    assert one.service.state == Unused("nvcc, because it is switched off")
    assert one.hints(0).row == 1


def test_a_variable_that_is_no_choice_is_the_callers_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACCELERATE, "quickly")
    with pytest.raises(UsageError, match="ATUNE_ACCELERATE 'quickly': use auto, off"):
        LocalMachine(FileRef("x.py", "X"))


def test_on_the_cpu_no_neighbours_are_lowered_in_a_row() -> None:
    found = Discovery(target=Target("c"), devices=(), accelerators=("swizzle_lowering@2",))
    one = machine(found)
    one.accelerators(100)
    assert one.hints(0).row == 1


@pytest.mark.parametrize(
    ("state", "builds"),
    [
        (Warming("as asked", soon=False), "first"),
        (Warming("as asked", soon=True), "none"),
        (Ready("as asked"), "all"),
        (Unused("not worth it"), "all"),
    ],
)
def test_building_waits_for_a_service_that_will_soon_be_there(state: Any, builds: str) -> None:
    one = machine()
    one.service.state = state
    assert one.hints(0).builds == builds


def test_devices_that_measure_take_cores_from_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.local.machine.usable_cores", lambda: list(range(6)))
    monkeypatch.setattr("atune.local.machine.usable_memory_bytes", lambda: None)
    one = LocalMachine(FileRef("x.py", "X"), target=FOUND.target)
    one._found = FOUND
    assert len(one.compile_workers()) == 6
    assert [one.hints(measuring).resting for measuring in (0, 1, 2)] == [0, 1, 2]
    asked = machine()
    asked.compile_workers()
    assert asked.hints(2).resting == 0  # the caller decided

"""SIGKILL of the fork server, and kills for want of memory: no candidate fails for it, and the winner stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lost_kernels import TOTAL
from stand_in_compiler import stand_in

from atune.errors import MachineError
from atune.frontends.api.resume import resume
from atune.frontends.api.tuner import tune
from atune.journal.events import (
    BenchmarkFailed,
    BuildFailed,
    CandidateMeasured,
    Event,
    Warned,
)
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workload.workload import parse_file_ref

pytestmark = pytest.mark.anyio
KERNELS = f"{Path(__file__).parents[1] / 'lost_kernels.py'}:WORKLOAD"
SETTINGS = CompileSettings(workers=2, group_size=2, store=False)
QUICK, ALL = 3, 20
"""Instants, spread over a run, at which the fork server is killed: always, and in the slow tests."""
INSTANTS = [pytest.param(i, marks=[] if i % (ALL // QUICK) == 3 else [pytest.mark.asked]) for i in range(ALL)]
TARGETS = ["c", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def machine_for(target: str, settings: CompileSettings = SETTINGS) -> LocalMachine:
    return LocalMachine(parse_file_ref(KERNELS), target=target, compile=settings)


def kill_server(machine: LocalMachine) -> None:
    os.kill(machine.server.pids()[0], signal.SIGKILL)


class Listening:
    """Listens to a run, and has something done at events of its choice."""

    def __init__(self, at: Callable[[list[Event]], bool], do: Callable[[], None]) -> None:
        self.at, self.do = at, do
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.at(self.events):
            self.do()

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kinds)]

    def outcome(self) -> tuple[list[int], list[Any]]:
        """Return the candidates that were measured, and what failed."""
        return sorted({e.index for e in self.of(CandidateMeasured)}), self.of(BuildFailed, BenchmarkFailed)


lengths: dict[str, int] = {}


async def length_of_a_clean_run(target: str) -> int:
    """Return how many events a run has before its end, when nothing is killed."""
    if target not in lengths:
        heard = Listening(lambda events: False, lambda: None)
        result = await tune(machine=machine_for(target), compile=SETTINGS, on_event=heard)
        assert heard.outcome() == (list(range(TOTAL)), []) and result.best_index == 0
        lengths[target] = len(heard.events) - 1
    return lengths[target]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_killed_fork_server_changes_nothing_of_the_result(instant: int, target: str) -> None:
    at = 1 + instant * (await length_of_a_clean_run(target) - 1) // ALL
    machine = machine_for(target)
    heard = Listening(lambda events: len(events) == at, lambda: kill_server(machine))
    result = await tune(machine=machine, compile=machine.compile, on_event=heard)
    assert heard.outcome() == (list(range(TOTAL)), [])
    assert (result.best_index, result.measured, result.failed, result.remaining) == (0, TOTAL, 0, 0)
    lost = [e for e in heard.of(Warned) if "fork server was lost" in e.message]
    assert lost or instant == ALL - 1  # then next to nothing is left to do


async def test_a_fork_server_that_is_killed_while_it_imports_is_replaced() -> None:
    machine = machine_for("c")
    async with machine.open():
        kill_server(machine)
        target, devices = await machine.discover()
    assert target.kind == "c" and len(devices) == 1


async def test_a_second_loss_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    journal, machine = tmp_path / "j", machine_for("c")

    def after_a_measurement(events: list[Event]) -> bool:
        """At the first measurement, and at the first after the loss that follows."""
        if not isinstance(events[-1], CandidateMeasured):
            return False
        before = events[:-1]
        lost = next((n for n, e in enumerate(before) if isinstance(e, Warned) and "lost" in e.message), None)
        return not any(isinstance(e, CandidateMeasured) for e in (before if lost is None else before[lost:]))

    heard = Listening(after_a_measurement, lambda: kill_server(machine))
    with pytest.raises(MachineError, match=r"(?s)fork server ended.*the server before it was lost, too.*atune resume"):
        await tune(machine=machine, compile=SETTINGS, journal=journal, on_event=heard)
    kept = {e.index: e.timing for e in heard.of(CandidateMeasured)}
    assert kept and not heard.of(BuildFailed, BenchmarkFailed)
    result = await resume(journal, machine=machine_for("c"))
    assert (result.measured, result.failed, result.best_index) == (TOTAL, 0, 0)
    measured = [e for e in read(journal) if isinstance(e, CandidateMeasured)]
    assert kept.items() <= {e.index: e.timing for e in measured}.items() and len(measured) == TOTAL
    assert replay(journal).best_index == 0


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], object]]:
    with stand_in(tmp_path_factory.mktemp("bin")) as says:
        yield says


async def test_fewer_workers_go_on_after_kills_for_want_of_memory(
    compiler: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts, then kills; here a file counts, and two workers are killed."""
    kills = tmp_path / "kills"
    kills.mkdir()
    monkeypatch.setattr("atune.workers.local.machine.oom_kills", lambda: len(list(kills.iterdir())))
    compiler(f"{{ mkdir {kills}/1 || mkdir {kills}/2; }} 2>/dev/null && kill -KILL $PPID && sleep 300\n")
    heard = Listening(lambda events: False, lambda: None)
    settings = CompileSettings(workers=4, group_size=1, store=False)
    result = await tune(machine=machine_for("c", settings), compile=settings, on_event=heard)
    assert heard.outcome() == (list(range(TOTAL)), []) and result.best_index == 0
    warnings = [e.message for e in heard.of(Warned)]
    assert [f"{n} at once" in message for n, message in zip((2, 1), warnings, strict=True)] == [True, True]

"""Processes that are killed, on every machine: their candidates are tried again, and fail only if they are at fault."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_runs import Run
from lost_kernels import DYING, TOTAL
from stand_in_compiler import stand_in

from atune.engine import run_state
from atune.errors import MachineError
from atune.frontends.compile_all import compile_candidates
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    BuildFailed,
    CompileRepeated,
    Event,
    GroupSplit,
    Warned,
)
from atune.journal.reader import read
from atune.model.candidate import config_key, numbered
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine, Script, Stage
from atune.workers.local_machine import LocalMachine
from atune.workers.server import shutdown
from atune.workload.pickling import parse_file_ref

pytestmark = pytest.mark.anyio
KERNELS = f"{Path(__file__).parents[1] / 'lost_kernels.py'}:WORKLOAD"
TOGETHER = CompileSettings(workers=1, group_size=4, store=False)
IN_PAIRS = CompileSettings(workers=2, group_size=2, store=False)
ALWAYS = 99
Act = Callable[[list[Event]], None]
"""What a test does with the events so far, at each event."""


def machine_for(target: str = "c", compile: CompileSettings = IN_PAIRS) -> LocalMachine:
    return LocalMachine(parse_file_ref(KERNELS), target=target, compile=compile)


async def finished(machine: Any, compile: CompileSettings = IN_PAIRS, act: Act | None = None, **options: Any) -> Run:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if act is not None:
            act(events)

    run = Run(await tune(machine=machine, compile=compile, on_event=listen, **options), events, [])
    assert run.result.best_index == 0 and not run.of(BenchmarkFailed)
    return run


def all_but(*indices: int) -> list[int]:
    return [index for index in range(TOTAL) if index not in indices]


class Deaths:
    """Has compile workers die at the candidates of its choice. A folder has an entry for each death that is left."""

    def __init__(self, folder: Path, compiler: Callable[[str], object]) -> None:
        self.folder, self.compiler = folder, compiler
        self.script: dict[int, tuple[Stage, int]] = {}

    def at(self, index: int, stage: Stage, times: int, how: str = "kill -KILL $PPID") -> None:
        self.script[index] = stage, times
        left = [self.folder / f"{stage}-{index}-{number}" for number in range(times)]
        for one in left:
            one.touch()
        if stage == "build":  # the worker is the compiler's parent
            key = config_key({"x": index})
            die = " || ".join(f"rm {one}" for one in left)
            self.compiler(
                f'for a; do case "$a" in *.cpp) if grep -q {key} "$a"; then\n'
                f"{{ {die}; }} 2>/dev/null && {{ {how}; sleep 300; }}\nfi;; esac; done\n"
            )

    async def run(self, kind: str, **options: Any) -> Run:
        """Tune on a machine of `kind`, and return the finished run."""
        machine: Any
        if kind == "fake":
            machine = FakeMachine(TOTAL, Script(latency_ms=lambda c: 1.0 + c["x"], kills=self.script), workers=1)
        else:
            machine = machine_for(compile=TOGETHER)
        return await finished(machine, TOGETHER, strategy="exhaustive", **options)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Callable[[str], object]]]:
    """Yield the folder of the deaths that are left, which kernels know, and what takes the compiler's lines."""
    folder = tmp_path_factory.mktemp("deaths")
    with stand_in(tmp_path_factory.mktemp("bin")) as compiler, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DYING, str(folder))
        yield folder, compiler


@pytest.fixture
def deaths(counted: tuple[Path, Callable[[str], object]]) -> Iterator[Deaths]:
    folder, compiler = counted
    yield Deaths(folder, compiler)
    compiler("")
    for left in folder.iterdir():
        left.unlink()


@pytest.mark.parametrize("kind", ["fake", "cpu"])
async def test_a_candidate_that_is_killed_twice_while_it_is_lowered_fails_alone(
    kind: str, deaths: Deaths, tmp_path: Path
) -> None:
    """Candidate 3 is killed once, and 5 twice."""
    deaths.at(3, "lower", 1)
    deaths.at(5, "lower", 2)
    run = await deaths.run(kind, journal=tmp_path / "j")
    repeated = [e for e in read(tmp_path / "j") if isinstance(e, CompileRepeated)]
    assert [e.indices for e in repeated] == [(3,), (5,)] and all("killed" in e.reason for e in repeated)
    assert [(event.index, event.kind) for event in run.of(BuildFailed)] == [(5, "worker_lost")]
    assert run.measured() == all_but(5)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("fake", "kill -KILL $PPID"), ("cpu", "kill -TERM $PPID"), ("cpu", "kill -KILL $$"),
    ],
)  # fmt: skip
async def test_a_group_that_is_killed_while_it_compiles_is_put_back_whole(kind: str, how: str, deaths: Deaths) -> None:
    """Its worker, or the compiler that the worker waits for."""
    deaths.at(3, "build", 1, how)
    run = await deaths.run(kind)
    [repeated] = run.of(CompileRepeated)
    assert len(repeated.indices) > 1 and 3 in repeated.indices and "killed" in repeated.reason
    assert run.measured() == all_but() and not run.of(GroupSplit, BuildFailed)


@pytest.mark.parametrize(
    ("kind", "how", "failure"),
    [("fake", "", "worker_lost"), ("cpu", "kill -KILL $PPID", "worker_lost"), ("cpu", "kill -SEGV $PPID", "crash")],
)
async def test_one_that_is_killed_each_time_is_found_by_halves(
    kind: str, how: str, failure: str, deaths: Deaths
) -> None:
    """It may need more memory than there is. SIGSEGV is its own fault: nothing is repeated."""
    deaths.at(5, "build", ALWAYS, how)
    run = await deaths.run(kind)
    [failed] = run.of(BuildFailed)
    assert (failed.index, failed.kind) == (5, failure) and run.of(GroupSplit)
    assert bool(run.of(CompileRepeated)) == (failure == "worker_lost") and run.measured() == all_but(5)


async def test_compiling_alone_tries_a_killed_configuration_again() -> None:
    machine = FakeMachine(4, Script(kills={1: ("lower", 1), 2: ("build", 1)}))
    async with machine.open():
        found = await compile_candidates(machine, numbered(machine.configs), run_state.Run())
    assert [one.record.index for one in found] == [0, 1, 2, 3] and all(one.artifact is not None for one in found)


def kill_server(machine: LocalMachine) -> None:
    os.kill(machine.workers.server.pids()[0], signal.SIGKILL)


lengths: dict[str, int] = {}


@pytest.mark.parametrize("target", ["c", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("share", [0.2, 0.7])
async def test_a_killed_fork_server_changes_nothing_of_the_result(share: float, target: str) -> None:
    """Killed after this share of the events that a run has."""
    if target not in lengths:
        lengths[target] = len((await finished(machine_for(target))).events)
    machine = machine_for(target)
    run = await finished(
        machine, act=lambda events: kill_server(machine) if len(events) == int(share * lengths[target]) else None
    )
    assert run.measured() == all_but() and not run.of(BuildFailed)
    assert (run.result.measured, run.result.failed, run.result.remaining) == (TOTAL, 0, 0)
    assert [e for e in run.of(Warned) if "fork server was lost" in e.message]


async def test_a_candidate_whose_repetition_was_lost_with_all_processes_is_not_blamed() -> None:
    """Its process was killed at first, and the fork server when it was measured again."""
    machine, starts = machine_for(), list[Event]()

    def act(events: list[Event]) -> None:
        if not (isinstance(events[-1], BenchmarkStarted) and events[-1].index == 2):
            return
        starts.append(events[-1])
        [device] = machine._devices
        assert device._worker is not None
        if len(starts) == 1:
            os.kill(device._worker.pid, signal.SIGKILL)
        if len(starts) == 2:
            os.kill(device._worker.pid, signal.SIGSTOP)  # it answers no more
            kill_server(machine)

    run = await finished(machine, act=act)
    assert run.measured() == all_but() and len(starts) == 3
    assert [event.index for event in run.of(BenchmarkRepeated)].count(2) == 2


async def test_a_finalist_that_takes_all_processes_along_costs_the_final() -> None:
    """The order of the first timings stands, and nothing is left to resume."""
    result = await tune(KERNELS.replace("WORKLOAD", "IN_FINAL"), target="c", compile=IN_PAIRS)
    assert result.measured == 3 and result.best_index == 0 and not result.final
    assert any(warning.startswith("no final: ") for warning in result.warnings)


@pytest.mark.filterwarnings("ignore:running .*, which the journal names:RuntimeWarning")
async def test_a_kernel_that_takes_all_processes_along_ends_the_run_and_fails_alone(tmp_path: Path) -> None:
    """It is lowered twice, the second time while no other suspect is; the run goes on without it."""
    with pytest.raises(MachineError):
        await tune(KERNELS.replace("WORKLOAD", "LOWERED"), target="c", compile=IN_PAIRS, journal=tmp_path / "j")
    result = await resume(tmp_path / "j")
    [failed] = result.failures
    assert (failed.config, failed.kind) == ({"x": 1}, "worker_lost") and result.measured == 2


async def test_a_candidate_that_takes_all_processes_along_does_so_once_a_part(tmp_path: Path) -> None:
    for tried in range(1, 3):
        with pytest.raises(MachineError):
            await tune(KERNELS.replace("WORKLOAD", "MEASURED"), target="c", compile=IN_PAIRS, journal=tmp_path / "j")
        failed = [event.kind for event in read(tmp_path / "j") if isinstance(event, BenchmarkFailed)]
        assert failed == ["worker_lost"] * tried


@pytest.mark.filterwarnings("ignore:running .*, which the journal names:RuntimeWarning")
async def test_a_cleared_tmpdir_ends_the_run_and_blames_no_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error says what was removed, and the run goes on from its journal."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(DYING, str(tmp_path))
    (tmp_path / "clears").touch()
    with pytest.raises(MachineError, match=rf"{tmp_path}/atune-.* was removed while the run used it: .*TMPDIR.*resume"):
        await tune(KERNELS.replace("WORKLOAD", "CLEARED"), target="c", compile=IN_PAIRS, journal=tmp_path / "j")
    assert not [event for event in read(tmp_path / "j") if isinstance(event, BuildFailed | BenchmarkFailed)]
    result = await resume(tmp_path / "j")
    assert (result.measured, result.failed, result.remaining) == (3, 0, 0)
    shutdown()  # other runs have another folder

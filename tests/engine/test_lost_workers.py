"""Compile workers that something else kills: their candidates are had once more, and only then is it their doing."""

from __future__ import annotations

import pytest
from fake_runs import Run, finish

from atune.api.compile_all import compiled
from atune.engine.run_state import Signals
from atune.journal.events import BuildFailed, CompileRepeated, GroupSplit
from atune.journal.writer import read
from atune.model.artifact import Artifact
from atune.model.candidate import Candidate, config_key
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine, Script
from atune.testing.script import Stage

pytestmark = pytest.mark.anyio
TOGETHER = CompileSettings(group_size=8)


async def run_of(kills: dict[int, tuple[Stage, int]], workers: int = 2) -> Run:
    script = Script(latency_ms=lambda config: 1.0 + config["x"], kills=kills)
    return await finish(FakeMachine(8, script, workers=workers), compile=TOGETHER)


def repeated(run: Run) -> list[tuple[int, ...]]:
    return [e.indices for e in run.of(CompileRepeated)]


@pytest.mark.parametrize("index", [0, 7])
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_kill_while_lowering_costs_nothing_the_first_time(index: int, workers: int) -> None:
    run = await run_of({index: ("lower", 1)}, workers)
    assert run.measured() == list(range(8)) and run.result.best_index == 0
    assert repeated(run) == [(index,)] and not run.of(BuildFailed)


async def test_all_killed_at_once_are_all_had_again() -> None:
    run = await run_of(dict.fromkeys(range(8), ("lower", 1)), workers=3)
    assert run.measured() == list(range(8)) and not run.of(BuildFailed)


async def test_a_candidate_that_is_killed_twice_while_lowering_fails_alone() -> None:
    run = await run_of({3: ("lower", 2)})
    [failed] = run.of(BuildFailed)
    assert (failed.index, failed.kind) == (3, "worker_lost")
    assert run.measured() == [0, 1, 2, 4, 5, 6, 7]


async def test_a_group_whose_worker_is_killed_is_put_back_whole() -> None:
    run = await run_of({3: ("build", 1)}, workers=1)
    assert run.measured() == list(range(8)) and not run.of(BuildFailed, GroupSplit)
    [members] = repeated(run)
    assert len(members) > 1 and 3 in members


async def test_one_that_has_every_worker_killed_is_found_by_halves() -> None:
    """A compile that needs more memory than there is: those beside it lose nothing."""
    run = await run_of({3: ("build", 99)}, workers=1)
    [failed] = run.of(BuildFailed)
    assert (failed.index, failed.kind) == (3, "worker_lost")
    assert run.measured() == [0, 1, 2, 4, 5, 6, 7] and run.of(GroupSplit)


async def test_what_is_put_back_is_told_in_the_journal(tmp_path) -> None:  # type: ignore[no-untyped-def]
    journal = tmp_path / "j"
    script = Script(kills={3: ("lower", 1)})
    await finish(FakeMachine(8, script), journal=journal)
    [event] = [e for e in read(journal) if isinstance(e, CompileRepeated)]
    assert event.indices == (3,) and "killed" in event.reason


async def test_compiling_alone_has_a_killed_configuration_again() -> None:
    machine = FakeMachine(4, Script(kills={1: ("lower", 1), 2: ("build", 1)}))
    candidates = [Candidate(i, config_key(config), config) for i, config in enumerate(machine.configs)]
    async with machine.open():
        answers = await compiled(machine, candidates, Signals())
    assert sorted(answers) == [0, 1, 2, 3] and all(isinstance(one, Artifact) for one in answers.values())

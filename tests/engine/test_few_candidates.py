"""Small tunings: few candidates on many workers are compiled each alone and at once, and very few are plain."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from fake_runs import finish
from workloads import scale

import atune
from atune.journal.events import ArtifactBuilt, WinnerProven
from atune.model.settings import CompileSettings
from atune.testing import FakeClock, FakeMachine, Script

pytestmark = pytest.mark.anyio
LOWER_S, COMPILE_S = 0.1, 2.0


def script(*, accelerated: bool = False) -> Script:
    return Script(lower_s=LOWER_S, compile_s=COMPILE_S, accelerated=accelerated)


@pytest.mark.parametrize("workers", [1, 2, 16])
async def test_a_single_candidate_is_compiled_once_and_held_in_no_final(workers: int) -> None:
    machine = FakeMachine(1, script(), workers=workers, clock=FakeClock())
    run = await finish(machine)
    assert (machine.lowered, machine.groups, machine.proved) == ([0], [(0,)], [])
    assert machine.finals == [] and machine.measured["fake-0"] == [0]
    [proven] = run.of(WinnerProven)
    assert proven.how == "plain" and run.result.proven


@pytest.mark.parametrize("budgeted", [False, True])
@pytest.mark.parametrize("candidates", [2, 4, 15])
async def test_few_candidates_are_compiled_each_alone_and_at_once(candidates: int, budgeted: bool) -> None:
    """Each by a worker of its own: the last library is there when the first is."""
    machine = FakeMachine(36 if budgeted else candidates, script(), workers=16, clock=FakeClock())
    events: list[atune.Event] = []
    budget = candidates if budgeted else None
    await atune.tune(machine=machine, strategy="exhaustive", budget=budget, on_event=events.append)
    built = [event for event in events if isinstance(event, ArtifactBuilt)]
    assert sorted(map(len, machine.groups)) == [1] * candidates == [len(event.indices) for event in built]
    assert len({event.worker for event in built}) == candidates
    assert machine.most_at_once["build"] == candidates
    assert machine.proved == []


async def test_more_candidates_than_workers_cost_the_proof_of_the_winner_beside_their_own() -> None:
    machine = FakeMachine(4, script(accelerated=True), workers=1, clock=FakeClock())
    await finish(machine)
    assert sorted(index for group in machine.groups for index in group) == [0, 1, 2, 3]
    assert len(machine.proved) == 1


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that has a line for each time that g++ makes a library."""
    real, log = shutil.which("g++"), tmp_path / "compiles"
    if real is None:
        pytest.skip("no g++")
    folder = tmp_path / "bin"
    folder.mkdir()
    log.touch()
    wrapper = folder / "g++"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo "$*" >> {shlex.quote(str(log))};; esac\n'
        f'exec {shlex.quote(real)} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return log


def test_the_compiler_is_started_once_for_each_of_few_candidates(compiles: Path) -> None:
    """On workers that are as many; the winner is compiled plain by that, and its kernel loads that library."""
    counts, proofs = [], []
    for candidates in (1, 2, 4):
        before = len(compiles.read_text().splitlines())
        result = atune.run(
            atune.Workload(scale, atune.Space(factor=[2], block=[8, 16, 32, 64]), arguments={"n": 512}),
            target="c", budget=candidates, strategy="exhaustive", compile=CompileSettings(workers=4, store=False),
        )  # fmt: skip
        assert result.kernel is not None
        counts.append(len(compiles.read_text().splitlines()) - before)
        proofs.append(result.proven)
    assert counts == [1, 2, 4] and proofs == [True] * 3

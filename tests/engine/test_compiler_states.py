"""A compiler state that is not known is compared once, before the final; what differs is built again by nvcc."""

from __future__ import annotations

from typing import Any

import pytest
from fake_runs import Run, slow_last, tuned

from atune.errors import NoWinner
from atune.journal.events import ArtifactBuilt, CandidateMeasured, FinalOrdered, FinalStarted, RunFinished, Warned
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio
N = 8


def script(**more: Any) -> Script:
    return slow_last(**{"cicc": True, **more})


def warnings(run: Run) -> list[str]:
    return [event.message for event in run.of(Warned) if "cicc's code for" in event.message]


def kept(run: Run) -> Any:
    [end] = run.of(RunFinished)
    return end.kernel


@pytest.mark.parametrize("workers", [1, 2, 6])
async def test_one_library_of_a_state_is_compared_before_the_final(workers: int) -> None:
    machine = FakeMachine(N, script(), workers=workers)
    run = await tuned(machine)
    assert len(machine.compared) == 1 and not warnings(run)
    assert (kept(run).compiler, kept(run).compared, run.result.best_config) == ("cicc", True, {"x": 0})


async def test_the_run_waits_for_it_before_the_final_and_no_longer() -> None:
    machine = FakeMachine(N, script(compare_s=500.0), workers=2)
    run = await tuned(machine)
    measured, final = run.when(CandidateMeasured), run.when(FinalStarted)  # by then nothing else is left
    assert 400 < final - measured <= 500 and machine.most_at_once["compare"] == 1


async def test_comparing_begins_while_others_compile_so_that_the_final_need_not_wait() -> None:
    machine = FakeMachine(40, Script(cicc=True, compare_s=5.0), workers=3)
    run = await tuned(machine)
    assert len(machine.compared) == 1 and run.when(FinalStarted) - run.when(CandidateMeasured) < 0.1


async def test_the_finalists_of_a_state_that_differs_are_built_again_by_nvcc() -> None:
    machine = FakeMachine(N, script(differs=True, compare_s=500.0, plain_ms=lambda c: 10.0 - c["x"]), workers=2)
    run = await tuned(machine)
    [warned] = warnings(run)
    assert "differs from nvcc's code (the device code)" in warned
    again = {index for event in run.of(ArtifactBuilt) if "again" in event.reason for index in event.indices}
    [final] = run.of(FinalOrdered)
    assert again == {entry.index for entry in final.entries} and kept(run).plain
    assert (run.result.best_config, run.result.latency_ms) == ({"x": 2}, 8.0)


@pytest.mark.parametrize("n_final", [0, 3])
async def test_a_winner_without_a_final_is_timed_again(n_final: int) -> None:
    machine = FakeMachine(1, script(differs=True, plain_ms=lambda c: 7.0))
    run = await tuned(machine, n_final)
    assert kept(run).plain and run.result.latency_ms == 7.0


async def test_what_gives_wrong_results_by_nvcc_is_no_winner() -> None:
    machine = FakeMachine(1, script(differs=True, plain_fails={0: "mismatch"}))
    with pytest.raises(NoWinner):
        await tuned(machine)


@pytest.mark.parametrize(
    ("more", "told"),
    [({"compare_losses": 1}, "lost while it compares"), ({"compare_fails": True}, "nvcc is scripted to")],
)
async def test_a_state_that_could_not_be_compared_is_told_and_stays_unknown(more: Any, told: str) -> None:
    machine = FakeMachine(N, script(**more), workers=2)
    run = await tuned(machine)
    [warned] = warnings(run)
    assert "could not be compared with nvcc's" in warned and told in warned and len(machine.compared) == 1
    assert kept(run).compiler == "cicc" and not kept(run).compared

"""Simulations on small recordings, whose figures can be counted by hand; and the command that shows them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from recording import Recording, Tried, read_recording
from simulate import main, simulate, simulate_run

from atune import tune
from atune.engine.strategy import Searched, make_strategy
from atune.errors import UsageError
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 8


def recording() -> Recording:
    """Candidate i takes 8 - i ms, its compile 1 s and its measuring 2 s; candidate 2 does not compile."""
    tried = {i: Tried(8.0 - i, "", 0.25, 0.75, 2.0) for i in range(N)}
    tried[2] = Tried(None, "compile", 0.25, 0.75, 0.0)
    return Recording({i: {"x": i} for i in range(N)}, tried, {}, start_s=5.0, end_s=3.0)


@pytest.mark.parametrize(
    ("workers", "devices", "wall_s"),
    [(1, 1, 5 + 1 + 3 * 2 + 3), (16, 1, 5 + 1 + 3 * 2 + 3), (16, 3, 5 + 1 + 2 + 3), (1, 3, 5 + 4 + 2 + 3)],
)
def test_workers_and_devices_take_what_they_took(workers: int, devices: int, wall_s: float) -> None:
    """Of the first four one does not compile, so that three are measured."""
    make = partial(make_strategy, "exhaustive")
    trial = simulate_run(recording(), make, Searched(recording().configs, 0, 4), workers=workers, devices=devices)
    assert trial.order == (0, 1, 2, 3) and trial.wall_s == pytest.approx(wall_s)
    assert trial.curve[-1] == 5.0 and len(trial.curve) == 4


def test_the_summary_counts_seeds_and_candidates() -> None:
    summary, _ = simulate(recording(), "exhaustive", budget=N, seeds=3, workers=1)
    assert (summary.evaluations, summary.seeds) == (8, 3)
    assert summary.within_1pct == summary.within_5pct == 1.0 and summary.regret_median == 0.0
    assert summary.evaluations_to_2pct_median == 8
    summary, _ = simulate(recording(), "exhaustive", budget=7, seeds=3, workers=1)
    assert summary.within_5pct == 0.0 and summary.regret_median == 1.0
    assert summary.evaluations_to_2pct_median is None


def test_processes_change_nothing() -> None:
    alone, trials = simulate(recording(), "bayesian", budget=5, seeds=7)
    together, others = simulate(recording(), "bayesian", budget=5, seeds=7, processes=2)
    assert alone == together and trials == others


async def recorded(path: Path) -> Path:
    script = Script(
        latency_ms=lambda c: 1.0 + c["x"], fails={3: "compile", 4: "mismatch"}, code_key=lambda c: str(max(c["x"], 1))
    )
    await tune(machine=FakeMachine(N, script), journal=path)
    return path


async def test_a_journal_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    found = read_recording(await recorded(tmp_path / "j"))
    assert sorted(found.configs) == list(range(N))
    assert [found.tried[i].reason for i in (1, 3, 4)] == ["duplicate", "compile", "mismatch"]
    assert found.tried[0].latency_ms == 1.0 and found.tried[1].latency_ms is None
    assert found.tried[0].device_s > 0 == found.tried[3].device_s and found.tried[0].lower_s > 0
    assert found.best_ms == 1.0


async def test_the_command_prints_what_a_strategy_came_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = str(await recorded(tmp_path / "j"))
    main([journal, "--strategy", "random", "--budget", "50%", "--seeds", "9", "--json"])
    data = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (data["strategy"], data["evaluations"], data["seeds"]) == ("random", 4, 9)
    assert 0 < data["within_5pct"] < 1


async def test_a_journal_in_which_nothing_was_measured_is_refused(tmp_path: Path) -> None:
    script = Script(fails=dict.fromkeys(range(N), "compile"))
    with pytest.raises(Exception, match="no candidate worked"):
        await tune(machine=FakeMachine(N, script), journal=tmp_path / "j")
    with pytest.raises(UsageError, match="nothing can be simulated"):
        read_recording(tmp_path / "j")

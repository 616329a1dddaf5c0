"""A survey as an event: small, rounded, and what a strategy gets of it."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from recording import Recording, Tried, read_recording
from simulate import main, simulate

from atune import tune
from atune.engine.search.interface import Searched
from atune.engine.search.prior import columns, estimates, fields_of_facts, figures_for, survey_fields
from atune.engine.search.strategies import Ranked
from atune.errors import UsageError
from atune.journal.events import SpaceSurveyed, decode, encode
from atune.model.artifact import Access, BlockWork, StaticFacts
from atune.model.device import DeviceInfo, Target
from atune.testing import FakeMachine, Script

H200 = DeviceInfo("0", "NVIDIA H200", arch="sm_90a")
FIGURES = figures_for(Target("cuda", "sm_90a"), [H200])


def facts(place: int) -> StaticFacts:
    work = BlockWork(
        reads=(Access(n_bytes=1e5 * (10.123456789 + place % 97), axes="x"),), threads=128, stages=place % 4
    )
    return StaticFacts(1024 * (place % 7), 128, (1000 + place, 1, 1), accumulators=place % 64, work=work)


def surveyed(count: int) -> SpaceSurveyed:
    known = {index: facts(index) for index in range(count)}
    return SpaceSurveyed(seq=0, time=0.0, mono=0.0, **columns(known, FIGURES))


def test_a_survey_of_2500_candidates_takes_a_few_100_kb_and_is_read_as_it_was_written() -> None:
    event = surveyed(2500)
    line = encode(event)
    assert len(line) < 400_000 and decode(line) == event
    assert all(value == float(f"{value:.6g}") for value in event.prior if value is not None)


def test_a_strategy_gets_the_numbers_that_the_event_has() -> None:
    event = msgspec.structs.replace(
        surveyed(3), prior=(1.0, None, 0.5), facts={"rounds": (1.0, 2.0, None), "stages": (None, 0.0, None)}
    )
    assert survey_fields(event) == {
        "prior": {0: 1.0, 2: 0.5},
        "facts": {0: {"rounds": 1.0}, 1: {"rounds": 2.0, "stages": 0.0}},
    }
    assert survey_fields(None) == {}
    assert survey_fields(msgspec.structs.replace(event, prior=(), facts={})) == {"prior": None, "facts": {}}


def test_without_figures_nothing_is_known() -> None:
    assert figures_for(Target("c"), [DeviceInfo("cpu", "CPU")]) is None
    assert fields_of_facts({0: facts(0)}, None) == {}


def test_ranked_takes_equals_and_what_is_not_estimated_by_the_seed() -> None:
    configs = {index: {"x": index} for index in range(20)}
    prior = {7: 1.0, 3: 2.0, 11: 2.0, 12: 2.0}

    def order(seed: int) -> list[int]:
        strategy = Ranked(Searched(configs, seed, None, prior))
        return list(iter(strategy.ask, None))

    assert order(0)[0] == 7 and set(order(0)[1:4]) == {3, 11, 12} and sorted(order(0)) == list(range(20))
    assert order(0) == order(0) and len({tuple(order(seed)) for seed in range(5)}) == 5


# ---- simulated


def recording(count: int = 40) -> Recording:
    """The prior's first is the best; a candidate's latency is its estimate's place."""
    known = {index: facts(index) for index in range(count)}
    scores = estimates(known, FIGURES)
    places = {index: place for place, index in enumerate(sorted(scores, key=scores.__getitem__))}
    tried = {index: Tried(1.0 + places[index], "", 1.0, 0.5, 0.25) for index in range(count)}
    configs = {index: {"x": index} for index in range(count)}
    return Recording(configs, tried, known, target=Target("cuda", "sm_90a"), devices=(H200,))


def test_a_simulation_has_the_prior_of_the_recorded_facts_and_takes_time_for_it() -> None:
    with_it, _ = simulate(recording(), "auto", budget=2, seeds=5, workers=4, prior=True)
    assert with_it.within_1pct == 1.0 and with_it.regret_median == 0.0
    without, _ = simulate(recording(), "auto", budget=2, seeds=5, workers=4)
    assert without.within_1pct < 1.0
    assert with_it.wall_s_median == pytest.approx(without.wall_s_median + 0.1 * 40 * 1.0 / 4)


def test_a_recording_of_the_cpu_is_simulated_without_a_prior() -> None:
    of_cpu = replace(recording(), target=Target("c"))
    assert simulate(of_cpu, "auto", budget=2, seeds=5, prior=True) == simulate(of_cpu, "auto", budget=2, seeds=5)


@pytest.mark.anyio
async def test_the_command_has_the_prior_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A candidate that moves fewer bytes is faster, and its estimate lower; the one with the last index moves least."""
    script = Script(latency_ms=lambda config: 99.0 - config["x"], facts=lambda config: facts(96 - config["x"]))
    await tune(machine=FakeMachine(20, script, target="sm_90a"), journal=tmp_path / "j", prior=False)
    command = [str(tmp_path / "j"), "--strategy", "prior", "--budget", "1", "--seeds", "3", "--json"]
    main(command)
    main([*command, "--no-prior"])
    with_it, without = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert with_it["within_1pct"] == 1.0 > without["within_1pct"]


@pytest.mark.anyio
async def test_facts_next_to_a_journal_are_read(tmp_path: Path) -> None:
    script = Script(latency_ms=lambda config: 1.0 + config["x"])
    await tune(machine=FakeMachine(4, script, target="sm_90a"), journal=tmp_path / "space.jsonl")
    assert read_recording(tmp_path / "space.jsonl").facts[1].work is None
    extra = tmp_path / "space.facts.json.xz"
    extra.write_bytes(lzma.compress(msgspec.json.encode({1: facts(1)})))
    found = read_recording(tmp_path / "space.jsonl")
    assert found.facts[1] == facts(1) and found.facts[2].work is None and found.target == Target("cuda", "sm_90a")
    extra.write_bytes(json.dumps({}).encode())
    with pytest.raises(UsageError, match=r"space\.facts\.json\.xz, next to the journal, cannot be read"):
        read_recording(tmp_path / "space.jsonl")

"""A survey as an event: small, rounded, and what a strategy gets of it."""

from __future__ import annotations

import msgspec

from atune.engine.search.interface import Searched
from atune.engine.search.prior import columns, figures_for, survey_fields
from atune.engine.search.strategies import Ranked
from atune.journal.events import SpaceSurveyed, decode, encode
from atune.model.artifact import Access, BlockWork, StaticFacts
from atune.model.device import DeviceInfo, Target

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


def test_ranked_takes_equals_and_what_is_not_estimated_by_the_seed() -> None:
    configs = {index: {"x": index} for index in range(20)}
    prior = {7: 1.0, 3: 2.0, 11: 2.0, 12: 2.0}

    def order(seed: int) -> list[int]:
        strategy = Ranked(Searched(configs, seed, None, prior))
        return list(iter(strategy.ask, None))

    assert order(0)[0] == 7 and set(order(0)[1:4]) == {3, 11, 12} and sorted(order(0)) == list(range(20))
    assert order(0) == order(0) and len({tuple(order(seed)) for seed in range(5)}) == 5

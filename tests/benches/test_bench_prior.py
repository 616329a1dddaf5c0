"""`bench/prior.py` and `bench/pick.py`: what the prior makes of the recordings, and of kernel functions alone."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pick import shares
from prior import REFS, TEN, judge, mean, picks_of, recorded, scores_of, working_on

import atune
from atune.stages.lowering import lower, workload
from atune.workload.workload import candidates_of

PRODUCTS = [name for name in REFS if name.startswith("gemm")]
RESULTS = Path(__file__).parents[2] / "bench" / "results"


def stored() -> dict[str, dict[str, Any]]:
    """The results of the ten first spaces, and of the problems in families."""
    return {
        name: result
        for folder in ("prior", "families")
        for name, result in json.loads((RESULTS / folder / "prior.json").read_text()).items()
    }


@pytest.mark.parametrize("name", REFS)
def test_the_prior_does_on_a_recording_what_is_stored(name: str) -> None:
    latencies = {record.index: record.latency_ms for record in recorded(name).records}
    judged = judge(scores_of(name), picks_of(name), latencies, seeds=100)

    assert judged._asdict().items() <= stored()[name].items()
    assert judged.first < judged.chance
    if name in PRODUCTS:
        assert judged.by_share >= 0.9


def test_what_is_picked_without_measuring_is_fast_on_each_recording() -> None:
    found = stored()
    assert found.keys() == REFS.keys()
    first, best = ([found[name][key] for name in TEN] for key in ("first_choice", "best_of_three"))
    assert min(first) > 0.90 and mean(first) > 0.969 and mean(best) > 0.99


def test_stored_facts_are_those_that_lowering_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    from prior import facts_of

    from atune.stages import session

    monkeypatch.setattr(session._state, "workload", None)
    monkeypatch.setattr(session._state, "session", None, raising=False)
    for name in ("gemm_odd", "attention_causal", "rms_norm"):
        with working_on(REFS[name]):
            candidate = candidates_of(workload())[7]
            facts, kept = lower(candidate).facts, facts_of(name)[7]
            length = facts.source_bytes if version("tilelang") != "0.1.15" else kept.source_bytes  # of its release
            facts = msgspec.structs.replace(facts, layouts=None)  # recordings of before have none
            assert facts == msgspec.structs.replace(kept, source_bytes=length), name


def test_judging_counts_places_ties_and_failures() -> None:
    latencies = {0: 1.0, 1: None, 2: 1.01, 3: 2.0, 4: 3.0}
    right = judge({0: 1.0, 1: 5.0, 2: 2.0, 3: 3.0, 4: 4.0}, [3, 2, 1], latencies, seeds=10)
    assert (right.candidates, right.near, right.best_at, right.first, right.rho) == (5, 2, 1, 1, 1.0)
    assert right.chance == 2.0 and right.by_share == 1.0 and right.chance_by_share == pytest.approx(0.4)
    assert (right.first_choice, right.best_of_three) == (0.5, 1 / 1.01)
    wrong = judge({0: 4.0, 1: 0.0, 2: 3.0, 3: 2.0, 4: 1.0}, [1], latencies, seeds=10)
    assert (wrong.best_at, wrong.first, wrong.rho, wrong.first_choice) == (5, 4, -1.0, 0.0)


@pytest.mark.parametrize("name", ["rms_norm", "transpose", "attention_causal", "dequant_gemm"])
def test_choices_are_as_fast_as_those_of_lowered_kernels(name: str) -> None:
    """What `atune.pick` names is what the prior makes of lowered kernels."""
    known = stored()[name]
    latencies = {record.key: record.latency_ms for record in recorded(name).records}
    found = atune.pick(REFS[name], 3, "H200")
    speeds = shares(found, latencies)
    assert found.candidates == len(latencies) and len(speeds) == 3
    assert (speeds[0], max(speeds)) == (known["first_choice"], known["best_of_three"])

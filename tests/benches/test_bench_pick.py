"""`bench/pick.py`: what `atune.pick` names from kernel functions alone is what the prior makes of lowered kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pick import shares
from prior import REFS, recorded

import atune

STORED = json.loads((Path(__file__).parents[2] / "bench" / "results" / "prior" / "prior.json").read_text())


@pytest.mark.parametrize("name", ["rms_norm", "transpose", "attention_causal", "dequant_gemm"])
def test_choices_are_as_fast_as_those_of_lowered_kernels(name: str) -> None:
    latencies = {record.key: record.latency_ms for record in recorded(name).records}
    found = atune.pick(REFS[name], 3, "H200")
    speeds = shares(found, latencies)
    assert found.candidates == len(latencies) and len(speeds) == 3
    assert (speeds[0], max(speeds)) == (STORED[name]["first_choice"], STORED[name]["best_of_three"])

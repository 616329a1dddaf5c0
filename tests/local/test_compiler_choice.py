"""Whether the compile service pays, by what is measured of this machine."""

from __future__ import annotations

import msgspec
import pytest

from atune.local.service_state import CompileCosts, choose, estimate


def test_the_choice_follows_the_costs() -> None:
    costs = CompileCosts()
    assert choose(288, 15, costs)[0]
    assert choose(48, 2, costs)[0]
    assert not choose(1, 1, costs)[0]
    slow = msgspec.structs.replace(costs, header_s=4.0)
    assert not choose(15, 15, slow)[0]  # one group each: all would wait for the headers
    _, why = choose(288, 15, costs)
    assert "288 candidates on 15 workers" in why
    assert choose(2, 1, CompileCosts(header_s=0.0))[0]


def test_costs_scale_with_the_machine() -> None:
    slow = CompileCosts().scaled(CompileCosts().lower_s * 2)
    fast_estimate, slow_estimate = estimate(288, 15, CompileCosts()), estimate(288, 15, slow)
    assert slow_estimate == pytest.approx([2 * seconds for seconds in fast_estimate])


def test_more_candidates_never_take_less_time() -> None:
    for workers in (1, 7, 15):
        estimates = [estimate(n, workers, CompileCosts())[0] for n in range(1, 400)]
        assert estimates == sorted(estimates)

"""The benchmark of warm starts: what a run is told of another recording, rightly and wrongly."""

from __future__ import annotations

import pytest
import warm_start
from warm_start import BEST, SOURCES, WORST

from atune.model.candidate import config_key
from atune.search.orders import FIRST, first_of
from atune.search.recording import Recording, Tried


def recording(latencies: dict[int, float | None]) -> Recording:
    configs = {i: {"x": i} for i in latencies}
    return Recording(configs, {i: Tried(ms) for i, ms in latencies.items()}, {}, len(configs))


def test_the_best_there_or_the_worst_come_first_here() -> None:
    here, there = recording(dict.fromkeys(range(1, 9), 1.0)), recording({0: 0.5, 1: 1.0, 2: 4.0, 3: None, 4: 2.0})
    assert warm_start.ratios(there, here, BEST) == pytest.approx({1: 2.0, 2: 8.0, 4: 4.0})
    assert warm_start.ratios(there, here, WORST) == pytest.approx({1: 4.0, 2: 1.0, 4: 2.0})


def test_a_space_and_its_sources_share_enough_for_all_that_comes_first() -> None:
    recordings = {
        name: warm_start.recorded(name) for name in {*SOURCES, *(s for each in SOURCES.values() for s in each)}
    }
    for name, sources in SOURCES.items():
        keys = {config_key(config) for config in recordings[name].configs.values()}
        for source in sources:
            shared = [config for config in recordings[source].configs.values() if config_key(config) in keys]
            assert source != name and len(shared) >= 300
            first = first_of(warm_start.ratios(recordings[source], recordings[name], BEST), 80)
            assert len(first) == FIRST

"""One store of results: what a run found, a decorated kernel takes, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
from decorated import QUICK, TUNING, doubled, scale, workload

import atune
from atune.frontends.api import cached_tune
from atune.workers.storage.result_cache import ResultCache


@pytest.fixture(autouse=True)
def folder_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))


def test_a_decorated_kernel_takes_what_a_run_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same function and space; and a run that may, takes that, too, and runs nothing."""
    space = {"factor": [1, 2], "block": [16, 64]}
    found = atune.run(workload(), target="c", benchmark=QUICK)
    [entry] = ResultCache().entries()
    assert entry.config == found.best_config and entry.parts.problem == {"n": 256}
    monkeypatch.delattr(cached_tune, "tune_apart")  # nothing may be tuned
    kernel = atune.autotune(space=space, reference=doubled, name="scale", target="c", tuning=TUNING)(scale)
    result = kernel.tune(256)
    assert result.cache_hit and result.best_config == found.best_config
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == found.latency_ms
    assert len(ResultCache().entries()) == 1


def test_a_run_takes_what_a_decorated_kernel_found() -> None:
    space = {"factor": [1, 2], "block": [16, 64]}
    kernel = atune.autotune(space=space, reference=doubled, name="scale", target="c", tuning=TUNING)(scale)
    result = kernel.tune(256)
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == result.latency_ms

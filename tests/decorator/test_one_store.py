"""One store of results: what a run found, a decorated kernel takes, and the other way round."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import QUICK, TUNING, cached_work, doubled, scale, workload

import atune
from atune.errors import NoWinner, UsageError
from atune.frontends import cached_tune
from atune.frontends.cli.main import main
from atune.frontends.cli.runs import find_journal
from atune.journal.events import BenchmarkFailed
from atune.workers.result_cache import ResultCache


@pytest.fixture(autouse=True)
def folder_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))


def decorated() -> Any:
    space = {"factor": [1, 2], "block": [16, 64]}
    return atune.autotune(space=space, reference=doubled, name="scale", target="c", tuning=TUNING)(scale)


def test_a_decorated_kernel_takes_what_a_run_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same function and space; and a run that may, takes that, too, and runs nothing."""
    found = atune.run(workload(), target="c", benchmark=QUICK)
    [entry] = ResultCache().entries()
    assert entry.config == found.best_config and entry.parts.problem == {"n": 256}
    monkeypatch.delattr(cached_tune, "tune_planned")  # nothing may be tuned
    kernel = decorated()
    result = kernel.tune(256)
    assert result.cache_hit and result.best_config == found.best_config
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == found.latency_ms
    assert len(ResultCache().entries()) == 1


def test_a_result_that_is_known_is_kept_once_and_is_the_latest(tmp_path: Path) -> None:
    found = atune.run(workload(), target="c", benchmark=QUICK)
    atune.run(workload(n=320), target="c", benchmark=QUICK)
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.journal == found.journal == find_journal("latest")
    with pytest.raises(UsageError, match="none of the"):  # before anything is recorded
        atune.run(workload(atune.Space(block=[8])), target="c", benchmark=QUICK, warm=found)
    assert len(ResultCache().runs()) == 2


def test_records_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = atune.run(workload(), target="c", benchmark=QUICK)
    kernel = decorated()
    readers, read = [], ResultCache.result

    def reading(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return read(*args)

    monkeypatch.setattr(ResultCache, "result", reading)
    assert kernel.best_config(256) == found.best_config and not readers
    assert asyncio.run(kernel.tune_async(256)).cache_hit
    assert len(readers) == 1 and threading.main_thread() not in readers


def test_a_run_takes_what_a_decorated_kernel_found() -> None:
    kernel = decorated()
    result = kernel.tune(256)
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == result.latency_ms


FILE = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import tilelang
from decorated import scale
import atune

scaled = atune.autotune(space={{"factor": [1, 2], "block": [16, 64]}}, target="c", key=lambda n: n // 256)(scale)
"""


def test_the_command_line_tunes_a_decorated_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its call then tunes nothing. The shape that was tuned stands for all of the key, and is named."""
    (tmp_path / "scaled_kernel.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["tune", f"{tmp_path}/scaled_kernel.py", "--arg", "n=256", "--target", "c", "--quiet"]) == 0
    assert main(["cache", "ls"]) == 0
    assert "key=1 (tuned for n=256)" in capsys.readouterr().out
    again = ["tune", f"{tmp_path}/scaled_kernel.py", "--target", "c", "--quiet", "--cached", "--json", "--arg"]
    for n, known in (("256", True), ("320", False)):  # of the same key, but with another library and latency
        before = ResultCache().entries()[0].created
        assert main([*again, f"n={n}"]) == 0
        result = atune.replay(json.loads(capsys.readouterr().out)["journal"])
        assert result.header and result.header.arguments == {"n": int(n)}
        assert (ResultCache().entries()[0].created == before) == known
    monkeypatch.delattr(cached_tune, "tune_planned")  # nothing may be tuned
    kernel: Any = importlib.import_module("scaled_kernel").scaled
    assert kernel.tune(256).cache_hit
    assert "(tuned for n=320)" in repr(atune.tunings())
    assert main(["tune", f"{tmp_path}/scaled_kernel.py:scaled", "--target", "c", "--quiet"]) == 2
    assert "scale lacks the argument 'n'; --arg NAME=VALUE gives an argument" in capsys.readouterr().err


def test_a_run_without_a_winner_keeps_why() -> None:
    """A decorated kernel does not try again what failed."""
    wrong = atune.Workload(scale, {"block": [16, 64]}, arguments={"n": 256}, reference=halved)
    with pytest.raises(NoWinner):
        atune.run(wrong, target="c", benchmark=QUICK)
    work = cached_work(wrong, target="c", benchmark=QUICK)
    known = ResultCache().known(work.key.work, work.configs.values())
    assert ResultCache().entries() == [] and len(known) == 2
    assert {one.kind for _, one in known.values() if isinstance(one, BenchmarkFailed)} == {"mismatch"}


def halved(A: torch.Tensor) -> torch.Tensor:
    return A / 2

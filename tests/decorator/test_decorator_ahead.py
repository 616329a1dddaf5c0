"""A decorated kernel's definition starts the processes that tuning needs, where a call may tune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import decorated
import pytest

import atune
from atune.api.cached_tune import Work
from atune.decorator import prewarm
from atune.journal.events import Event
from atune.storage.result_cache import ResultCache

Define = Callable[..., int]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Define:
    """A function that decorates a kernel, and returns how many times that asked for the processes."""

    def decorate(kernel: Any = decorated.scale_jit, **options: Any) -> int:
        asked: list[bool] = []
        monkeypatch.setattr(prewarm, "warm_early", lambda: asked.append(True))
        options = {"cache": tmp_path, "reference": decorated.doubled, **options}
        atune.autotune(space={"factor": [1, 2], "block": [16, 64]}, **options)(kernel)
        return len(asked)

    return decorate


def keep_result(folder: Path) -> None:
    """Have the cache in `folder` hold a result of `decorated.scale`."""
    events: list[Event] = []
    workload = decorated.workload()
    atune.run(workload, target="c", benchmark=decorated.QUICK, on_event=events.append)
    ResultCache(folder).put(Work(workload, target="c").key, events)


def test_a_kernel_without_a_result_starts_them(define: Define) -> None:
    assert define() == 1
    assert define(cache=False) == 1


@pytest.mark.parametrize("on_miss", ["default", "error"])
def test_a_kernel_that_no_call_tunes_starts_none(define: Define, on_miss: str) -> None:
    assert define(on_miss=on_miss) == 0


def test_a_kernel_with_a_result_starts_none(define: Define, tmp_path: Path) -> None:
    """A program that always finds its results pays nothing."""
    keep_result(tmp_path)
    assert define() == 0
    assert define(cache=False) == 1
    assert define(name="another") == 1


def test_an_edited_kernel_starts_them_again(define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_result(tmp_path)
    monkeypatch.setattr(prewarm, "kernel_fingerprint", lambda kernel: "another source")
    assert define() == 1


def test_a_kernel_that_cannot_be_read_starts_them(
    define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with it, its call says."""
    keep_result(tmp_path)

    def unreadable(kernel: Any) -> str:
        raise atune.WorkloadError("no source")

    monkeypatch.setattr(prewarm, "kernel_fingerprint", unreadable)
    assert define() == 1

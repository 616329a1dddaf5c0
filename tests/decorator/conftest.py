"""Kernels under the decorator, with small tunings and a result cache of the test's own; and a stand-in engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decorated import TUNING, scale_jit
from stand_in_engine import Engine

import atune
from atune.frontends.api import cached_tune as cached
from atune.frontends.decorator import winners


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(cached, "tune_apart", fake)
    monkeypatch.setattr(winners, "tune_apart", fake)
    return fake


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Any]:
    def decorate(kernel: Any = scale_jit, space: Any = None, **options: Any) -> Any:
        space = {"block": [16, 64]} if space is None else space
        return atune.autotune(kernel, **{"space": space, "tuning": TUNING, "cache": tmp_path / "cache", **options})

    return decorate

"""These tests run on both event loops."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a fork server, whose workers can import `pool_targets`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    return str(tmp_path / "run")

"""The loop-delay benchmark sees what holds the event loop up, and where."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from loop_delay import OVERDUE_S, Probe

from atune.journal import writer
from atune.journal.writer import Journal


def test_a_block_is_measured_and_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_s = 20 * OVERDUE_S

    async def work() -> None:
        Journal.start(tmp_path / "journal")[0].close()

    monkeypatch.setattr(writer, "_sync_folder", lambda path: time.sleep(held_s))
    probe = Probe()
    anyio.run(probe.watched, work)
    figures = probe.figures()
    assert figures["max_ms"] >= 1e3 * held_s - 5
    assert any("writer.py" in place for found in figures["longest"] for place in found["at"])

"""SIGKILL of the whole process tree at random instants."""

from __future__ import annotations

from pathlib import Path

import anyio
from crashing import Crash, finish, one_round

ROUNDS = 3


def test_nothing_measured_is_lost_or_repeated_and_the_end_is_the_same(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    anyio.run(finish, whole)
    found = Crash()
    for seed in range(ROUNDS):
        one_round(tmp_path, seed, whole, found)
    assert found.kills >= ROUNDS and found.measurements > 0

"""The recipe of docs/scale.md for machines that share nothing: each tunes a shard, and the journals are merged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from atune.cli.main import main
from atune.journal.events import CandidateMeasured, CandidateProposed
from atune.journal.reader import read

KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
SPACE = 5
"""Candidates."""


def shards_of(folder: Path, count: int) -> list[str]:
    """Tune each shard of `count` with a command of its own, and return the journals."""
    journals = [str(folder / f"shard{number}.jsonl") for number in range(1, count + 1)]
    options = ["--target", "c", "--no-store", "--workers", "1", "--quiet"]
    for number, journal in enumerate(journals, 1):
        shard = ["--shard", f"{number}/{count}", "--journal", journal]
        assert main(["tune", f"{KERNELS}:SCALED", *shard, *options]) == 0
    return journals


def measured(journal: str) -> Counter[str]:
    """Return how often the journal has a measurement of each configuration."""
    events = read(journal)
    keys = {event.index: event.key for event in events if isinstance(event, CandidateProposed)}
    return Counter(keys[event.index] for event in events if isinstance(event, CandidateMeasured))


def merged(journals: list[str], output: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    """Merge with the command; return what it says as JSON, and its warnings of candidates with several outcomes."""
    capsys.readouterr()
    assert main(["merge", *journals, "-o", output, "--json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), [line for line in said.err.splitlines() if "several outcomes" in line]


def test_each_command_tunes_a_shard_and_a_last_one_makes_one_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journals, whole, again = shards_of(tmp_path, 2), str(tmp_path / "whole.jsonl"), str(tmp_path / "again.jsonl")
    parts = [measured(journal) for journal in journals]
    result, warned = merged(journals, whole, capsys)
    assert sorted(map(len, parts)) == [2, 3] and measured(whole) == parts[0] + parts[1]
    assert set(measured(whole).values()) == {1} and not warned
    assert (result["measured"], result["total"], result["remaining"]) == (SPACE, SPACE, 0)

    result, warned = merged([whole, *journals], again, capsys)
    assert len(warned) == 1 and f"in the 3 journals: {SPACE}; {SPACE} were measured more than once" in warned[0]
    assert (result["measured"], result["total"]) == (SPACE, SPACE)

"""Rebuild a result from its journal alone: no GPU, no tilelang, none of the workload's code."""

from __future__ import annotations

from pathlib import Path

from atune.journal import JournalReader
from atune.result import TuneResult


def replay(path: str | Path) -> TuneResult:
    """Return the result that the journal at `path` holds, also of a run that was interrupted or still goes on.

    Imports and executes nothing that the journal names. Raises `JournalError` where it cannot be read or is damaged
    before its last line.
    """
    return TuneResult.from_events(JournalReader(path), Path(path), replayed=True)

"""A g++ on PATH that does first what a test says, and then what g++ does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def stand_in(folder: Path) -> Iterator[Callable[[str], object]]:
    """Put it on PATH, and yield what takes lines of shell: they run ahead of each compile."""
    script, before = folder / "g++", folder / "before"
    script.write_text(f'#!/bin/sh\n. {before}\nPATH="${{PATH#*:}}" exec g++ "$@"\n')
    script.chmod(0o755)
    before.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield before.write_text

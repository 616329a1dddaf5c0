"""The spaces of bench/spaces: each recording is of the whole space, and their names are read without torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from spaces import FOLDER, PROBLEMS, SPACES, SUFFIX, opened

from atune.journal.reader import replay


@pytest.mark.parametrize("name", [*SPACES, *PROBLEMS])
def test_a_recording_is_of_the_whole_space(name: str) -> None:
    path = FOLDER / f"{name}{SUFFIX}"
    assert path.stat().st_size < 4 << 20
    with opened(name) as journal:
        result = replay(journal)
    space = (SPACES | PROBLEMS)[name]
    assert result.finished and result.total == space.total and result.remaining == 0
    file = os.path.normpath(f"bench/spaces/{space.file}")
    assert result.header is not None and result.header.origin == f"{file}:{space.name}"


def test_names_of_spaces_are_read_without_torch() -> None:
    code = "import sys, spaces; assert not {'torch', 'tilelang'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, check=True, timeout=60)

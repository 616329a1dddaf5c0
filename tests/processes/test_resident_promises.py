"""A session is a fork server: the fork server's own tests pass with sessions of a resident server in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.asked
@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", ["test_pool", "test_daemons"])
def test_the_fork_servers_promises_are_kept_by_sessions(module: str, tmp_path: Path) -> None:
    env = {**os.environ, "ATUNE_PROMISES": str(tmp_path / "used"), "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    env.pop("ATUNE_SERVER", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "resident_promises",
         str(TESTS / "processes" / f"{module}.py")],
        cwd=TESTS.parent, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    sessions, own = map(int, (tmp_path / "used").read_text().split())
    assert sessions > own

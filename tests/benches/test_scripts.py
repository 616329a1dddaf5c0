"""Each script of the benchmarks starts and says what it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
TAKES_OPTIONS = ("parse_args()", "parse_args(arguments)", "= options(")
SCRIPTS = sorted(
    path.name
    for path in BENCH.glob("*.py")
    if path.stem != "common" and any(call in path.read_text() for call in TAKES_OPTIONS)
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr

"""Each script of the benchmarks starts and says what it takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
TAKES_OPTIONS = ("parse_args()", "parse_args(arguments)", "= options(")
COMMANDS = [
    found
    for page in ("README.md", "results/README.md")
    for found in re.findall(r"`python bench/([\w.]+)([^`]*)`", (BENCH / page).read_text())
]
"""The commands of both pages: a script, and what it is given."""
SCRIPTS = sorted(
    {script for script, _ in COMMANDS}
    | {
        path.name
        for path in BENCH.glob("*.py")
        if path.stem != "common" and any(call in path.read_text() for call in TAKES_OPTIONS)
    }
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
    given = " ".join(given for name, given in COMMANDS if name == script)
    assert set(re.findall(r"--[\w-]+", given)) <= set(re.findall(r"--[\w-]+", done.stdout))

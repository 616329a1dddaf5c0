"""Each script that the pages of the benchmarks name starts, and takes the options that they give it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
COMMAND = re.compile(r"`python bench/([\w.]+)([^`]*)`")
COMMANDS = [found for page in ("", "results") for found in COMMAND.findall((BENCH / page / "README.md").read_text())]


@pytest.mark.parametrize("script", sorted({script for script, _ in COMMANDS}))
def test_a_script_explains_itself(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
    given = " ".join(given for name, given in COMMANDS if name == script)
    assert set(re.findall(r"--[\w-]+", given)) <= set(re.findall(r"--[\w-]+", done.stdout))

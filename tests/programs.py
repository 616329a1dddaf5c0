"""Programs of tests; and scripts that run one after the other in one, which imports tilelang once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from processes import environment

TOGETHER = """
import contextlib, io, json, runpy, sys, traceback
printed = {}
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), write_through=True)) as output:
        try:
            runpy.run_path(name, run_name="__main__")
        except BaseException:
            traceback.print_exc(file=sys.stdout)
    printed[name] = output.buffer.getvalue().decode()
print(json.dumps(printed))
"""


def printed_by(
    scripts: Iterable[str], folder: Path, environment: Mapping[str, str], options: Iterable[str] = ()
) -> dict[str, str]:
    """Return by name what each script prints in `folder`. A traceback is at the end of what it prints if it fails."""
    done = subprocess.run(
        [sys.executable, *options, "-c", TOGETHER, *scripts], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout)
    return printed


def python(*words: str | Path, folder: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `words` in `folder`, and with `more` in its environment; the tests' helpers are on its path."""
    command = [sys.executable, *map(str, words)]
    env = environment() | more
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=170)

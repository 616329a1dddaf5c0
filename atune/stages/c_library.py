"""Libraries of our own in C, made where they are used."""

from __future__ import annotations

import shutil
from pathlib import Path


def command(source: Path, library: str, *options: str) -> list[str]:
    """Return the command that compiles `source` to the shared library `library`."""
    compiler = shutil.which("gcc") or "cc"
    return [compiler, "-O1", "-w", "-shared", "-fPIC", *options, str(source), "-o", library, "-ldl"]

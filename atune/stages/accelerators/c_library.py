"""Libraries of our own in C, made where they are used."""

from __future__ import annotations

import shutil
from collections.abc import Sequence


def command(sources: Sequence[str], library: str, *options: str) -> list[str]:
    """Return the command that compiles `sources` to the shared library `library`."""
    compiler = shutil.which("gcc") or "cc"
    return [compiler, "-O1", "-w", "-shared", "-fPIC", *options, *sources, "-o", library, "-ldl"]

"""Has tilelang count threads without z3, which it asks for one thread after another.

Three such counts are a quarter to a half of what lowering a pipelined kernel costs with 128 or 256 threads, and nearly
all of it with 1024. `counting.c` evaluates the constraints on the thread's index where that decides the outcome, and
leaves everything else to z3; the code that comes of it is the same. For the one release of tilelang that atune works
with; `ATUNE_COUNT_BY_Z3=1` leaves it off.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from atune.stages import c_library

OFF = "ATUNE_COUNT_BY_Z3"
SOURCE = Path(__file__).with_name("counting.c")


class Build:
    """A compile of `counting.c` under way. It takes a moment in which the server imports torch."""

    def __init__(self, z3: Path, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.z3, self.folder = z3 / "lib" / "libz3.so", folder
        self.path = os.path.join(folder.name, "counting.so")
        command = c_library.command(SOURCE, self.path, "-fexceptions", f"-I{z3 / 'include'}")
        self.compiler = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def load(self) -> ctypes.CDLL:
        """Wait for the compiler and put the library's functions before z3's. Raises OSError where it cannot be."""
        with self.folder:
            if status := self.compiler.wait():
                raise OSError(f"the compiler ended with status {status}")
            library = ctypes.CDLL(self.path)
            if not library.atune_counting_begin(os.fsencode(self.z3)):
                raise OSError(f"{self.z3} lacks a function")
            return ctypes.CDLL(self.path, mode=ctypes.RTLD_GLOBAL)


_build: Build | None = None
_library: ctypes.CDLL | None = None


def begin() -> None:
    """Start making the library, in a process that has not loaded tilelang yet."""
    global _build
    spec = importlib.util.find_spec("z3")
    if os.environ.get(OFF, "0") not in ("", "0") or "tvm" in sys.modules or spec is None:
        return
    with suppress(OSError):  # no compiler, or no place for it: z3 counts
        _build = Build(Path((spec.submodule_search_locations or [""])[0]), tempfile.TemporaryDirectory())


def load() -> None:
    """Load the library that `begin` had made, ahead of tilelang's own. Without it, z3 counts."""
    global _library
    if _build is not None:
        try:
            _library = _build.load()
        except OSError as error:
            print(f"threads are counted by z3: {error}", file=sys.stderr)


def answered() -> int:
    """Return how often this thread's counts have spared z3 an answer."""
    return 0 if _library is None else int(_library.atune_counting_answered())

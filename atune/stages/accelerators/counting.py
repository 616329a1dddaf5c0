"""Has tilelang count threads without z3, which it asks for one thread after another, and disprove without it.

Three such counts are a quarter to a half of what lowering a pipelined kernel costs with 128 or 256 threads, and nearly
all of it with 1024. `counting.c` answers for z3 where the threads are a range. What z3 is asked to prove is nearly
always wrong: `witness.c` finds an example. Both leave the rest to z3, so that the code is the same. For the one release
of tilelang that atune works with; `ATUNE_ASK_Z3=1` leaves them off.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from atune.stages.accelerators import c_library
from atune.system.folders import SERVER_FOLDER

T = TypeVar("T")
OFF = "ATUNE_ASK_Z3"
COUNTS = 1
"""What `counting.c` says where z3 was spared a count that may matter."""
SOURCES = tuple(str(Path(__file__).with_name(name)) for name in ("counting.c", "witness.c"))


class Build:
    """A compile of the library under way. It takes a moment in which the server imports torch."""

    def __init__(self, z3: Path, folder: str) -> None:
        self.z3, self.path = z3 / "lib" / "libz3.so", os.path.join(folder, "counting.so")
        command = c_library.command(SOURCES, self.path, "-fexceptions", f"-I{z3 / 'include'}")
        self.compiler = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def load(self) -> ctypes.CDLL:
        """Wait for the compiler and put the library's functions before z3's. Raises OSError where it cannot be."""
        try:
            if status := self.compiler.wait():
                raise OSError(f"the compiler ended with status {status}")
            library = ctypes.CDLL(self.path)
            if not library.atune_counting_begin(os.fsencode(self.z3)):
                raise OSError(f"{self.z3} lacks a function")
            return ctypes.CDLL(self.path, mode=ctypes.RTLD_GLOBAL)
        finally:
            Path(self.path).unlink(missing_ok=True)


_build: Build | None = None
_library: ctypes.CDLL | None = None


def begin() -> None:
    """Start making the library in the fork server's folder, in a process that has not loaded tilelang yet."""
    global _build
    spec, folder = importlib.util.find_spec("z3"), os.environ.get(SERVER_FOLDER)
    if os.environ.get(OFF, "0") not in ("", "0") or "tvm" in sys.modules or spec is None or not folder:
        return
    with suppress(OSError):  # no compiler: z3 is asked everything
        _build = Build(Path((spec.submodule_search_locations or [""])[0]), folder)


def load() -> None:
    """Load the library that `begin` had made, ahead of tilelang's own. Without it, z3 is asked everything."""
    global _library
    if _build is not None:
        try:
            _library = _build.load()
        except OSError as error:
            print(f"z3 counts and is asked everything: {error}", file=sys.stderr)


class Worth:
    """Whether witnesses are worth their while in a run: a kernel that comes to be in doubt is lowered again.

    They spare a third of a lowering, and a doubt costs as much as one.
    """

    def __init__(self) -> None:
        self.run, self.lowered, self.doubted = "", 0, 0

    def begin(self, run: str) -> None:
        if run != self.run:
            self.run, self.lowered, self.doubted = run, 0, 0

    def __bool__(self) -> bool:
        return 4 * self.doubted <= self.lowered + 4

    def add(self, doubted: bool) -> None:
        self.lowered += 1
        self.doubted += doubted


_worth = Worth()


def settled(lower: Callable[[], T], run: str = "") -> T:
    """Return what `lower` does; where z3, which remembers what it was asked, may have come to less, lower anew.

    That includes where it raised: tilelang refuses numbers of threads that are cut short. `run`: within one, it is
    learned whether to look for witnesses.
    """
    if _library is None:
        return lower()
    _worth.begin(run)
    counts, witnesses = True, bool(_worth)
    try:
        while True:
            _library.atune_counting_off(not counts, not witnesses)
            _library.atune_counting_doubtful()
            result, error = None, None
            try:
                result = lower()
            except Exception as raised:
                error = raised
            doubt = _library.atune_counting_doubtful()
            if witnesses:
                _worth.add(bool(doubt & ~COUNTS))
            if not doubt or not (counts or witnesses):
                break
            counts, witnesses = counts and witnesses and not doubt & COUNTS, False
    finally:
        _library.atune_counting_off(False, False)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def found() -> int:
    """Return for how many of this thread's questions a witness was found, so that z3 was not asked."""
    return 0 if _library is None else int(_library.atune_witness_found())


def answered() -> int:
    """Return how often this thread's counts have spared z3 an answer."""
    return 0 if _library is None else int(_library.atune_counting_answered())

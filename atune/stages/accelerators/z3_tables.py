"""Has z3 begin with small tables, in the processes that lower.

Each of z3's contexts begins with two hash tables of half a million cells, all of which it writes: 16 MB, for the few
hundred terms that tilelang asks about. That is 1 to 3 ms, some twenty times a kernel: a fifth of lowering. No setting
of z3's changes it. So here the numbers are changed where they stand in the library, in this process's memory alone, for
the one build that pip installs for tilelang. Tables grow as they fill, as they always do, and terms are only looked up
in them. As much memory is allocated as before, though little of it is used: with less, z3 was seen to take other steps.
(A table that grows is allocated anew, a small one sooner than a large one. Where z3 copies a table to a smaller one, in
its SAT tactic, that is large as before.) What is not byte for byte as it is known, or must not be written, is left
alone; `ATUNE_LARGE_Z3_TABLES=1` leaves all of it alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

OFF = "ATUNE_LARGE_Z3_TABLES"
CELL = 16
"""Bytes of a cell of z3's ``chashtable``: the next cell of its chain, and a term."""
SLOTS, CELLAR = 1 << 19, 1 << 13
"""Cells that a table of ``ast_manager`` begins with: those that hashes lead to, and those for what collides."""
FEWER_SLOTS = 1 << 13
FLAGS = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}

Edit = tuple[int, bytes, bytes]
"""An offset in the library, the bytes there, and what they become."""
Segment = tuple[int, int, int, int]
"""Of the library in memory: its start, its end, its offset in the file, and its protection."""


def _edits() -> list[Edit]:
    """Return what is changed in z3-solver 4.15.4.0 for Linux on x86-64: three constructors and their two constants."""

    def both(before: bytes, value: int, fewer: int) -> tuple[bytes, bytes]:
        return before + value.to_bytes(4, "little"), before + fewer.to_bytes(4, "little")

    cells, fewer_cells = SLOTS + CELLAR, FEWER_SLOTS + CELLAR
    table_end = both(b"\x48\x8d\x90", cells * CELL, fewer_cells * CELL)  # lea rdx, [rax + …]
    cellar_at = both(b"\x48\x81\xc1", SLOTS * CELL, FEWER_SLOTS * CELL)  # add rcx, …
    slots, all_cells = both(b"", SLOTS, FEWER_SLOTS), both(b"", cells, fewer_cells)
    found: list[Edit] = []
    for places, (before, after) in (
        ((0x30E584, 0xF3CF02, 0xF3D2D0), table_end),
        ((0x30E5AC, 0xF3CF2C, 0xF3D2FC), cellar_at),
        ((0xFDD820,), all_cells),
        ((0xFDD824, 0xFDD850), slots),
    ):
        found += [(place, before, after) for place in places]
    return found


def shrink() -> bool:
    """Make the tables of contexts to come small, where z3 is loaded and as it is known. Tells whether they are.

    Nothing else may be at work with z3 in this process meanwhile.
    """
    if os.environ.get(OFF, "0") not in ("", "0"):
        return False
    with suppress(OSError, ValueError):
        return _apply(_segments(), _edits())
    return False


def _segments() -> list[Segment]:
    """Return the segments of the one ``libz3.so`` in this process; none where there is another one, too."""
    found: list[Segment] = []
    files = set()
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            span, flags, offset, _, _, *path = line.split(maxsplit=5)
            if path and os.path.basename(path[0].strip()).startswith("libz3.so"):
                start, end = (int(address, 16) for address in span.split("-"))
                found.append((start, end, int(offset, 16), sum(bit for flag, bit in FLAGS.items() if flag in flags)))
                files.add(path[0])
    return found if len(files) == 1 else []


def _apply(segments: Sequence[Segment], edits: Iterable[Edit]) -> bool:
    """Make all of `edits` or none. Raises OSError where the memory must not be written."""
    writes: list[tuple[int, bytes]] = []
    pages: dict[int, int] = {}
    for offset, before, after in edits:
        inside = (s for s in segments if s[2] <= offset and offset + len(before) <= s[2] + s[1] - s[0])
        start, _, begins, protection = next(inside, (0, 0, 0, 0))
        address = start + offset - begins
        if not protection & mmap.PROT_READ or ctypes.string_at(address, len(before)) != before:
            return False
        writes.append((address, after))
        for page in range(address & -mmap.PAGESIZE, address + len(after), mmap.PAGESIZE):
            pages[page] = protection
    opened: list[int] = []
    try:
        # Code stays executable meanwhile: a system that forbids memory to be both refuses this, and nothing is lost.
        for page, protection in pages.items():
            _protect(page, protection | mmap.PROT_WRITE)
            opened.append(page)
        for address, after in writes:
            ctypes.memmove(address, after, len(after))
    finally:
        for page in opened:
            with suppress(OSError):
                _protect(page, pages[page])
    return True


def _protect(page: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), protection):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

"""What z3's contexts take, in the process that asks; an entry point for workers."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import platform
from pathlib import Path


def known() -> bool:
    """Tell whether this is the build of z3 whose tables can be made small."""
    return importlib.metadata.version("z3-solver") == "4.15.4.0" and platform.machine() == "x86_64"


def context_mb() -> tuple[float, float]:
    """Return what z3 takes a new context to have allocated, and what of it is in memory. Each context is kept."""
    (path,) = {path for path, _, _ in permissions()}
    library = ctypes.CDLL(path)
    library.Z3_get_estimated_alloc_size.restype = ctypes.c_uint64
    library.Z3_mk_config.restype = library.Z3_mk_context_rc.restype = ctypes.c_void_p
    library.Z3_mk_context_rc.argtypes = [ctypes.c_void_p]

    def taken() -> tuple[float, float]:
        (rss,) = (line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Rss:"))
        return library.Z3_get_estimated_alloc_size() / 1e6, int(rss.split()[1]) * 1024 / 1e6

    config, before = library.Z3_mk_config(), taken()
    for _ in range(4):
        library.Z3_mk_context_rc(config)
    allocated, touched = ((now - then) / 4 for then, now in zip(before, taken(), strict=True))
    return allocated, touched


def touched_mb(_: bytes) -> bytes:
    """Entry point: what a new context has in memory."""
    return str(context_mb()[1]).encode()


def permissions() -> set[tuple[str, int, str]]:
    """Return the path, the offset and the permissions of each page of z3's library in this process."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, offset, _, _, *path = line.split(maxsplit=5)
        if path and "libz3" in path[0]:
            start, end = (int(address, 16) for address in span.split("-"))
            found |= {(path[0], int(offset, 16) + at, flags) for at in range(0, end - start, mmap.PAGESIZE)}
    return found

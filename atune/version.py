"""The version of atune, in one place, and those of the packages that affect its results."""

from __future__ import annotations

import functools
from contextlib import suppress

__version__ = "0.1.0"

LIBRARIES = 4
"""The way in which libraries are made. What an earlier way made, and results that were measured with it, are not
used: before 4, a library could hold a kernel that was compiled with another one's macros."""
VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of atune, its libraries and the packages that affect its results, as of the first call."""
    from importlib import metadata  # takes 10 ms, so a run imports it in a thread

    found = {"atune": __version__, "atune libraries": str(LIBRARIES)}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

"""The version of atune, and the versions of the packages that affect its results."""

from __future__ import annotations

import functools
from contextlib import suppress

__version__ = "0.1.0"

LIBRARIES = 4
"""Version of the way in which libraries are built. Libraries of earlier versions, and results measured with them, are
not used: before 4, a library could hold a kernel that was compiled with the macros of another kernel."""
VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of atune, its libraries and the packages that affect its results, as of the first call."""
    from importlib import metadata  # takes 10 ms, so a run imports it in a thread

    versions = {"atune": __version__, "atune libraries": str(LIBRARIES)}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions

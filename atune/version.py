"""The version of atune, and the versions of the packages that affect its results."""

from __future__ import annotations

import functools
from contextlib import suppress

__version__ = "0.1.0"

LIBRARIES = 4
"""The version of the code that builds libraries. Libraries of earlier versions are not used, nor are results that were
measured with them: before version 4, a kernel in a library could be compiled with another kernel's macros."""
VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of atune, its libraries and the packages that affect results, as found by the first call."""
    from importlib import metadata  # takes 10 ms, so a run imports it in a thread

    versions = {"atune": __version__, "atune libraries": str(LIBRARIES)}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions

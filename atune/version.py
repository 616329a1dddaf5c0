"""The version of atune, and the versions of the packages that affect its results."""

from __future__ import annotations

import functools
from contextlib import suppress

__version__ = "0.1.0"

LIBRARIES = 4
"""The version of the code that builds libraries. atune uses neither libraries of earlier versions nor results that were
measured with these libraries: before version 4, a kernel could be compiled with the macros of another kernel."""
VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of atune, its libraries and the packages that affect results. The first call reads them."""
    from importlib import metadata  # takes 10 ms, so a run imports it in a thread

    versions = {"atune": __version__, "atune libraries": str(LIBRARIES)}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions

"""The version of atune, in one place, and those of the packages that affect its results."""

from __future__ import annotations

import functools
from contextlib import suppress

__version__ = "0.1.0"

VERSIONED = ("tilelang", "torch", "anyio", "msgspec", "apache-tvm-ffi")


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of atune and of the packages that affect its results, as of the first call."""
    from importlib import metadata  # takes 10 ms, so a run imports it in a thread

    found = {"atune": __version__}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

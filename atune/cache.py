"""Where atune keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return atune's folder in the user's cache: ``$XDG_CACHE_HOME/atune``, or ``~/.cache/atune``. Creates nothing."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "atune"

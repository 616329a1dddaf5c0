"""Where a winner's library stays after the run: the cache folder, by content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from atune.artifact import Artifact
from atune.cache import cache_folder


def keep(artifact: Artifact) -> Artifact:
    """Copy `artifact`'s library into the store and return the artifact as it stands there.

    Its name is its content's SHA-256, so that keeping it twice writes it once. Raises `OSError`.
    """
    data = Path(artifact.path).read_bytes()
    folder = cache_folder() / "artifacts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()}.so"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(data)
        os.replace(part, path)
    return msgspec.structs.replace(artifact, path=str(path))

"""Where a winner's library stays after the run: the cache folder, by content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from atune.artifact import Artifact, source_path
from atune.cache import artifacts_folder, is_stored, make_private_folder


def keep(artifact: Artifact) -> Artifact:
    """Copy `artifact`'s library, and the kernel's own source, into the store; return the artifact as it stands there.

    The library's name is its content's SHA-256, so that keeping it twice writes it once. Raises `OSError`.
    """
    data = Path(artifact.path).read_bytes()
    folder = artifacts_folder()
    make_private_folder(str(folder))
    path = folder / f"{hashlib.sha256(data).hexdigest()}.so"
    source = Path(source_path(artifact.path, artifact.symbol))
    if source.exists():
        _write(Path(source_path(str(path), artifact.symbol)), source.read_bytes())
    _write(path, data)
    return msgspec.structs.replace(artifact, path=str(path))


def find(artifact: Artifact) -> Artifact | None:
    """Return `artifact` where its library still lies in the store and its content is what its name says, else None."""
    return artifact if is_stored(artifact.path) else None


def _write(path: Path, data: bytes) -> None:
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(data)
        os.replace(part, path)

"""Built libraries in the cache folder, stored by content for reuse by later runs.

    artifacts/<sha256>.so                  a library; its name is its content's hash
    artifacts/<sha256>.<symbol>.source     one member's source
    artifacts/codes/<code key>.json        location of a candidate's code: library, symbol, how to call it
    artifacts/lowered/<ir key>.json        result of lowering a kernel: its code's key, and the facts about it
    artifacts/swept                        time of the last removal of unused files

Several processes may use it at once. Files appear whole, by renaming. Lookups check the library's hash before use.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from atune.model.artifact import STORED, Artifact, Lowered, source_path
from atune.model.folders import artifacts_folder, make_private_folder, store_file, whole_file

MAX_BYTES = 4 << 30
"""Most bytes of the store after trimming, which removes the least recently used libraries first."""
DAY_S = 86400.0
"""Seconds after its last use in which a library stays, because a run may still need it; and between two searches for
unused files, each of which reads the whole index."""
INDEX = ("codes", "lowered")
SWEPT = (".*.part", *(f"{name}/.*.part" for name in INDEX), "*.source", *(f"{name}/*.json" for name in INDEX))
"""Folders with files that may be unused."""


class ArtifactStore:
    """One program's view of the store. `max_bytes` bounds the libraries' size."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder or artifacts_folder()
        self.max_bytes = max_bytes

    def find(self, key: str, index: int) -> Artifact | None:
        """Return the artifact of candidate `index` stored under `key`, or None if it is missing or damaged.

        Raises `OSError` if the store cannot be used, for example if it is read-only.
        """
        try:
            found = msgspec.json.decode(self._code(key).read_bytes(), type=Artifact)
            library = self.folder / Path(found.path).name  # a name, never a path that leads elsewhere
            data = library.read_bytes()
            if f"{hashlib.sha256(data).hexdigest()}.so" != library.name:
                library.unlink()
                return None
            os.utime(library)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(found, index=index, path=str(library), seconds=0.0, why=STORED, store_key=key)

    def put(self, built: Iterable[tuple[str, Artifact]]) -> None:
        """Keep artifacts of one library, each under its code's key. Raises `OSError`."""
        library: Path | None = None
        for key, artifact in built:
            if library is None:
                library = self._keep_library(artifact)
            self._keep_source(artifact, library)
            kept = msgspec.structs.replace(artifact, path=library.name, store_key=key)
            _write(self._code(key), msgspec.json.encode(kept))

    def put_lowered(self, lowered: Lowered) -> None:
        """Store the result of lowering a kernel whose library is stored here. Raises `OSError`."""
        path = store_file(self.folder, "lowered", lowered.ir_key)
        if lowered.ir_key and not path.exists():
            _write(path, msgspec.json.encode(msgspec.structs.replace(lowered, blob=b"")))

    def keep(self, artifact: Artifact) -> Artifact:
        """Store a winner's library and source, and return the stored artifact. Raises `OSError`."""
        library = self._keep_library(artifact)
        self._keep_source(artifact, library)
        return msgspec.structs.replace(artifact, path=str(library))

    def evict(self) -> int:
        """Remove the least recently used libraries beyond `max_bytes`, but none used in `DAY_S`. Returns their number.

        This also removes codes and sources without a library, and incomplete files of dead writers.
        """
        old, removed = time.time() - DAY_S, 0
        with contextlib.suppress(OSError):
            found = sorted((s.st_mtime, s.st_size, p) for p in self.folder.glob("*.so") if (s := p.stat()))
            total = sum(size for _, size, _ in found)
            for used, size, library in found:
                if total <= self.max_bytes or used > old:
                    break
                library.unlink(missing_ok=True)  # its codes then lead nowhere, and are written anew
                total, removed = total - size, removed + 1
            swept = self.folder / "swept"
            if removed or not swept.exists() or swept.stat().st_mtime < old:
                self._sweep(old)
                swept.touch(0o600)
        return removed

    def _sweep(self, old: float) -> None:
        """Remove unused files last written before `old`. Nobody is about to complete those."""
        with contextlib.suppress(OSError):
            libraries = {path.stem for path in self.folder.glob("*.so")}
            # Codes first, because lowered results refer to codes.
            for path in itertools.chain.from_iterable(map(self.folder.glob, SWEPT)):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime > old:
                        continue
                    if path.suffix == ".part" or self._leads_nowhere(path, libraries):
                        path.unlink()

    def _leads_nowhere(self, path: Path, libraries: set[str]) -> bool:
        if path.suffix == ".source":
            return path.name.partition(".")[0] not in libraries
        try:
            if path.parent.name == "lowered":
                return not self._code(msgspec.json.decode(path.read_bytes(), type=Lowered).kept_as).exists()
            return Path(msgspec.json.decode(path.read_bytes(), type=Artifact).path).stem not in libraries
        except msgspec.MsgspecError:
            return True

    def _code(self, key: str) -> Path:
        return store_file(self.folder, "codes", key)

    def _keep_library(self, artifact: Artifact) -> Path:
        data = Path(artifact.path).read_bytes()
        path = self.folder / f"{hashlib.sha256(data).hexdigest()}.so"
        if path.exists():
            os.utime(path)
        else:
            _write(path, data)
        return path

    def _keep_source(self, artifact: Artifact, library: Path) -> None:
        source, kept = (
            Path(source_path(artifact.path, artifact.symbol)),
            Path(source_path(str(library), artifact.symbol)),
        )
        if source.exists() and not kept.exists():
            _write(kept, source.read_bytes())


def keep(artifact: Artifact) -> Artifact:
    """Store a winner's library, and return the stored artifact. Raises `OSError`."""
    return ArtifactStore().keep(artifact)


def _write(path: Path, data: bytes) -> None:
    make_private_folder(str(path.parent))
    with whole_file(path) as part:
        Path(part).write_bytes(data)

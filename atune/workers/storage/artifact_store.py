"""Built libraries in the cache folder, stored by content for reuse by later runs.

    artifacts/<sha256>.so                  a library; its name is its content's hash
    artifacts/<sha256>.<symbol>.source     one member's source
    artifacts/codes/<code key>.json        location of a candidate's code: library, symbol, how to call it
    artifacts/lowered/<ir key>.json        result of lowering a kernel: its code's key, and the facts about it
    artifacts/proofs/<code key>.json       proof that tilelang makes the same code without accelerators
    artifacts/swept                        time of the last removal of unused files
    artifacts/pins/<name>                  libraries that a program needs now; locked while it lives

Several processes may use it at once. Files appear whole, by renaming. A library is removed only if no living program
pins it. Lookups check the library's hash before use.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from atune.model.artifact import STORED, Artifact, Lowered, source_path
from atune.model.folders import artifacts_folder, is_stored, make_private_folder, store_file, whole_file

MAX_BYTES = 4 << 30
"""Most bytes of the store after trimming, which removes the least recently used libraries first."""
GRACE_S = 300.0
"""Seconds after its last use in which a library stays, because its program may be about to pin it."""
SWEEP_S = 86400.0
"""Seconds between two searches for unused files. Each search reads the whole index."""
INDEX = ("codes", "lowered", "proofs")
SWEPT = (".*.part", *(f"{name}/.*.part" for name in INDEX), "*.source", *(f"{name}/*.json" for name in INDEX))
"""Folders with files that may be unused."""


class _Proven(msgspec.Struct, frozen=True):
    """Content of a file in `proofs`: its own name, and the SHA-256 of the compared library."""

    store_key: str
    library: str


class ArtifactStore:
    """One program's view of the store. `max_bytes` bounds the libraries' size."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder or artifacts_folder()
        self.max_bytes = max_bytes
        self._pins: set[str] = set()
        self._pin_file: int | None = None
        self._pinning = threading.Lock()

    def find(self, key: str, index: int) -> Artifact | None:
        """Return the artifact of candidate `index` stored under `key`, or None if it is missing or damaged.

        It is pinned until `close`. Raises `OSError` if the store cannot be used, for example if it is read-only.
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
        self._pin(library.name)
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

    def find_proof(self, key: str, library: str) -> bool:
        """Tell whether the code under `key` in the file `library` was proven to be tilelang's own. Raises `OSError`."""
        try:
            proven = msgspec.json.decode(self._proof(key).read_bytes(), type=_Proven)
            return proven == _Proven(key, hashlib.sha256(Path(library).read_bytes()).hexdigest())
        except (FileNotFoundError, msgspec.MsgspecError):
            return False

    def put_proof(self, key: str, library: str) -> None:
        """Store the proof that the code under `key` in the file `library` is tilelang's own. Raises `OSError`."""
        digest = hashlib.sha256(Path(library).read_bytes()).hexdigest()
        _write(self._proof(key), msgspec.json.encode(_Proven(key, digest)))

    def keep(self, artifact: Artifact) -> Artifact:
        """Store a winner's library and source, and return the stored artifact. Raises `OSError`."""
        library = self._keep_library(artifact)
        self._keep_source(artifact, library)
        return msgspec.structs.replace(artifact, path=str(library))

    def evict(self) -> int:
        """Remove the least recently used libraries beyond `max_bytes`, except pinned ones. Returns their number.

        This also removes codes and sources without a library, and incomplete files of dead writers.
        """
        removed = self._evict_libraries()
        with contextlib.suppress(OSError):
            swept = self.folder / "swept"
            if removed or not swept.exists() or swept.stat().st_mtime < time.time() - SWEEP_S:
                self._sweep(time.time() - GRACE_S)
                swept.touch(0o600)
        return removed

    def _sweep(self, old: float) -> None:
        """Remove unused files last written before `old`. Nobody is about to complete those."""
        with contextlib.suppress(OSError):
            libraries = {path.stem for path in self.folder.glob("*.so")}
            # Codes first, because lowered results and proofs refer to codes.
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
                return not self._code(msgspec.json.decode(path.read_bytes(), type=Lowered).store_key).exists()
            if path.parent.name == "proofs":
                return not self._code(path.stem).exists()
            return Path(msgspec.json.decode(path.read_bytes(), type=Artifact).path).stem not in libraries
        except msgspec.MsgspecError:
            return True

    def _evict_libraries(self) -> int:
        with contextlib.suppress(OSError):
            found = sorted((s.st_mtime, s.st_size, p) for p in self.folder.glob("*.so") if (s := p.stat()))
            total, removed = sum(size for _, size, _ in found), 0
            pinned = self._pinned() if total > self.max_bytes else set()
            sources: dict[str, list[Path]] = {}
            for source in self.folder.glob("*.source") if total > self.max_bytes else ():
                sources.setdefault(source.name.partition(".")[0], []).append(source)
            for used, size, library in found:
                if total <= self.max_bytes or used > time.time() - GRACE_S:
                    break
                if library.name not in pinned:
                    for source in sources.get(library.stem, ()):
                        source.unlink(missing_ok=True)
                    library.unlink(missing_ok=True)  # its codes then lead nowhere, and are written anew
                    total, removed = total - size, removed + 1
            return removed
        return 0

    def close(self) -> None:
        """Release the pins."""
        if self._pin_file is not None:
            self._pin_path.unlink(missing_ok=True)
            os.close(self._pin_file)
            self._pin_file = None

    def _code(self, key: str) -> Path:
        return store_file(self.folder, "codes", key)

    def _proof(self, key: str) -> Path:
        return store_file(self.folder, "proofs", Path(key).name)  # a name, never a path that leads elsewhere

    def _keep_library(self, artifact: Artifact) -> Path:
        data = Path(artifact.path).read_bytes()
        path = self.folder / f"{hashlib.sha256(data).hexdigest()}.so"
        self._pin(path.name)
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

    def _pin(self, name: str) -> None:
        with self._pinning:  # callers come from several threads
            if name in self._pins:
                return
            if self._pin_file is None:
                folder = self.folder / "pins"
                make_private_folder(str(folder))
                self._pin_file, path = tempfile.mkstemp(dir=folder)
                self._pin_path = Path(path)
                fcntl.flock(self._pin_file, fcntl.LOCK_EX)
            os.write(self._pin_file, f"{name}\n".encode())
            self._pins.add(name)

    def _pinned(self) -> set[str]:
        """Return the libraries that living programs pin, and remove the pins of dead programs."""
        found: set[str] = set()
        for pin in (self.folder / "pins").glob("*"):
            with contextlib.suppress(OSError), pin.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    pin.unlink()
                except BlockingIOError:
                    found.update(file.read().decode().split())
        return found


def keep(artifact: Artifact) -> Artifact:
    """Store a winner's library, and return the stored artifact. Raises `OSError`."""
    store = ArtifactStore()
    try:
        return store.keep(artifact)
    finally:
        store.close()


def find(artifact: Artifact) -> Artifact | None:
    """Return `artifact` if the store still has its library and the content matches the name, else None."""
    return artifact if is_stored(artifact.path) else None


def _write(path: Path, data: bytes) -> None:
    make_private_folder(str(path.parent))
    with whole_file(path) as part:
        Path(part).write_bytes(data)

"""Built libraries, kept in the cache folder by content, so that what was compiled once is not compiled again.

    artifacts/<sha256>.so                  a library; its name is its content's hash
    artifacts/<sha256>.<symbol>.source     one member's source
    artifacts/codes/<code key>.json        where the code of a candidate is: library, symbol, how to call it
    artifacts/lowered/<ir key>.json        what a kernel was lowered to: its code's key, and the facts about it
    artifacts/proofs/<code key>.json       that this code is what tilelang makes with every accelerator off
    artifacts/swept                        when files that lead nowhere were last removed
    artifacts/pins/<name>                  libraries that a program needs now; locked while it lives

Safe for several processes at once: files appear whole, by renaming, and a library is removed only when it is in no
pin of a living program. Lookups hash the library before it is used.
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
from atune.system.paths import artifacts_folder, code_file, is_stored, lowered_file, make_private_folder, proof_file

MAX_BYTES = 4 << 30
"""Size that the store is cut back to, least recently used libraries first."""
GRACE_S = 300.0
"""Libraries used this recently stay: their program may be about to pin them."""
SWEEP_S = 86400.0
"""Seconds between two looks for files that lead nowhere: each reads the whole index."""
INDEX = ("codes", "lowered", "proofs")
SWEPT = (".*.part", *(f"{name}/.*.part" for name in INDEX), "*.source", *(f"{name}/*.json" for name in INDEX))
"""Files that may lead nowhere."""


class _Proven(msgspec.Struct, frozen=True):
    """What a file of `proofs` says: its own name once more, and the SHA-256 of the library that was compared."""

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
        """Return the artifact of candidate `index`, stored under `key`, where the store has it intact.

        It is pinned until `close`. Raises `OSError` where the store cannot be used, read-only for example.
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
        """Remember what a kernel was lowered to, whose library is kept here. Raises `OSError`."""
        path = lowered_file(self.folder, lowered.ir_key)
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
        """Remember that the code under `key` in the file `library` is tilelang's own. Raises `OSError`."""
        digest = hashlib.sha256(Path(library).read_bytes()).hexdigest()
        _write(self._proof(key), msgspec.json.encode(_Proven(key, digest)))

    def keep(self, artifact: Artifact) -> Artifact:
        """Keep a winner's library and source; return the artifact as it stands here. Raises `OSError`."""
        library = self._keep_library(artifact)
        self._keep_source(artifact, library)
        return msgspec.structs.replace(artifact, path=str(library))

    def evict(self) -> int:
        """Remove the least recently used libraries beyond `max_bytes`; return how many. Pinned ones stay.

        Codes that lead to no library, sources without one, and the parts of files whose writers died go too.
        """
        removed = self._evict_libraries()
        with contextlib.suppress(OSError):
            swept = self.folder / "swept"
            if removed or not swept.exists() or swept.stat().st_mtime < time.time() - SWEEP_S:
                self._sweep(time.time() - GRACE_S)
                swept.touch(0o600)
        return removed

    def _sweep(self, old: float) -> None:
        """Remove what leads nowhere and was last written before `old`, so that nobody is about to complete it."""
        with contextlib.suppress(OSError):
            libraries = {path.stem for path in self.folder.glob("*.so")}
            # Codes first: what was lowered, and what was proven, leads to those.
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
        """Let go of the pins."""
        if self._pin_file is not None:
            self._pin_path.unlink(missing_ok=True)
            os.close(self._pin_file)
            self._pin_file = None

    def _code(self, key: str) -> Path:
        return code_file(self.folder, key)

    def _proof(self, key: str) -> Path:
        return proof_file(self.folder, Path(key).name)  # a name, never a path that leads elsewhere

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
        """Return what living programs pin; forget the pins of dead ones, whose locks ended with them."""
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
    """Keep a winner's library in the store; return the artifact as it stands there. Raises `OSError`."""
    store = ArtifactStore()
    try:
        return store.keep(artifact)
    finally:
        store.close()


def find(artifact: Artifact) -> Artifact | None:
    """Return `artifact` where its library still lies in the store and its content is what its name says, else None."""
    return artifact if is_stored(artifact.path) else None


def _write(path: Path, data: bytes) -> None:
    make_private_folder(str(path.parent))
    fd, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise

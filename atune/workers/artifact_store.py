"""The artifact store in the cache folder: built libraries and compiler states, which later runs use again.

    artifacts/<sha256>.so                  a library, named by the hash of its content
    artifacts/<sha256>.<symbol>.source     the source of one member of the library
    artifacts/codes/<code key>.json        where a candidate's code is (library, symbol), and how to call the code
    artifacts/lowered/<ir key>.json        the result of lowering a kernel: the key of its code, and facts about it
    artifacts/swept                        an empty file, written at the last eviction
    states/<digest of tools and use>.json  the latest comparison of a compiler state

If the source and the compiler state are the same, so is the code. A compiler state consists of the compilers (`tools`),
the parts of the headers that the source uses (`use`: arch, fast math, includes, kinds of wgmma), and the contents of
these headers.

Several processes may use the store at once: a file gets its name only when the file is complete, and a lookup checks a
library's hash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec

from atune.model.artifact import STORED, Artifact, Lowered, source_path
from atune.model.folders import artifacts_folder, cache_folder, make_private_folder, store_file, untrusted, whole_file
from atune.workers.resources import space_is_short

T = TypeVar("T")

MAX_BYTES = 4 << 30
"""Largest size of the store after an eviction, in bytes."""
DAY_S = 86400.0
"""Seconds that a file is kept after its last use, because a run may still need it. Also the time between evictions."""


class ArtifactStore:
    """The artifact store, as one program uses it. `max_bytes`: the size to which an eviction reduces the store."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder or artifacts_folder()
        self.max_bytes = max_bytes

    def find(self, key: str, index: int) -> Artifact | None:
        """Return the artifact stored under `key`, for candidate `index`; None if the artifact is missing or damaged.

        Raises `OSError` if the store cannot be used, for example if it is read-only, or if other users may write to it.
        """
        try:
            _check(self._code(key))
            stored = msgspec.json.decode(self._code(key).read_bytes(), type=Artifact)
            library = self.folder / Path(stored.path).name  # only the name, because a path might lead out of the folder
            _check(library)
            data = library.read_bytes()
            if f"{hashlib.sha256(data).hexdigest()}.so" != library.name:
                library.unlink()
                return None
            for used in (library, self._code(key), Path(source_path(str(library), stored.symbol))):
                os.utime(used)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(stored, index=index, path=str(library), seconds=0.0, why=STORED, store_key=key)

    def put(self, key: str, artifact: Artifact) -> None:
        """Store an artifact under the key of its code. Raises `OSError`."""
        name = Path(self.keep(artifact).path).name
        _write(self._code(key), msgspec.json.encode(msgspec.structs.replace(artifact, path=name, store_key=key)))

    def put_lowered(self, lowered: Lowered) -> None:
        """Store the result of lowering a kernel whose library is already in the store. Raises `OSError`."""
        path = store_file(self.folder, "lowered", lowered.ir_key)
        if lowered.ir_key and not path.exists():
            _write(path, msgspec.json.encode(msgspec.structs.replace(lowered, blob=b"")))

    def keep(self, artifact: Artifact) -> Artifact:
        """Store a library and its source, and return the stored artifact. Raises `OSError`."""
        data = Path(artifact.path).read_bytes()
        library = self.folder / f"{hashlib.sha256(data).hexdigest()}.so"
        _check(library)
        if library.exists():
            os.utime(library)
        else:
            _write(library, data)
        source = Path(source_path(artifact.path, artifact.symbol))
        kept = Path(source_path(str(library), artifact.symbol))
        if source.exists() and not kept.exists():
            _write(kept, source.read_bytes())
        return msgspec.structs.replace(artifact, path=str(library))

    def evict(self) -> int:
        """If the store exceeds `max_bytes`, remove the least recently used files. Keep all files used within `DAY_S`.

        Does nothing if the last eviction was less than `DAY_S` ago. Returns the number of removed libraries. After a
        library is gone, later runs ignore the files that describe it, and replace them.
        """
        old, removed, swept = time.time() - DAY_S, 0, self.folder / "swept"
        with contextlib.suppress(OSError):
            if swept.exists() and swept.stat().st_mtime > old:
                return 0
            swept.touch(0o600)
            files = sorted((s.st_mtime, s.st_size, p) for p in self.folder.rglob("*.*") if (s := p.stat()))
            total = sum(size for _, size, _ in files)
            for used, size, path in files:
                if total <= self.max_bytes or used > old:
                    break
                path.unlink(missing_ok=True)
                total, removed = total - size, removed + (path.suffix == ".so")
        return removed

    def _code(self, key: str) -> Path:
        return store_file(self.folder, "codes", key)


class StateCheck(msgspec.Struct, frozen=True):
    """The result of comparing the code from cicc with the code from nvcc. `difference` is empty if both are equal.

    `files`: the headers that the compilers read. `headers`: a digest of their contents, for the compiler state.
    """

    files: tuple[str, ...]
    headers: str
    difference: str


def _digest(*parts: str) -> str:
    """Return the SHA-256 of `parts`, shortened to 128 bits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def contents_of(files: Iterable[str]) -> str:
    """Return one digest of the contents of all `files`. Raises `OSError`."""
    return _digest(*(f"{file} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}" for file in sorted(files)))


def state_of(tools: str, use: str, headers: str) -> str:
    return _digest(tools, use, headers)


def key_in(store_key: str, state: str) -> str:
    """Return the store key of a library that was built in `state`, which is empty for nvcc and g++."""
    return _digest(store_key, state) if store_key and state else store_key


def remember(tools: str, use: str, comparison: StateCheck) -> None:
    """Store a comparison. Raises `OSError`."""
    _write(_state_file(tools, use), msgspec.json.encode(comparison))


def recall(tools: str, use: str) -> tuple[str, str] | None:
    """Return the state and the difference of the latest comparison, or None if there is no comparison for the headers
    as they are now."""
    try:
        comparison = msgspec.json.decode(_state_file(tools, use).read_bytes(), type=StateCheck)
        _check(_state_file(tools, use))
        same = contents_of(comparison.files) == comparison.headers
    except (OSError, msgspec.MsgspecError):
        return None
    return (state_of(tools, use, comparison.headers), comparison.difference) if same else None


def _state_file(tools: str, use: str) -> Path:
    return cache_folder() / "states" / f"{_digest(tools, use)}.json"


def _check(path: Path) -> None:
    if why := untrusted(path):
        raise PermissionError(errno.EPERM, why)


def _write(path: Path, data: bytes) -> None:
    make_private_folder(str(path.parent))
    _check(path)
    if space_is_short(str(path.parent)):  # the rest of the disk is kept for journals
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with whole_file(path) as part:
        Path(part).write_bytes(data)


class RunStore:
    """The artifact store, as one run uses it to find the artifacts of earlier runs, and to store new artifacts.

    If the store raises an `OSError`, for example because the disk is full, the run treats the artifact as missing,
    tells `say` the reason, and tries again at the next call. `tools`: the part of the compiler states that identifies
    the compilers; empty without cicc.
    """

    def __init__(self, store: ArtifactStore | None = None, say: Callable[[str], object] = str) -> None:
        self.tools, self._say = "", say
        self.store = store
        """The store on disk; None if the run uses no store."""
        self._states = dict[str, tuple[str, str]]()

    async def state(self, use: str) -> tuple[str, str]:
        """Return the compiler state of sources with this `use`, and how cicc's code differs from nvcc's in this state.

        Both texts are empty if no comparison was made in this state. Reads the headers once for each `use`.
        """
        if not (use and self.tools):
            return "", ""
        if use not in self._states:
            state = await anyio.to_thread.run_sync(recall, self.tools, use, abandon_on_cancel=True)
            self._states[use] = state or ("", "")
        return self._states[use]

    async def find(self, lowered: Lowered) -> Artifact | None:
        """If the store has an artifact with the code of `lowered`, return the artifact, and also store `lowered`."""
        if not lowered.store_key:
            return None
        artifact = await self._do(lambda store: store.find(lowered.store_key, lowered.index))
        state, difference = ("", "") if artifact is not None else await self.state(lowered.use)
        if state and not difference:
            key = key_in(lowered.store_key, state)
            if (artifact := await self._do(lambda store: store.find(key, lowered.index))) is not None:
                artifact = msgspec.structs.replace(artifact, compared=True)
        if artifact is not None and lowered.blob:
            await self._do(lambda store: store.put_lowered(lowered))
        return artifact and msgspec.structs.replace(artifact, roles=lowered.roles)

    async def keep(self, artifact: Artifact, lowered: Lowered) -> None:
        """Store an artifact and its lowered kernel under the artifact's `store_key`, unless the key is empty."""
        if key := artifact.store_key:
            await self._do(lambda store: store.put(key, artifact))
            await self._do(lambda store: store.put_lowered(lowered))

    async def _do(self, use: Callable[[ArtifactStore], T]) -> T | None:
        if self.store is None:
            return None
        try:
            return await anyio.to_thread.run_sync(use, self.store, abandon_on_cancel=True)
        except OSError as error:
            self._say(f"the artifact store could not be used ({error}), so the run compiles the missing libraries")
            return None

"""Built libraries in the cache folder, stored by content for reuse by later runs; and compiler states.

    artifacts/<sha256>.so                  a library; its name is its content's hash
    artifacts/<sha256>.<symbol>.source     one member's source
    artifacts/codes/<code key>.json        location of a candidate's code: library, symbol, how to call it
    artifacts/lowered/<ir key>.json        result of lowering a kernel: its code's key, and the facts about it
    artifacts/swept                        time of the last eviction
    states/<digest of tools and use>.json  the latest comparison of a compiler state

A state is what decides the code beside the source: the compilers (`tools`), what the source uses of the headers (`use`:
arch, fast math, includes, kinds of wgmma), and the contents of the headers that are read.

Several processes may use it at once. Files appear whole, by renaming. Lookups check the library's hash before use.
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
"""Most bytes of the store after an eviction."""
DAY_S = 86400.0
"""Seconds after its last use in which a file stays, because a run may still need it; and between two evictions."""


class ArtifactStore:
    """One program's view of the store. `max_bytes` bounds its size."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder or artifacts_folder()
        self.max_bytes = max_bytes

    def find(self, key: str, index: int) -> Artifact | None:
        """Return the artifact of candidate `index` stored under `key`, or None if it is missing or damaged.

        Raises `OSError` if the store cannot be used, for example if it is read-only, or if others may write it.
        """
        try:
            _check(self._code(key))
            found = msgspec.json.decode(self._code(key).read_bytes(), type=Artifact)
            library = self.folder / Path(found.path).name  # a name, never a path that leads elsewhere
            _check(library)
            data = library.read_bytes()
            if f"{hashlib.sha256(data).hexdigest()}.so" != library.name:
                library.unlink()
                return None
            for used in (library, self._code(key), Path(source_path(str(library), found.symbol))):
                os.utime(used)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(found, index=index, path=str(library), seconds=0.0, why=STORED, store_key=key)

    def put(self, built: Iterable[tuple[str, Artifact]]) -> None:
        """Keep artifacts of one library, each under its code's key. Raises `OSError`."""
        for key, artifact in built:
            name = Path(self.keep(artifact).path).name
            _write(self._code(key), msgspec.json.encode(msgspec.structs.replace(artifact, path=name, store_key=key)))

    def put_lowered(self, lowered: Lowered) -> None:
        """Store the result of lowering a kernel whose library is stored here. Raises `OSError`."""
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
        """Remove the files that were not used for longest, beyond `max_bytes`, but none used in `DAY_S`; once a day.

        Returns the number of libraries among them. A code or source without its library is a miss, and written anew.
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


# Compiler states in which cicc's code was compared with nvcc's


class StateCheck(msgspec.Struct, frozen=True):
    """How cicc's code differs from nvcc's; `difference` is empty if it does not. `files`: the headers that are read.

    `headers`: the digest of their contents, by which a later run recognises the state.
    """

    files: tuple[str, ...]
    headers: str
    difference: str


def _digest(*parts: str) -> str:
    """Return the SHA-256 of `parts`, shortened to 128 bits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def contents_of(files: Iterable[str]) -> str:
    """Return the digest of the contents of `files`. Raises `OSError`."""
    return _digest(*(f"{file} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}" for file in sorted(files)))


def state_of(tools: str, use: str, headers: str) -> str:
    """Return the key of a compiler state."""
    return _digest(tools, use, headers)


def key_in(store_key: str, state: str) -> str:
    """Return the artifact store's key of a library that was built in `state`; nvcc and g++ have none."""
    return _digest(store_key, state) if store_key and state else store_key


def remember(tools: str, use: str, comparison: StateCheck) -> None:
    """Keep a comparison. Raises `OSError`."""
    _write(_state_file(tools, use), msgspec.json.encode(comparison))


def recall(tools: str, use: str) -> tuple[str, str] | None:
    """Return the state and the difference of the latest comparison; None if there is none, or a header changed."""
    try:
        found = msgspec.json.decode(_state_file(tools, use).read_bytes(), type=StateCheck)
        _check(_state_file(tools, use))
        same = contents_of(found.files) == found.headers
    except (OSError, msgspec.MsgspecError):
        return None
    return (state_of(tools, use, found.headers), found.difference) if same else None


def _state_file(tools: str, use: str) -> Path:
    return cache_folder() / "states" / f"{_digest(tools, use)}.json"


def _check(path: Path) -> None:
    if why := untrusted(path):
        raise PermissionError(errno.EPERM, why)


def _write(path: Path, data: bytes) -> None:
    make_private_folder(str(path.parent))
    _check(path)
    if space_is_short(str(path.parent)):  # what is left is for journals
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with whole_file(path) as part:
        Path(part).write_bytes(data)


# ---- of one run


class RunStore:
    """Finds artifacts of earlier runs and keeps those of this one, and knows its compiler states.

    What raises `OSError` is not found, or not kept, and `say` is told why: the store may be read-only, full or gone, or
    the next call may work. `tools`: the compilers as a part of the states; empty where cicc is not used.
    """

    def __init__(self, store: ArtifactStore | None = None, say: Callable[[str], object] = str) -> None:
        self.tools, self._say = "", say
        self.store = store
        """None where the run uses none."""
        self._states = dict[str, tuple[str, str]]()

    async def state(self, use: str) -> tuple[str, str]:
        """Return the state of sources of this `use`, and how cicc's code differs from nvcc's in it; empty if unknown.

        Reads the headers once for each use of them.
        """
        if not (use and self.tools):
            return "", ""
        if use not in self._states:
            found = await anyio.to_thread.run_sync(recall, self.tools, use, abandon_on_cancel=True)
            self._states[use] = found or ("", "")
        return self._states[use]

    async def find(self, lowered: Lowered) -> Artifact | None:
        """Return the artifact of the same code if the store has it. Then also keep what its kernel was lowered to."""
        if not lowered.storable:
            return None
        found = await self._do(lambda store: store.find(lowered.store_key, lowered.index))
        state, difference = ("", "") if found is not None else await self.state(lowered.use)
        if state and not difference:
            key = key_in(lowered.store_key, state)
            if (found := await self._do(lambda store: store.find(key, lowered.index))) is not None:
                found = msgspec.structs.replace(found, compared=True)
        if found is not None and lowered.blob:
            await self.keep_lowered(lowered, found.store_key)
        return found and msgspec.structs.replace(found, roles=lowered.roles)

    async def keep(self, library: Iterable[Artifact]) -> None:
        """Keep artifacts of one library under their keys. Skip those without a key."""
        if good := [(one.store_key, one) for one in library if one.store_key]:
            await self._do(lambda store: store.put(good))

    async def keep_lowered(self, lowered: Lowered, key: str) -> None:
        """Keep what a kernel was lowered to. Its library must be in the store, under `key`."""
        await self._do(lambda store: store.put_lowered(msgspec.structs.replace(lowered, kept_as=key)))

    async def _do(self, use: Callable[[ArtifactStore], T]) -> T | None:
        if self.store is None:
            return None
        try:
            return await anyio.to_thread.run_sync(use, self.store, abandon_on_cancel=True)
        except OSError as error:
            self._say(f"the artifact store could not be used, and the run compiles what it lacks: {error}")
            return None

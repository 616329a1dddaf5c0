"""Results that many hosts share: a folder, or another store with `get` and `put`.

    <folder>/<first two digits of the key>/<key>

A file appears whole, by renaming, and nobody locks. It begins with a SHA-256 of its key and content: what does not fit
is no result. Whatever is wrong with a shared store is said once, and costs no run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from atune.bundle.machine import this_cpu
from atune.errors import UsageError, warn_caller
from atune.journal.events import Event, RunFinished
from atune.model.artifact import Artifact, source_path
from atune.model.folders import artifacts_folder, whole_file
from atune.workers.storage.artifact_store import keep

T = TypeVar("T")

VARIABLE = "ATUNE_SHARED_CACHE"
"""Environment variable: the folder."""
DEADLINE_S = 10.0
"""Seconds that a run waits for one answer. A store that takes longer is left alone until the program ends."""


class SharedStore(Protocol):
    """Where results are shared. Keys are hex digests, and values a few kB and the winner's library."""

    def get(self, key: str, /) -> bytes | None:
        """Return the value last put under `key`, or None."""

    def put(self, key: str, value: bytes, /) -> None:
        """Keep `value` under `key`. A reader gets all of it or nothing."""


class SharedFolder:
    """A folder, such as one of a network file system. It must exist: a missing one may be a file system unmounted."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __str__(self) -> str:
        return str(self.folder)

    def get(self, key: str, /) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            self.folder.stat()
            return None

    def put(self, key: str, value: bytes, /) -> None:
        path = self._path(key)
        with suppress(FileExistsError):
            path.parent.mkdir()
            path.parent.chmod(self.folder.stat().st_mode & 0o7777)  # whoever may write here may write there
        with whole_file(path) as part:
            Path(part).write_bytes(value)
            os.chmod(part, 0o644)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


class SharedResult(msgspec.Struct, frozen=True):
    """A result as it is shared. `events`: of its run, as the result cache packs them.

    `library`, `source`: of its winner; empty where they were not kept. `machine`: where that library runs.
    """

    events: bytes
    library: bytes = b""
    source: bytes = b""
    machine: str = ""

    def unpacked(self, events: Sequence[Event]) -> list[Event]:
        """Return `events`, its own, with the winner's library in the own artifact store, if it runs here."""
        return [self._here(e, e.kernel) if isinstance(e, RunFinished) and e.kernel else e for e in events]

    def _here(self, event: RunFinished, artifact: Artifact) -> RunFinished:
        here = msgspec.structs.replace(artifact, path=str(artifacts_folder() / Path(artifact.path).name))
        if self.library and self.machine == _machine(artifact.target) and artifact.symbol.isidentifier():
            with suppress(OSError), tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "library.so")
                path.write_bytes(self.library)
                Path(source_path(str(path), artifact.symbol)).write_bytes(self.source)
                here = keep(msgspec.structs.replace(artifact, path=str(path)))
        return msgspec.structs.replace(event, kernel=here)


def share(key: str, events: bytes, artifact: Artifact | None) -> None:
    """Put a result into the shared store, if there is one. `events`: packed. `artifact`: the winner's."""
    if (store := _store()) is None:
        return
    result = SharedResult(events)
    if artifact is not None:
        with suppress(OSError):
            library = Path(artifact.path).read_bytes()
            source = Path(source_path(artifact.path, artifact.symbol)).read_bytes()
            result = SharedResult(events, library, source, _machine(artifact.target))
    body = msgspec.msgpack.encode(result)
    store.ask("write to", lambda it: it.put(key, _digest(key, body) + body))


def find(key: str) -> SharedResult | None:
    """Return the result under `key` in the shared store, if there is one. A damaged one is left out with a warning."""
    if (store := _store()) is None or (value := store.ask("read", lambda it: _bytes(it.get(key)))) is None:
        return None
    digest, body = value[:32], value[32:]
    with suppress(msgspec.MsgspecError):
        if digest == _digest(key, body):
            return msgspec.msgpack.decode(body, type=SharedResult)
    store.warn(key, f"the result {key} in the shared cache {store.store} is damaged and left out")
    return None


def _bytes(value: bytes | None) -> bytes | None:
    """Return what a store returned. Raises `TypeError` for anything but bytes, such as a text."""
    return None if value is None else bytes(memoryview(value))


def set_shared_cache(store: SharedStore | str | os.PathLike[str] | None) -> None:
    """Share results through `store`, in place of the folder that ``$ATUNE_SHARED_CACHE`` names.

    `store`: a folder that exists, or an object with ``get(key: str) -> bytes | None`` and ``put(key: str, value:
    bytes)``, which threads call. None: share nothing. Whoever can write there runs code on the readers' machines: a
    value holds a library.

    Raises `UsageError` for anything else.
    """
    global _chosen
    if isinstance(store, (str, os.PathLike)):
        _chosen = _of_folder(os.fspath(store))
    elif store is None or (callable(getattr(store, "get", None)) and callable(getattr(store, "put", None))):
        _chosen = None if store is None else _Careful(store)
    else:
        raise UsageError(f"set_shared_cache: give a folder, or an object with get and put, got {store!r}")


class _Careful:
    """A store that a run asks. It waits for an answer up to a deadline, and warns once of each thing that is wrong."""

    def __init__(self, store: SharedStore) -> None:
        self.store, self._late, self._said = store, False, set[str]()

    def ask(self, what: str, question: Callable[[SharedStore], T]) -> T | None:
        """Return the answer of the store; None where it fails, or is late or was so before. `what`: in words."""
        if self._late:
            return None
        answers: list[T] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(question(self.store))
            except Exception as error:
                errors.append(error)

        asking = threading.Thread(target=ask, name="atune-shared-cache", daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
        if asking.is_alive():
            self._late = True
            late = f"the shared cache {self.store} did not answer within {DEADLINE_S:g} s, and is not used any more"
            self.warn("late", late)
        for error in errors:
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self.warn(why, f"cannot {what} the shared cache {self.store}: {why}. The run goes on without it")
        return answers[0] if answers else None

    def warn(self, reason: str, message: str) -> None:
        """Warn, unless it was done for this reason before."""
        if reason not in self._said:
            self._said.add(reason)
            warn_caller(message, RuntimeWarning)


_of_folder = functools.cache(lambda folder: _Careful(SharedFolder(folder)))
_UNSET = object()
_chosen: _Careful | object | None = _UNSET
"""What `set_shared_cache` was given."""


def _store() -> _Careful | None:
    if isinstance(_chosen, _Careful) or _chosen is None:
        return _chosen
    folder = os.environ.get(VARIABLE)
    return _of_folder(folder) if folder else None


def _machine(target: str) -> str:
    """Return what tells machines apart that do not run each other's libraries; those of a result share a device."""
    cpu = this_cpu()
    features = cpu["features"] if target == "c" else ()
    return " ".join([cpu["machine"], os.confstr("CS_GNU_LIBC_VERSION") or "", *features])


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()

"""Libraries that travel between the engine's host and a node: by content, so that each is sent to a node once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import msgspec

from atune.errors import WorkerError
from atune.model.artifact import Artifact, Proof, source_path
from atune.model.folders import made_folder, whole_file
from atune.model.jobs import Job

T = TypeVar("T")


class Library(msgspec.Struct, frozen=True):
    """A library that travels. `digest`: SHA-256 of `data`; `sources`: its members' sources, by symbol."""

    digest: str
    data: bytes
    sources: dict[str, bytes]

    @classmethod
    def read(cls, path: str, symbols: Sequence[str]) -> Library:
        """Read the library at `path` with the sources of `symbols`. Raises `OSError`."""
        data = Path(path).read_bytes()
        sources = {symbol: Path(source_path(path, symbol)) for symbol in symbols}
        texts = {symbol: source.read_bytes() for symbol, source in sources.items() if source.exists()}
        return cls(hashlib.sha256(data).hexdigest(), data, texts)

    def write(self, folder: str) -> str:
        """Write it to `folder` under its digest, and return the path. Raises `WorkerError` if it is damaged."""
        if hashlib.sha256(self.data).hexdigest() != self.digest:
            raise WorkerError(f"library {self.digest[:12]} arrived damaged: its content has another SHA-256")
        path = Path(folder) / f"{self.digest}.so"
        for symbol, text in self.sources.items():
            if symbol.isidentifier():  # a name, never a path that leads elsewhere
                _write(Path(source_path(str(path), symbol)), text)
        if not path.exists():
            _write(path, self.data)
        return str(path)


def _write(path: Path, data: bytes) -> None:
    """Write a file that several messages may bring at once: whoever finds it finds it whole."""
    with whole_file(path) as part:
        Path(part).write_bytes(data)


class Shelf:
    """The libraries of a run on one host. Messages name them by digest, and artifacts here by path."""

    def __init__(self) -> None:
        self.run_dir = ""
        self._digests: dict[str, str] = {}
        """Digests by path."""
        self._paths: dict[str, str] = {}
        """Paths by digest."""

    async def packed(self, value: T, known: Container[str] = ()) -> tuple[T, tuple[Library, ...]]:
        """Return `value` as it travels, and its libraries that the other side does not have `known`."""
        symbols: dict[str, list[str]] = {}

        def note(artifact: Artifact) -> Artifact:
            symbols.setdefault(artifact.path, []).append(artifact.symbol)
            return artifact

        def read() -> tuple[Library, ...]:
            wanted = {path: names for path, names in symbols.items() if self._digests.get(path) not in known}
            libraries = {path: Library.read(path, names) for path, names in wanted.items()}
            for path, library in libraries.items():
                self._digests[path] = library.digest
                self._paths.setdefault(library.digest, path)
            return tuple({library.digest: library for library in libraries.values()}.values())

        with_artifacts(value, note)
        libraries = await anyio.to_thread.run_sync(read) if symbols else ()
        return with_artifacts(value, lambda one: _moved(one, self._digests[one.path])), libraries

    async def unpacked(self, value: T, libraries: Sequence[Library]) -> T:
        """Keep `libraries`, and return `value` as it is used here. Without libraries it needs no thread.

        Raises `WorkerError` if a library is damaged, or was not sent.
        """

        def write() -> dict[str, str]:
            folder = made_folder(self.run_dir, "libraries")
            return {library.digest: library.write(folder) for library in libraries}

        if libraries:
            paths = await anyio.to_thread.run_sync(write)
            self._paths.update(paths)
            self._digests.update({path: digest for digest, path in paths.items()})
        return with_artifacts(value, self._here)

    def _here(self, artifact: Artifact) -> Artifact:
        if artifact.path not in self._paths:
            raise WorkerError(f"library {artifact.path[:12]} was not sent to this node")
        return _moved(artifact, self._paths[artifact.path])


def with_artifacts(value: T, change: Callable[[Artifact], Artifact]) -> T:
    """Return a job or an answer with its artifacts changed."""
    changed: Any = value
    if isinstance(value, Artifact):
        changed = change(value)
    elif isinstance(value, list | tuple):
        changed = type(value)(with_artifacts(one, change) for one in value)
    elif isinstance(value, Job | Proof):
        fields = {name: with_artifacts(getattr(value, name), change) for name in value.__struct_fields__}
        changed = msgspec.structs.replace(value, **fields)
    found: T = changed
    return found


def _moved(artifact: Artifact, path: str) -> Artifact:
    return msgspec.structs.replace(artifact, path=path)

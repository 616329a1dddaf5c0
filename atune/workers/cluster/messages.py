"""Messages between the engine's program and the agents on the nodes, besides the workers' jobs.

Ray pickles them. Libraries travel by content, so that each is sent to a node once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio.to_thread
import msgspec

from atune.errors import AtuneError, WorkerError, name_and_message, traceback_of
from atune.model.artifact import Artifact, source_path
from atune.model.folders import made_folder, whole_file
from atune.model.jobs import Job
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.processes.messages import Discovery
from atune.workload.pickling import WorkloadRef
from atune.workload.workload import WorkloadSpec

T = TypeVar("T")


class Opening(msgspec.Struct, frozen=True):
    """The first message to an agent: the work, the settings, and how many of the node's cores it may use."""

    workload: WorkloadRef
    target: str
    devices: tuple[str, ...]
    compile: CompileSettings
    benchmark: BenchmarkSettings
    cores: int


class DescribeJob(Job[WorkloadSpec], frozen=True):
    """Describe the workload; see `Machine.describe`."""

    seed: int = 0


class NodeFound(msgspec.Struct, frozen=True):
    """What a node has for the run. `compilers`: the number of its compile workers."""

    discovery: Discovery
    compilers: int


class DiscoverJob(Job[NodeFound], frozen=True):
    """Find the node's devices. `target`: the run's, with which only `devices` take part; empty: as in `Opening`.

    `fingerprint`: that of the workload in the run's first worker. The node refuses workers that load another one.
    """

    fingerprint: str
    target: str = ""
    devices: tuple[str, ...] = ()


class PlanJob(Job[None], frozen=True):
    """Make the workers. `no_cicc`: why they do not use cicc; empty if they do."""

    no_cicc: str


class NoticesJob(Job[list[str]], frozen=True):
    """Return messages for the user, once there are some; after `agent.NOTICE_S` at the latest."""


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
        named = (symbol for symbol in self.sources if symbol.isidentifier())  # a name, never a path elsewhere
        files = {Path(source_path(str(path), symbol)): self.sources[symbol] for symbol in named}
        for file, data in files.items() if path.exists() else (*files.items(), (path, self.data)):
            with whole_file(file) as part:  # several messages may bring it at once
                Path(part).write_bytes(data)
        return str(path)


class Reply(msgspec.Struct, frozen=True):
    """The answer to a job, or the error that it ended with. Artifacts in `answer` name their libraries by digest.

    `libraries`: these. `alive`: whether the device's process runs, if a device answered.
    """

    answer: Any = None
    libraries: tuple[Library, ...] = ()
    error: AtuneError | None = None
    alive: bool = False


def known(error: Exception) -> AtuneError:
    """Return `error` as it travels: a `WorkerError` with its traceback if atune has no such class."""
    return error if isinstance(error, AtuneError) else WorkerError(name_and_message(error), traceback_of(error))


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

        def read() -> dict[str, Library]:
            wanted = {path: names for path, names in symbols.items() if self._digests.get(path) not in known}
            libraries = {path: Library.read(path, names) for path, names in wanted.items()}
            self._keep({path: library.digest for path, library in libraries.items()})
            return {library.digest: library for library in libraries.values()}

        with_artifacts(value, note)
        libraries = await anyio.to_thread.run_sync(read) if symbols else {}
        return with_artifacts(value, self._travelling), tuple(libraries.values())

    async def unpacked(self, value: T, libraries: Sequence[Library]) -> T:
        """Keep `libraries`, and return `value` as it is used here. Without libraries it needs no thread.

        Raises `WorkerError` if a library is damaged, or was not sent.
        """

        def write() -> dict[str, str]:
            folder = made_folder(self.run_dir, "libraries")
            return {library.write(folder): library.digest for library in libraries}

        if libraries:
            self._keep(await anyio.to_thread.run_sync(write))
        return with_artifacts(value, self._here)

    def _keep(self, digests: dict[str, str]) -> None:
        self._digests.update(digests)
        for path, digest in digests.items():
            self._paths.setdefault(digest, path)

    def _here(self, artifact: Artifact) -> Artifact:
        if artifact.path not in self._paths:
            raise WorkerError(f"library {artifact.path[:12]} was not sent to this node")
        return msgspec.structs.replace(artifact, path=self._paths[artifact.path])

    def _travelling(self, artifact: Artifact) -> Artifact:
        return msgspec.structs.replace(artifact, path=self._digests[artifact.path])


def with_artifacts(value: T, change: Callable[[Artifact], Artifact]) -> T:
    """Return a job or an answer with its artifacts changed."""
    changed: Any = value
    if isinstance(value, Artifact):
        changed = change(value)
    elif isinstance(value, list | tuple):
        changed = type(value)(with_artifacts(one, change) for one in value)
    elif isinstance(value, Job):
        fields = {name: with_artifacts(getattr(value, name), change) for name in value.__struct_fields__}
        changed = msgspec.structs.replace(value, **fields)
    return cast(T, changed)

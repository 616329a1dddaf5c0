"""What the engine's program and the agents on the nodes say to each other, as msgpack."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune import errors
from atune.engine.interfaces import GroupFailed
from atune.model.artifact import (
    Artifact,
    Built,
    Elaborated,
    Failure,
    KernelParam,
    Lowered,
    Proof,
    StaticFacts,
    source_path,
)
from atune.model.candidate import Candidate, Config
from atune.model.device import DeviceInfo
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery
from atune.system.folders import whole_file
from atune.workload.workload import WorkloadRef, WorkloadSpec


class Opening(msgspec.Struct, frozen=True):
    """The first message to an agent: the work, the settings, and how many of the node's cores it may use."""

    workload: WorkloadRef
    target: str
    devices: tuple[str, ...]
    compile: CompileSettings
    benchmark: BenchmarkSettings
    cores: int


class NodeFacts(msgspec.Struct, frozen=True):
    """What an agent answers to that. `python`: the version, such as ``3.12``."""

    host: str
    python: str
    versions: dict[str, str]


class Known(msgspec.Struct, frozen=True):
    """The workload as the run's first worker loaded it: the texts of its modules, and its fingerprint."""

    workload: WorkloadRef
    fingerprint: str


class Described(msgspec.Struct, frozen=True):
    """A node's description of the workload, and what the other nodes are told of it."""

    spec: WorkloadSpec
    known: Known


class Part(msgspec.Struct, frozen=True):
    """What a node does in a run: the run's target, and the devices that it measures with."""

    target: str
    devices: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """What the run decided once all nodes were known."""

    accelerators: tuple[str, ...]
    no_service: str


class Ranking(msgspec.Struct, frozen=True):
    """Candidates for a user's prior, which is `name`, packed in `prior`."""

    name: str
    prior: bytes
    candidates: dict[int, tuple[Config, StaticFacts]]


class Group(msgspec.Struct, frozen=True):
    """Candidates to compile into one library."""

    members: tuple[Lowered, ...]


class ExactGroup(msgspec.Struct, frozen=True):
    """Candidates to compile as tilelang does, and what lowering made of those where it is known."""

    candidates: tuple[Candidate, ...]
    known: dict[int, Lowered]


class Proving(msgspec.Struct, frozen=True):
    """A candidate to compile with every accelerator off, and the library that was measured.

    `lowered`: see `CompileWorker.prove`.
    """

    candidate: Candidate
    measured: Artifact
    lowered: Lowered | None = None


class Measuring(msgspec.Struct, frozen=True):
    """A candidate to measure, and the best latency so far."""

    artifact: Artifact
    best_ms: float | None


class Finalists(msgspec.Struct, frozen=True):
    """Candidates of the final, how many rounds, and whether the reference takes part."""

    artifacts: tuple[Artifact, ...]
    rounds: int
    with_reference: bool


class Timed(msgspec.Struct, frozen=True):
    """What a final came to: an entry or a failure for each finalist, in order, and the reference's timing."""

    entries: tuple[FinalEntry | None, ...]
    failures: tuple[Failure | None, ...]
    reference: Timing | None


class DeviceState(msgspec.Struct, frozen=True):
    """A device worker after a call."""

    alive: bool
    took_over: bool


ENTRIES: Mapping[str, tuple[Any, Any]] = {
    "describe": (bool, Described),
    "adopt": (Known, None),
    "look_up": (list[int], list[Candidate | None]),
    "discover": (None, Discovery),
    "take_part": (Part, Discovery),
    "plan": (Plan, tuple[int, int]),
    "expect": (int, None),
    "lower": (Candidate, Lowered | Failure),
    "elaborate": (list[Candidate], list[Elaborated | Failure]),
    "rank": (Ranking, dict[int, float]),
    "find": (Lowered, Artifact | None),
    "build": (Group, list[Built]),
    "build_exact": (ExactGroup, list[Built]),
    "prove": (Proving, Proof | Failure),
    "start": (None, DeviceInfo),
    "prepare": (tuple[KernelParam, ...], Timing | None),
    "measure": (Measuring, Measurement | Failure),
    "final": (Finalists, Timed),
    "outputs": (Artifact, list[bytes]),
    "notices": (None, list[str]),
}
"""An agent's entries, each with the types of its question and of its answer."""


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
        """Write it to `folder` under its digest, and return the path. Raises `WorkerError` where it is damaged."""
        if hashlib.sha256(self.data).hexdigest() != self.digest:
            raise errors.WorkerError(f"library {self.digest[:12]} arrived damaged: its content has another SHA-256")
        path = Path(folder) / f"{self.digest}.so"
        for symbol, text in self.sources.items():
            if symbol.isidentifier():  # a name, never a path that leads elsewhere
                _write(Path(source_path(str(path), symbol)), text)
        if not path.exists():
            _write(path, self.data)
        return str(path)


def _write(path: Path, data: bytes) -> None:
    """Write a file that several questions may bring at once: who finds it finds it whole."""
    with whole_file(path) as part:
        Path(part).write_bytes(data)


class Question(msgspec.Struct, frozen=True):
    """A call of an agent. `worker`: the compile worker's number or the device's id, where one is meant.

    `libraries`: those that the question's artifacts name by digest and the node has not seen yet.
    """

    entry: str
    body: bytes
    worker: int | str = ""
    libraries: tuple[Library, ...] = ()


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What came of a call. Artifacts in `body` name their libraries by digest; `libraries` has these."""

    body: bytes
    libraries: tuple[Library, ...] = ()
    device: DeviceState | None = None


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The exception that a call ended with. `doubt` and `outside`: those of `GroupFailed` and `WorkerLost`."""

    kind: str
    message: str
    detail: str = ""
    doubt: str = ""
    outside: bool = False
    device: DeviceState | None = None


Reply = Answer | Raised


def raised(error: Exception, device: DeviceState | None = None) -> Raised:
    """Return `error` as it travels."""
    return Raised(
        kind=type(error).__name__,
        message=errors.message_of(error),
        detail=getattr(error, "detail", "") or ("" if known(error) else errors.traceback_of(error)),
        doubt=getattr(error, "doubt", ""),
        outside=getattr(error, "outside", False),
        device=device,
    )


def known(error: Exception) -> bool:
    """Tell whether `error` arrives as what it is."""
    return isinstance(error, (errors.AtuneError, GroupFailed))


def error_of(reply: Raised) -> Exception:
    """Return the exception that `reply` stands for; one of no class of atune's is a `WorkerError`."""
    if reply.kind == GroupFailed.__name__:
        return GroupFailed(reply.message, reply.doubt)
    kind = getattr(errors, reply.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.AtuneError)):
        return errors.WorkerError(f"{reply.kind}: {reply.message}", reply.detail)
    if issubclass(kind, errors.ServerLost):
        return kind(reply.message, reply.detail)
    if issubclass(kind, errors.WorkerLost):
        return kind(reply.message, reply.detail, outside=reply.outside)
    if issubclass(kind, errors.WorkerError):
        return kind(reply.message, reply.detail)
    return kind(reply.message)


def artifacts_of(value: Any) -> list[Artifact]:
    """Return the artifacts in a question or an answer."""
    if isinstance(value, Artifact):
        return [value]
    if isinstance(value, Proof):
        return [value.plain] if value.plain is not None else []
    if isinstance(value, Proving):
        return [value.measured]
    if isinstance(value, Measuring):
        return [value.artifact]
    if isinstance(value, Finalists):
        return list(value.artifacts)
    return [one for one in value if isinstance(one, Artifact)] if isinstance(value, list) else []


def with_paths(value: Any, paths: Mapping[str, str]) -> Any:
    """Return a question or an answer whose artifacts' paths are replaced by `paths`."""

    def moved(artifact: Artifact) -> Artifact:
        return msgspec.structs.replace(artifact, path=paths[artifact.path])

    if isinstance(value, Artifact):
        return moved(value)
    if isinstance(value, Proof):
        return value if value.plain is None else msgspec.structs.replace(value, plain=moved(value.plain))
    if isinstance(value, Proving):
        return msgspec.structs.replace(value, measured=moved(value.measured))
    if isinstance(value, Measuring):
        return msgspec.structs.replace(value, artifact=moved(value.artifact))
    if isinstance(value, Finalists):
        return msgspec.structs.replace(value, artifacts=tuple(map(moved, value.artifacts)))
    if isinstance(value, list):
        return [moved(one) if isinstance(one, Artifact) else one for one in value]
    return value

"""The machine of a run on a cluster: its nodes, the nodes' workers, and the messages between the engine and the nodes.

The engine makes all decisions. `ray_cluster` has the agent that runs on each node.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import anyio
import anyio.to_thread
import msgspec

from atune.engine.interfaces import CompileHints, ignored
from atune.errors import (
    AtuneError,
    MachineError,
    ServerLost,
    TargetError,
    WorkerError,
    name_and_message,
    traceback_of,
)
from atune.model.artifact import Artifact, source_path
from atune.model.device import DeviceInfo, Target
from atune.model.folders import made_folder, run_folder, whole_file
from atune.model.jobs import A, Job, Started, StartJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.version import installed_versions
from atune.workers.local_machine import compile_hints
from atune.workers.messages import Discovery
from atune.workers.waiting import Deadline, background
from atune.workers.workers import STAYS
from atune.workload.pickling import WorkloadRef
from atune.workload.workload import WorkloadSpec

T = TypeVar("T")
STALL_S = 30.0
"""Seconds of silence after which a node counts as lost. Agents answer at least every `ray_cluster.NOTICE_S` seconds."""


class NodeLost(AtuneError):
    """The node ended or became unreachable before it answered. Calls that were still running must be repeated."""


def none_left(causes: Iterable[str]) -> MachineError:
    """Return the error for a run that has lost all its nodes, with the causes and the way to continue the run."""
    return MachineError(f"every node was lost: {'; '.join(causes)}. {STAYS}")


class Agent(Protocol):
    """The connection to a node's agent."""

    name: str
    """The node's name, which is unique in the run."""

    async def ask(self, method: str, *arguments: Any) -> Reply:
        """Call a method of the agent, and return its reply. Raises `NodeLost`. Cancelling ends the call on the node."""

    def kill(self) -> None:
        """End the agent and all its processes, without waiting. Open calls raise `NodeLost` immediately."""


# ---- the messages, which Ray pickles


class Opening(msgspec.Struct, frozen=True):
    """The first message to an agent: the work, the settings, and how many of the node's cores the agent may use."""

    workload: WorkloadRef
    target: str
    devices: tuple[str, ...]
    compile: CompileSettings
    benchmark: BenchmarkSettings
    cores: int


class Library(msgspec.Struct, frozen=True):
    """The content of a library in a message. `sources`: the source of each member of the library, by symbol."""

    data: bytes
    sources: dict[str, bytes]


class Reply(msgspec.Struct, frozen=True):
    """The reply to a call: either the answer and its libraries by path, or the error that the method raised. `alive`:
    the devices whose processes are running."""

    answer: Any = None
    libraries: dict[str, Library] = {}
    error: AtuneError | None = None
    alive: tuple[str, ...] = ()


def sendable(error: Exception) -> AtuneError:
    """Return `error` if atune defines its class, and otherwise a `WorkerError` with its message and traceback."""
    return error if isinstance(error, AtuneError) else WorkerError(name_and_message(error), traceback_of(error))


async def libraries_of(value: object) -> dict[str, Library]:
    """Read the libraries of all artifacts in a job or an answer, and return the libraries by path. Raises `OSError`."""
    artifacts = list[Artifact]()

    def note(artifact: Artifact) -> Artifact:
        artifacts.append(artifact)
        return artifact

    with_artifacts(value, note)
    return await anyio.to_thread.run_sync(_read, artifacts, abandon_on_cancel=True) if artifacts else {}


def _read(artifacts: list[Artifact]) -> dict[str, Library]:
    sources: dict[str, dict[str, bytes]] = {}
    for artifact in artifacts:
        source, of_library = Path(source_path(artifact.path, artifact.symbol)), sources.setdefault(artifact.path, {})
        if source.exists():
            of_library[artifact.symbol] = source.read_bytes()
    return {path: Library(Path(path).read_bytes(), texts) for path, texts in sources.items()}


async def arrived(value: T, libraries: Mapping[str, Library], run_dir: str) -> T:
    """Write `libraries` below `run_dir`. Return `value`, a job or an answer, with the new paths in its artifacts."""
    if not libraries:
        return value
    folder = made_folder(run_dir, "libraries")
    paths = await anyio.to_thread.run_sync(
        lambda: {path: _write(library, folder) for path, library in libraries.items()}, abandon_on_cancel=True
    )
    return with_artifacts(value, lambda artifact: msgspec.structs.replace(artifact, path=paths[artifact.path]))


def _write(library: Library, folder: str) -> str:
    """Write a library to a file named by the SHA-256 of its content, and return the file's path."""
    path = Path(folder) / f"{hashlib.sha256(library.data).hexdigest()}.so"
    named = (symbol for symbol in library.sources if symbol.isidentifier())  # a path might lead out of the folder
    files = {Path(source_path(str(path), symbol)): library.sources[symbol] for symbol in named}
    for file, data in files.items() if path.exists() else (*files.items(), (path, library.data)):
        with whole_file(file) as part:  # several messages may bring the library at the same time
            Path(part).write_bytes(data)
    return str(path)


def with_artifacts(value: T, change: Callable[[Artifact], Artifact]) -> T:
    """Return `value`, a job or an answer, after replacing each artifact in it by the result of `change`."""
    changed: Any = value
    if isinstance(value, Artifact):
        changed = change(value)
    elif isinstance(value, list | tuple):
        changed = type(value)(with_artifacts(item, change) for item in value)
    elif isinstance(value, Job):
        fields = {name: with_artifacts(getattr(value, name), change) for name in value.__struct_fields__}
        changed = msgspec.structs.replace(value, **fields)
    return cast(T, changed)


class Node:
    """A node of a run. `discovery`: the target and devices. `compilers`: the number of the node's compile workers."""

    def __init__(self, agent: Agent, run_dir: str, on_loss: Callable[[Node], None]) -> None:
        self.agent, self.name = agent, agent.name
        self.lost = ""
        """Why the run no longer uses the node; empty while the run uses the node."""
        self.discovery: Discovery
        self.compilers = 0
        self._run_dir, self._on_loss = run_dir, on_loss
        self._alive: tuple[str, ...] = ()
        self._silence = Deadline(STALL_S)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the agent. Raises `NodeLost`, or the error that the method raised."""
        if self.lost:
            raise NodeLost(self.lost)
        try:
            reply = await self.agent.ask(method, *arguments)
        except NodeLost as error:
            self.lose(str(error))
            raise NodeLost(self.lost) from error
        self._alive = reply.alive
        if isinstance(reply.error, MachineError):  # the node lacks disk space or memory, which other nodes may have
            self.lose(str(reply.error))
            raise NodeLost(self.lost) from reply.error
        if reply.error is not None:
            raise reply.error
        return await arrived(reply.answer, reply.libraries, self._run_dir)

    async def run(self, job: Job[A], worker: int | str) -> A:
        libraries = {} if self.lost else await libraries_of(job)
        return cast(A, await self.ask("run", job, worker, libraries))

    async def discover(self, *arguments: Any) -> None:
        """Have the agent find the node's devices and create the node's workers."""
        self.discovery, self.compilers = await self.ask("discover", *arguments)

    async def watch(self, notice: Callable[[str], None]) -> None:
        """Pass on the agent's messages until the node is lost. A node that is silent for `STALL_S` counts as lost.

        Time while this program is stopped does not count as silence.
        """
        async with background() as tasks:
            tasks.start_soon(self._listen, notice)
            while not self.lost:
                try:
                    await self._silence.wait(anyio.sleep_forever)
                except TimeoutError:
                    self.lose(f"it did not answer for {STALL_S:g} s")

    async def _listen(self, notice: Callable[[str], None]) -> None:
        with suppress(NodeLost):
            while True:
                self._silence = Deadline(STALL_S)
                for message in await self.ask("notices"):
                    notice(f"{self.name}: {message}")

    def lose(self, why: str) -> None:
        """Stop using the node. A second call does nothing."""
        if not self.lost:
            self.lost = f"node {self.name} was lost: {why}"
            self.agent.kill()
            self._on_loss(self)

    def alive(self, device: str) -> bool:
        """Tell whether a device's process was running when the node last answered."""
        return not self.lost and device in self._alive

    def named(self, info: DeviceInfo) -> DeviceInfo:
        """Return `info` with the device's name in the run, ``NODE/ID``."""
        return msgspec.structs.replace(info, id=f"{self.name}/{info.id}")


class ClusterCompileWorker:
    """A compile worker of a node. If the node is lost, a worker of another node repeats the job and does later jobs.

    `places`: for each compile worker of the run, the node, and the worker's number on the node. `index`: the index of
    this worker's place.
    """

    def __init__(self, index: int, places: Sequence[tuple[Node, int]]) -> None:
        self.name, self._index, self._places = f"compile-{index}", index, places

    async def run(self, job: Job[A]) -> A:
        """Have the node do `job`. Raises the error of the job, or `MachineError` if no node is left."""
        while True:
            node, number = self._place()
            try:
                return await node.run(job, number)
            except NodeLost:
                continue

    def _place(self) -> tuple[Node, int]:
        own = self._places[self._index]
        living = [place for place in self._places if not place[0].lost]
        if not living:
            raise none_left(dict.fromkeys(node.lost for node, _ in self._places))
        return living[self._index % len(living)] if own[0].lost else own


class ClusterDeviceWorker:
    """A device of a node. `info` has the device's name on the node. The device's name in the run is ``NODE/ID``."""

    def __init__(self, node: Node, info: DeviceInfo) -> None:
        self.node, self._id = node, info.id
        self.info = node.named(info)
        self.name = self.info.id

    @property
    def alive(self) -> bool:
        return self.node.alive(self._id)

    async def run(self, job: Job[A]) -> A:
        """Have the device's process do `job`. If the node is lost, raises a `WorkerError` that blames no candidate."""
        try:
            answer: Any = await self.node.run(job, self._id)
        except NodeLost as error:
            lost = WorkerError if isinstance(job, StartJob) else ServerLost
            raise lost(str(error)) from error
        if isinstance(answer, Started):
            self.info = self.node.named(answer.device)
            answer = msgspec.structs.replace(answer, device=self.info)
        return cast(A, answer)


NO_NVCC = "it has no device for this run, and no nvcc for compiling"


def target_of(discoveries: Iterable[Discovery]) -> Target:
    """Return the target for a run on these nodes. GPUs take precedence over CPUs. Raises `TargetError` if the nodes
    have several models of devices."""
    discoveries = list(discoveries)
    kind = "cuda" if any(node.target.kind == "cuda" for node in discoveries) else "c"
    of_kind = [node for node in discoveries if node.target.kind == kind]
    with_devices = [node for node in of_kind if node.devices]
    models = sorted({device.name for node in with_devices for device in node.devices})
    if len(models) > 1:
        raise TargetError(
            f"the cluster has devices of several models, whose timings cannot be compared: {', '.join(models)}. Start "
            "a separate Ray cluster for the nodes of each model"
        )
    return min((node.target for node in with_devices or of_kind), key=str)


Connect = Callable[[Opening], AbstractAsyncContextManager[tuple[Sequence[Agent], Sequence[str]]]]
"""Starts agents on the nodes, yields the agents and the reasons why nodes are left out, and then ends the agents."""


class ClusterMachine:
    """The compile workers and device workers of a run on the nodes where `connect` starts agents.

    The other parameters are those of `LocalMachine`, but `CompileSettings.workers` and `devices` apply to each node.
    """

    sleep = staticmethod(anyio.sleep)

    def __init__(
        self,
        connect: Connect,
        workload: WorkloadRef,
        *,
        spec: WorkloadSpec | None = None,
        target: str = "auto",
        devices: Sequence[str] = ("all",),
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
    ) -> None:
        self._connect, self.spec = connect, spec
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self._opening = Opening(workload, target, tuple(devices), self.compile, self.benchmark, cores=0)
        self.nodes: list[Node] = []
        self._warn: Callable[[str], None] = ignored
        self._discovery: Discovery
        self._fingerprint = ""
        """The workload's fingerprint, computed by the node that described the workload."""
        self._describing = anyio.Lock()
        self._wake: Callable[[], None] = ignored

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Start an agent on every node. At the end of the context, end the agents and all their processes."""
        self._warn, self._wake = warn, wake
        with run_folder() as run_dir:
            async with self._connect(self._opening) as (agents, left_out), background() as tasks:
                self.nodes = [Node(agent, run_dir, self._lose) for agent in agents]
                for why in left_out:
                    warn(why)
                for node in self.nodes:
                    tasks.start_soon(node.watch, lambda message: self._warn(message))
                try:
                    yield
                finally:
                    self._warn = ignored
            shutil.rmtree(run_dir, ignore_errors=True)

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        async with self._describing:  # `discover` may ask at the same time
            while not self._fingerprint:
                if not self._living:
                    raise none_left(node.lost for node in self.nodes)
                with suppress(NodeLost):  # another node describes the workload instead
                    spec: WorkloadSpec = await self._living[0].ask("describe", seed)
                    self._fingerprint = spec.fingerprint
                    if self.spec is None or not self.spec.configs:
                        self.spec = spec
        assert self.spec is not None
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        """Ask every node for its devices, and choose the run's target and devices. A node that has no device of the
        target only compiles. Raises `TargetError` as `target_of` does."""
        await self.describe()
        without: dict[str, TargetError] = {}

        async def ask(node: Node) -> None:
            try:
                await node.discover(self._fingerprint)
            except TargetError as error:
                without[node.name] = error

        await self._everywhere(ask)
        discoveries = [node.discovery for node in self._living if node.name not in without]
        if not discoveries:
            raise without[min(without)]
        target = target_of(discoveries)
        await self._everywhere(lambda node: self._have_compile(node, target, without.get(node.name)))
        devices = tuple(node.named(info) for node in self._living for info in node.discovery.devices)
        self._discovery = msgspec.structs.replace(self._living[0].discovery, devices=devices)
        for remark in filter(None, (self._discovery.untested, self._discovery.fallback)):
            self._warn(remark)
        return target, list(devices)

    async def _have_compile(self, node: Node, target: Target, why: TargetError | None) -> None:
        """If a node has no device for the run, have it compile for other nodes. If the node cannot compile, leave the
        node out. `why`: the error that the node raised about the requested devices; None if there was no error."""
        if why is None and node.discovery.target == target:
            return
        lacks = str(why) if target.kind == "c" else ""  # the node has no g++
        if not lacks:
            await node.discover(self._fingerprint, target.arch, ())
            lacks = "" if node.discovery.nvcc else NO_NVCC
        if lacks:
            self.nodes.remove(node)
            node.lost = f"node {node.name} is left out: {lacks}"
            node.agent.kill()
            self._warn(node.lost)
        elif why is not None:
            self._warn(f"node {node.name} only compiles: {why}")

    async def prepare(self, candidates: int) -> None:
        """Do nothing, because each node already has its workers, and decides for itself whether to use cicc."""

    def compile_workers(self) -> list[ClusterCompileWorker]:
        """Return one worker for each compile worker on any node. Successive workers are on different nodes."""
        places = [(node, number) for node in self._living for number in range(node.compilers)]
        places.sort(key=lambda place: place[1])
        return [ClusterCompileWorker(index, places) for index in range(len(places))]

    def device_workers(self) -> list[ClusterDeviceWorker]:
        return [ClusterDeviceWorker(node, info) for node in self._living for info in node.discovery.devices]

    def versions(self) -> dict[str, str]:
        return installed_versions()

    def hints(self, measuring: int) -> CompileHints:
        """Return the scheduler's hints. The hints reserve no cores, because each node reserves its own cores."""
        return compile_hints(self._discovery)

    @property
    def _living(self) -> list[Node]:
        return [node for node in self.nodes if not node.lost]

    def _lose(self, node: Node) -> None:
        """Continue without a lost node, and warn of the loss in one line."""
        left = len(self._living)
        rest = f"{left} of {len(self.nodes)} nodes are left, and they repeat the lost node's unfinished work"
        self._warn(f"{node.lost}. {rest if left else 'No node is left'}")
        self._wake()

    async def _everywhere(self, ask: Callable[[Node], Awaitable[None]]) -> None:
        """Call `ask` for all living nodes at once. Of several errors, raise the error of the node whose name sorts
        first."""
        errors: dict[str, Exception] = {}

        async def ask_node(node: Node) -> None:
            try:
                await ask(node)
            except NodeLost:
                pass
            except Exception as error:
                errors[node.name] = error

        async with anyio.create_task_group() as tasks:
            for node in self._living:
                tasks.start_soon(ask_node, node)
        if errors:
            raise errors[min(errors)]
        if not self._living:
            raise none_left(node.lost for node in self.nodes)

"""The agent on a node: runs the stages of this machine for an engine elsewhere.

Everything that may crash or hang is a process of the node's own fork server. So deadlines are kept here, whatever the
network does, and nothing outlives the agent: the fork server ends with the process that it belongs to.
"""

from __future__ import annotations

import platform
import socket
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from atune.cluster.messages import (
    ENTRIES,
    Answer,
    Described,
    DeviceState,
    ExactGroup,
    Finalists,
    Group,
    Known,
    Library,
    Measuring,
    NodeFacts,
    Opening,
    Part,
    Plan,
    Proving,
    Question,
    Ranking,
    Reply,
    Timed,
    artifacts_of,
    raised,
    with_paths,
)
from atune.errors import WorkerError
from atune.local.compile_worker import LocalCompileWorker
from atune.local.device_worker import LocalDeviceWorker
from atune.local.machine import LocalMachine
from atune.model.artifact import Artifact, Failure, KernelParam
from atune.processes.messages import Discovery
from atune.search.prior import OwnPrior
from atune.system.folders import made_folder
from atune.system.versions import installed_versions

NOTICE_S = 5.0
"""Seconds after which an agent that has nothing to say answers all the same: so the engine knows that it lives."""

LEFT_S = 40.0
"""Seconds without a question after which an agent counts as left. The engine asks for notices all the time, and has
given the node up by then."""
FIRST_S = 120.0
"""The same before the first question, which comes once every node's agent has started or was given up."""


def facts_here() -> NodeFacts:
    """Return this node's facts."""
    return NodeFacts(socket.gethostname(), platform.python_version().rpartition(".")[0], installed_versions())


class NodeAgent(anyio.AsyncContextManagerMixin):
    """The stages of one node. Entering starts them, leaving kills every process."""

    def __init__(self, opening: bytes) -> None:
        self._opening = msgspec.msgpack.decode(opening, type=Opening)
        o = self._opening
        benchmark = msgspec.structs.replace(o.benchmark, mixed_devices=True)  # the run decides, for all nodes
        self._machine = LocalMachine(
            o.workload, target=o.target, devices=o.devices, compile=o.compile, benchmark=benchmark, cores=o.cores
        )
        self._found: Discovery | None = None
        self._compilers: list[LocalCompileWorker] = []
        self._devices: dict[str, LocalDeviceWorker] = {}
        self._calls: dict[int, tuple[anyio.CancelScope, anyio.Event]] = {}
        self._turns = defaultdict[int, anyio.Lock](anyio.Lock)
        """Held by each compile worker's call. A cancelled one may still be ending when the next arrives."""
        self._cancelled = set[int]()
        """Calls whose cancellation came and that were not running: they had ended, or are still to come."""
        self._libraries: dict[str, str] = {}
        """Paths of libraries here, by digest."""
        self._new: list[str] = []
        self._noticed, self._changed = anyio.Event(), anyio.Event()
        self._leaves = 0.0
        """When it counts as left unless it is asked before, by the event loop's clock."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        async with self._machine.open():
            yield self

    async def call(self, number: int, question: bytes) -> bytes:
        """Answer a question; `cancel` with its number ends it, and what it started. Raises nothing of its own."""
        self._leaves = anyio.current_time() + LEFT_S
        scope, ended = anyio.CancelScope(), anyio.Event()
        self._calls[number] = scope, ended
        reply: Reply = Answer(b"")
        if number in self._cancelled:  # a short message may overtake a long one
            scope.cancel()
        try:
            with scope:
                reply = await self._reply(msgspec.msgpack.decode(question, type=Question))
        finally:
            del self._calls[number]
            ended.set()
        return msgspec.msgpack.encode(reply)

    async def left(self) -> None:
        """Return once nobody has asked for `LEFT_S`: the engine's host is gone, or cannot be reached."""
        self._leaves = anyio.current_time() + FIRST_S
        while (rest_s := self._leaves - anyio.current_time()) > 0:
            await anyio.sleep(min(rest_s, LEFT_S))

    async def cancel(self, number: int) -> None:
        """End a call, and return once what it started is gone."""
        if (call := self._calls.get(number)) is None:
            self._cancelled.add(number)
        else:
            call[0].cancel()
            await call[1].wait()

    async def _reply(self, question: Question) -> Reply:
        device = self._devices.get(str(question.worker)) if isinstance(question.worker, str) else None
        try:
            given, answers = ENTRIES[question.entry]
            if question.libraries:  # else no thread: a sign of life waits for none
                await anyio.to_thread.run_sync(self._receive, question.libraries)
            body = None if given is None else msgspec.msgpack.decode(question.body, type=given)
            paths = {artifact.path: self._here(artifact.path) for artifact in artifacts_of(body)}
            value = await self._answered(question, with_paths(body, paths))
            built = artifacts_of(value)
            libraries, digests = await anyio.to_thread.run_sync(self._send, built) if built else ((), {})
            encoded = b"" if answers is None else msgspec.msgpack.encode(with_paths(value, digests))
            return Answer(encoded, tuple(libraries), _state(device))
        except Exception as error:
            return raised(error, _state(device))

    async def _answered(self, question: Question, body: Any) -> Any:
        answer = getattr(self, f"_{question.entry}")
        if not isinstance(question.worker, int):
            return await answer(question.worker, body)
        async with self._turns[question.worker]:
            return await answer(question.worker, body)

    def _here(self, digest: str) -> str:
        if (path := self._libraries.get(digest)) is None:
            raise WorkerError(f"library {digest[:12]} was not sent to this node")
        return path

    def _receive(self, libraries: tuple[Library, ...]) -> None:
        folder = made_folder(self._machine.run_dir, "received")
        for library in libraries:
            self._libraries[library.digest] = library.write(folder)

    def _send(self, artifacts: list[Artifact]) -> tuple[list[Library], dict[str, str]]:
        """Return the libraries of `artifacts`, and their digests by path."""
        symbols: dict[str, list[str]] = {}
        for artifact in artifacts:
            symbols.setdefault(artifact.path, []).append(artifact.symbol)
        libraries = [Library.read(path, names) for path, names in symbols.items()]
        digests = {path: library.digest for path, library in zip(symbols, libraries, strict=True)}
        self._libraries.update({digest: path for path, digest in digests.items()})
        return libraries, digests

    async def _describe(self, worker: object, whole: bool) -> Described:
        spec = await self._machine.describe(whole=whole)
        return Described(spec, Known(self._machine.workload, spec.fingerprint))

    async def _adopt(self, worker: object, known: Known) -> None:
        await self._machine.adopt(known.workload, known.fingerprint)

    async def _look_up(self, worker: object, places: list[int]) -> list[Any]:
        return await self._machine.look_up(places)

    async def _discover(self, worker: object, body: None) -> Discovery:
        await self._machine.discover()
        return self._machine.found

    async def _take_part(self, worker: object, part: Part) -> Discovery:
        """Have the target and the devices of `part` alone."""
        self._machine.target_text, self._machine.device_names = part.target, part.devices
        self._machine.service.reconsider()
        return await self._discover(worker, None)

    async def _plan(self, worker: object, plan: Plan) -> tuple[int, int]:
        machine = self._machine
        machine.use(plan.accelerators, plan.no_service)
        self._compilers = machine.compile_workers()
        self._devices = {device.info.id: device for device in machine.device_workers()}
        machine.on_change(self._wake)
        machine.on_warning(self._notice)
        resting = machine.hints(measuring=len(self._devices)).resting  # a GPU's process needs a core while it measures
        return max(1, len(self._compilers) - resting), len(self._devices)

    async def _expect(self, worker: object, candidates: int) -> None:
        """Know about how many candidates are compiled here, on which the compile service's use depends."""
        self._machine.service.expect(candidates, len(self._compilers))

    async def _lower(self, worker: int, body: Any) -> Any:
        return await self._compilers[worker].lower(body)

    async def _elaborate(self, worker: int, body: Any) -> Any:
        return await self._compilers[worker].elaborate(body)

    async def _rank(self, worker: int, body: Ranking) -> dict[int, float]:
        prior = OwnPrior(_named(body.name), body.prior)
        return await self._compilers[worker].rank(prior, body.candidates)

    async def _find(self, worker: int, body: Any) -> Artifact | None:
        return await self._compilers[worker].find(body)

    async def _build(self, worker: int, body: Group) -> Any:
        while self._machine.service.soon:  # building will be cheaper then
            await self._changed.wait()
        return await self._compilers[worker].build(body.members)

    async def _build_exact(self, worker: int, body: ExactGroup) -> Any:
        return await self._compilers[worker].build_exact(body.candidates, body.known)

    async def _prove(self, worker: int, body: Proving) -> Any:
        return await self._compilers[worker].prove(body.candidate, body.measured, body.lowered)

    async def _start(self, worker: str, body: None) -> Any:
        return await self._devices[worker].start()

    async def _prepare(self, worker: str, body: tuple[KernelParam, ...]) -> Any:
        return await self._devices[worker].prepare(body)

    async def _measure(self, worker: str, body: Measuring) -> Any:
        return await self._devices[worker].measure(body.artifact, body.best_ms)

    async def _final(self, worker: str, body: Finalists) -> Timed:
        found, reference = await self._devices[worker].final(body.artifacts, body.rounds, body.with_reference)
        entries = tuple(None if isinstance(one, Failure) else one for one in found)
        return Timed(entries, tuple(one if isinstance(one, Failure) else None for one in found), reference)

    async def _outputs(self, worker: str, body: Artifact) -> list[bytes]:
        return await self._devices[worker].outputs(body)

    async def _notices(self, worker: object, body: None) -> list[str]:
        """Return what the user should know, once there is something; after `NOTICE_S` at the latest."""
        with anyio.move_on_after(NOTICE_S):
            while not self._new:
                await self._noticed.wait()
        new, self._new = self._new, []
        return new

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _notice(self, message: str) -> None:
        self._new.append(message)
        self._noticed.set()
        self._noticed = anyio.Event()


def _state(device: LocalDeviceWorker | None) -> DeviceState | None:
    return None if device is None else DeviceState(device.alive, device.took_over)


def _named(name: str) -> Any:
    """Return a function that stands for a user's prior of this `name`: for messages."""

    def prior(config: Any, facts: Any) -> float:
        raise NotImplementedError

    prior.__name__ = prior.__qualname__ = name
    return prior

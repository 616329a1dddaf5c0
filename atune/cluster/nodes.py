"""A node as the engine's program sees it: questions to its agent, the libraries that travel, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import Any, Protocol

import anyio
import anyio.to_thread
import msgspec

from atune.cluster.messages import (
    ENTRIES,
    Answer,
    DeviceState,
    Library,
    NodeFacts,
    Question,
    Reply,
    artifacts_of,
    error_of,
    with_paths,
)
from atune.errors import AtuneError, MachineError
from atune.model.artifact import Artifact
from atune.processes.background import background
from atune.processes.messages import Discovery
from atune.system.deadline import Deadline
from atune.system.folders import made_folder

STALL_S = 30.0
"""Seconds without a sign of life after which a node counts as lost; its agent gives one every `agent.NOTICE_S`."""


class NodeLost(AtuneError):
    """The node ended, or cannot be reached, before it answered. Its open calls must be repeated."""


def none_left(causes: Iterable[str]) -> MachineError:
    """Return the error of a run that has lost all its nodes: why, and how to go on."""
    return MachineError(
        f"every node was lost: {'; '.join(causes)}. What was measured stays, and `atune resume JOURNAL` goes on"
    )


class Agent(Protocol):
    """The way to one node's agent."""

    name: str
    """The node's name, which no other node of the run has."""
    facts: NodeFacts
    local: bool
    """Whether it is on the engine's own host."""

    async def ask(self, question: bytes) -> bytes:
        """Return the agent's reply. Raises `NodeLost`. Cancelling it ends the call there, and what that started."""
        ...

    def kill(self) -> None:
        """End the agent, with all its processes, without waiting."""
        ...


class Shelf:
    """The libraries of a run on the engine's host, by content. They outlive the nodes that built them."""

    def __init__(self) -> None:
        self.run_dir = ""
        self._digests: dict[str, str] = {}
        """Digests of libraries by their paths here."""

    async def put(self, libraries: tuple[Library, ...]) -> dict[str, str]:
        """Keep `libraries`; return their paths by digest. Without libraries it needs no thread."""
        if not libraries:
            return {}

        def write() -> dict[str, str]:
            folder = made_folder(self.run_dir, "libraries")
            return {library.digest: library.write(folder) for library in libraries}

        paths = await anyio.to_thread.run_sync(write)
        self._digests.update({path: digest for digest, path in paths.items()})
        return paths

    async def get(self, artifacts: Iterable[Artifact], known: Container[str]) -> tuple[dict[str, str], list[Library]]:
        """Return the digests of the libraries of `artifacts` by path, and those that are not `known`."""
        symbols: dict[str, list[str]] = {}
        for artifact in artifacts:
            symbols.setdefault(artifact.path, []).append(artifact.symbol)

        def read() -> list[Library]:
            wanted = {path: names for path, names in symbols.items() if self._digests.get(path) not in known}
            libraries = {path: Library.read(path, names) for path, names in wanted.items()}
            self._digests.update({path: library.digest for path, library in libraries.items()})
            return list({library.digest: library for library in libraries.values()}.values())

        libraries = await anyio.to_thread.run_sync(read) if symbols else []
        return {path: self._digests[path] for path in symbols}, libraries


class Node:
    """One node of a run. `found`, `compilers` and `devices`: what it has, once it was asked."""

    def __init__(self, agent: Agent, shelf: Shelf, on_loss: Callable[[Node], None]) -> None:
        self.agent, self.name = agent, agent.name
        self.lost = ""
        """Why it is used no more; empty while it is."""
        self.found: Discovery
        self.compilers = 0
        self._shelf, self._on_loss = shelf, on_loss
        self._sent: set[str] = set()
        """Digests of the libraries that it has."""
        self._states: dict[str, DeviceState] = {}
        self._heard = anyio.Event()
        """Set, and replaced, at each sign of life."""
        self._calls: set[anyio.CancelScope] = set()
        """Those under way."""

    async def ask(self, entry: str, body: Any = None, worker: int | str = "") -> Any:
        """Have the agent do something; return its answer. Raises `NodeLost`, and what was raised there."""
        if self.lost:
            raise NodeLost(self.lost)
        digests, libraries = await self._shelf.get(artifacts_of(body), self._sent)
        question = Question(entry, msgspec.msgpack.encode(with_paths(body, digests)), worker, tuple(libraries))
        reply: Reply = msgspec.msgpack.decode(await self._answered(msgspec.msgpack.encode(question)), type=Reply)
        if reply.device is not None:
            self._states[str(worker)] = reply.device
        if not isinstance(reply, Answer):
            error = error_of(reply)  # perhaps of writing the libraries: they are sent again
            if isinstance(error, MachineError):  # it lacks disk or memory, which other nodes may have
                self.lose(str(error))
                raise NodeLost(self.lost) from error
            raise error
        self._sent |= {library.digest for library in libraries}
        paths = await self._shelf.put(reply.libraries)
        self._sent |= paths.keys()
        answers = ENTRIES[entry][1]
        return None if answers is None else with_paths(msgspec.msgpack.decode(reply.body, type=answers), paths)

    async def _answered(self, question: bytes) -> bytes:
        """Return the agent's reply. Raises `NodeLost`, and does not wait for the way to a node that is lost."""
        cause: NodeLost | None = None
        if not self.lost:
            with anyio.CancelScope() as call:
                self._calls.add(call)
                try:
                    return await self.agent.ask(question)
                except NodeLost as error:
                    cause = error
                finally:
                    self._calls.discard(call)
        if cause is not None:
            self.lose(str(cause))
        raise NodeLost(self.lost) from cause

    async def watch(self, notice: Callable[[str], None]) -> None:
        """Pass on what the agent has to say, until the node is lost, also by keeping silent for `STALL_S`.

        Time in which this program is stopped does not count.
        """
        async with background() as tasks:
            tasks.start_soon(self._listen, notice)
            while not self.lost:
                heard, deadline = self._heard, Deadline(STALL_S)
                try:
                    while not (heard.is_set() or self.lost):
                        await deadline.wait(heard.wait)
                except TimeoutError:
                    self.lose(f"it did not answer for {STALL_S:g} s")

    async def _listen(self, notice: Callable[[str], None]) -> None:
        with suppress(NodeLost):
            while True:
                for message in await self.ask("notices"):
                    notice(f"{self.name}: {message}")
                self._heard.set()
                self._heard = anyio.Event()

    def lose(self, why: str) -> None:
        """Use the node no more. Twice is fine."""
        if not self.lost:
            self.lost = f"node {self.name} was lost: {why}"
            self.agent.kill()
            self._on_loss(self)
            for call in list(self._calls):
                call.cancel()

    def leave_out(self, why: str) -> None:
        """Use the node no more, as the run has nothing for it to do."""
        self.lost = f"node {self.name} is left out: {why}"
        self.agent.kill()

    def state(self, device: str) -> DeviceState:
        """Return how a device's process was after its last call; dead where there was none, or the node is lost."""
        state = self._states.get(device, DeviceState(alive=False, took_over=False))
        return DeviceState(alive=False, took_over=False) if self.lost else state

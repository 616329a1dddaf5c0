"""A node as the engine's program sees it: jobs for its agent, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, cast

import anyio
import msgspec

from atune.engine.background import background
from atune.errors import AtuneError, MachineError
from atune.model.jobs import A, Job, decoded
from atune.workers.cluster.libraries import Shelf
from atune.workers.cluster.messages import Answer, DiscoverJob, NoticesJob, Question, Reply
from atune.workers.processes.messages import Discovery
from atune.workers.system.locks import Deadline

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

    async def ask(self, question: bytes) -> bytes:
        """Return the agent's reply. Raises `NodeLost`. Cancelling it ends the call there, and what that started."""
        ...

    def kill(self) -> None:
        """End the agent, with all its processes, without waiting."""
        ...


class Node:
    """One node of a run. `found` and `compilers`: what it has, once it was asked."""

    def __init__(self, agent: Agent, shelf: Shelf, on_loss: Callable[[Node], None]) -> None:
        self.agent, self.name = agent, agent.name
        self.lost = ""
        """Why it is used no more; empty while it is."""
        self.found: Discovery
        self.compilers = 0
        self._shelf, self._on_loss = shelf, on_loss
        self._sent: set[str] = set()
        """Digests of the libraries that it has."""
        self._alive: dict[str, bool] = {}
        """Whether each device's process ran after its last job."""
        self._heard = anyio.Event()
        """Set, and replaced, at each sign of life."""
        self._calls: set[anyio.CancelScope] = set()
        """Those under way."""

    async def ask(self, job: Job[A], worker: int | str = "") -> A:
        """Have the agent do `job`. Raises `NodeLost`, and what was raised there."""
        if self.lost:
            raise NodeLost(self.lost)
        packed, libraries = await self._shelf.packed(job, self._sent)
        question = Question(cast(Any, packed), worker, libraries)
        reply: Reply = msgspec.msgpack.decode(await self._answered(msgspec.msgpack.encode(question)), type=Reply)
        self._alive[str(worker)] = reply.alive
        if not isinstance(reply, Answer):
            error = reply.error()  # perhaps of writing the libraries: they are sent again
            if isinstance(error, MachineError):  # it lacks disk or memory, which other nodes may have
                self.lose(str(error))
                raise NodeLost(self.lost) from error
            raise error
        self._sent |= {library.digest for library in (*libraries, *reply.libraries)}
        return await self._shelf.unpacked(decoded(job, reply.body), reply.libraries)

    async def discover(self, job: DiscoverJob) -> None:
        """Have the agent find what the node has for the run."""
        answer = await self.ask(job)
        self.found, self.compilers = answer.discovery, answer.compilers

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
                for message in await self.ask(NoticesJob()):
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

    def alive(self, device: str) -> bool:
        """Tell whether a device's process ran after its last job."""
        return not self.lost and self._alive.get(device, False)

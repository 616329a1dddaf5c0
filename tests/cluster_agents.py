"""Agents of a cluster in this process: nodes that tests can kill and count, without Ray."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from atune.workers.cluster.agent import NodeAgent
from atune.workers.cluster.machine import NodeLost, Opening, Reply
from atune.workers.waiting import background


class LoopbackAgent:
    """The way to a `NodeAgent` of this process. Its calls run in tasks of their own, as on another machine."""

    def __init__(self, name: str, agent: NodeAgent, tasks: TaskGroup, end: Callable[[], None]) -> None:
        self.name, self.agent = name, agent
        self.asked: list[str] = []
        self.killed = ""
        self._tasks, self._end = tasks, end
        self._died = anyio.Event()
        self.on_ask: Callable[[LoopbackAgent, str], None] = lambda agent, entry: None

    async def ask(self, what: str, *given: Any) -> Reply:
        name = given[0].name if what == "run" else what
        self.asked.append(name)
        self.on_ask(self, name)
        asked = pickle.loads(pickle.dumps((what, *given)))
        answers, done, scope, ended = list[Reply](), anyio.Event(), anyio.CancelScope(), anyio.Event()

        async def call() -> None:
            try:
                with scope:
                    reply = await self.agent.answer(*asked)
                    answers.append(pickle.loads(pickle.dumps(reply)))
            finally:
                ended.set()
            done.set()

        async def died() -> None:
            await self._died.wait()
            done.set()

        if self.killed:
            raise NodeLost(self.killed)
        self._tasks.start_soon(call)
        try:
            async with background() as waiting:
                waiting.start_soon(died)
                await done.wait()
        except anyio.get_cancelled_exc_class():
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()
            raise
        if self.killed:
            raise NodeLost(self.killed)
        return answers[0]

    def kill(self) -> None:
        self.die("killed")

    def die(self, why: str) -> None:
        if not self.killed:
            self.killed = why
            self._died.set()
            self._end()


class Loopback:
    """What `ClusterMachine` takes: `count` nodes in this process. `agents`: those of the last run."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.agents: list[LoopbackAgent] = []
        self.on_ask: Callable[[LoopbackAgent, str], None] = lambda agent, entry: None

    @asynccontextmanager
    async def __call__(self, opening: Opening) -> AsyncGenerator[tuple[list[Any], list[str]], None]:
        self.agents = []
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(background())
            for number in range(self.count):
                self.agents.append(await tasks.start(self._node, f"node-{number}", opening))
            yield list(self.agents), []
            for agent in self.agents:
                agent.kill()

    async def _node(self, name: str, opening: Opening, *, task_status: Any) -> None:
        with anyio.CancelScope() as scope, suppress(BaseExceptionGroup):
            own = msgspec.structs.replace(opening, cores=2)
            async with background() as tasks, NodeAgent(own) as node:
                agent = LoopbackAgent(name, node, tasks, scope.cancel)
                agent.on_ask = lambda agent, entry: self.on_ask(agent, entry)
                task_status.started(agent)
                await anyio.sleep_forever()

"""What Ray runs on each node of a cluster: an actor that holds the node's agent."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from atune.workers.cluster.agent import NodeAgent, facts_here


class Actor:
    """What runs on a node: an agent, entered in a task of its own. Its methods are Ray's to call."""

    def __init__(self) -> None:
        self._agent: Any = None
        self._ended: Any = None

    async def facts(self) -> bytes:
        """Return the facts of this node."""
        return msgspec.msgpack.encode(facts_here())

    async def open(self, opening: bytes) -> None:
        """Start the agent. Raises where its fork server cannot be started."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.create_task(self._serve(opening, opened))
        await opened

    async def _serve(self, opening: bytes, opened: asyncio.Future[None]) -> None:
        """Run the agent until it is told to leave. End this process if it is left, or fails: then the node is lost."""
        try:
            async with NodeAgent(opening) as self._agent:
                opened.set_result(None)
                ends = [asyncio.ensure_future(end) for end in (self._leave.wait(), self._agent.left())]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
                return
            if self._leave.is_set():
                raise
        if not self._leave.is_set():
            os._exit(1)

    async def call(self, number: int, question: bytes) -> bytes:
        """Have the agent answer a question."""
        answer: bytes = await self._agent.call(number, question)
        return answer

    async def cancel(self, number: int) -> None:
        """End a call."""
        await self._agent.cancel(number)

    async def close(self) -> None:
        """End the agent in order."""
        self._leave.set()
        await self._ended

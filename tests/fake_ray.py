"""A stand-in for Ray: its actors are objects of this process, and their calls tasks of this event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
import pytest

from atune.workers.cluster import ray_cluster
from atune.workers.cluster.ray_cluster import NodeAgent


class FakeRay:
    """Nodes named `names`. Actors on those in `busy` never answer, as where others hold the node.

    `kill_s`: seconds that a kill takes. `log`: what was done: ``started NODE``, ``killed NODE`` and ``shutdown``.
    """

    class RayError(Exception):
        """What Ray raises."""

    def __init__(self, names: Collection[str], busy: Collection[str] = (), kill_s: float = 0.0) -> None:
        self.names, self.busy, self.kill_s = names, busy, kill_s
        self.log: list[str] = []
        self.exceptions = SimpleNamespace(RayError=self.RayError)
        strategy = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=strategy, get_node_ip_address=lambda: "127.0.0.1")

    def nodes(self) -> list[dict[str, Any]]:
        own = {"NodeManagerAddress": "127.0.0.1", "Free": {"CPU": 2.0}, "Resources": {"CPU": 2.0}}
        return [{"NodeID": name, "Name": name, **own} for name in self.names]

    def remote(self, kind: Callable[[], Any]) -> Any:
        def make(scheduling_strategy: str, **claim: Any) -> Any:
            return SimpleNamespace(remote=lambda: _Actor(kind(), self, scheduling_strategy))

        return SimpleNamespace(options=make)

    def kill(self, actor: _Actor, no_restart: bool) -> None:
        time.sleep(self.kill_s)
        self.log.append(f"killed {actor.node}")

    def shutdown(self) -> None:
        self.log.append("shutdown")


class _Actor:
    def __init__(self, inner: Any, ray: FakeRay, node: str) -> None:
        self.inner, self.node, self.busy = inner, node, node in ray.busy
        ray.log.append(f"started {node}")

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: SimpleNamespace(future=lambda: self._call(method, *given)))

    def _call(self, method: str, *given: Any) -> Future[Any]:
        answer: Future[Any] = Future()

        async def call() -> None:
            try:
                answer.set_result(await getattr(self.inner, method)(*given))
            except BaseException as error:
                answer.set_exception(error)

        if not self.busy:
            self.task = asyncio.ensure_future(call())
        return answer


class Idle(NodeAgent):
    """An agent that starts no processes."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        yield self
        await anyio.lowlevel.checkpoint()


def in_place(ray: FakeRay, patch: pytest.MonkeyPatch) -> FakeRay:
    """Put `ray` in Ray's place. Agents start no processes then, and end none."""
    patch.setattr(ray_cluster, "optional", lambda use, name: ray)
    patch.setattr(ray_cluster, "_join", lambda ray, address: True)
    patch.setattr(ray_cluster, "_nodes", lambda ray: ray.nodes())
    patch.setattr(ray_cluster, "NodeAgent", Idle)
    patch.setattr(ray_cluster.os, "_exit", lambda status: ray.log.append(f"exit {status}"))
    return ray

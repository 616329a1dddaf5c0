"""Compile workers of a run on many nodes: each call goes to a worker that is free, on any node that lives."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from atune.cluster.messages import ExactGroup, Group, Proving, Ranking
from atune.cluster.nodes import Node, NodeLost, none_left
from atune.model.artifact import Artifact, Built, Elaborated, Failure, Lowered, Proof, StaticFacts
from atune.model.candidate import Candidate, Config
from atune.search.prior import OwnPrior


class Slots:
    """The compile workers of all nodes. Those of a node that is lost are taken by nobody any more."""

    def __init__(self) -> None:
        self._free: dict[Node, deque[int]] = {}
        self._causes: list[str] = []
        """Why nodes were lost."""
        self._changed = anyio.Event()
        self.homes: dict[int, tuple[Node, Candidate]] = {}
        """Candidates, by index, that only one node's artifact store has a library of."""

    def add(self, node: Node) -> None:
        """Use the compile workers of a further node, unless it was lost meanwhile."""
        if not node.lost:
            self._free[node] = deque(range(node.compilers))

    def lose(self, node: Node) -> None:
        """Have nobody wait for a node."""
        self._free.pop(node, None)
        self._causes.append(node.lost)
        self._wake()

    @asynccontextmanager
    async def taken(self, wanted: Node | None = None) -> AsyncGenerator[tuple[Node, int], None]:
        """Take a compile worker: one of `wanted` while that node lives, else of the node with most to spare.

        Raises `MachineError` where no node is left.
        """
        while (taken := self._next(wanted)) is None:
            await self._changed.wait()
        node, number = taken
        try:
            yield node, number
        finally:
            if (free := self._free.get(node)) is not None:
                free.append(number)
            self._wake()

    def _next(self, wanted: Node | None) -> tuple[Node, int] | None:
        if not self._free:
            raise none_left(self._causes)
        nodes = [wanted] if wanted in self._free else list(self._free)
        node = max(nodes, key=lambda one: len(self._free[one]))
        return (node, self._free[node].popleft()) if self._free[node] else None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class ClusterCompileWorker:
    """One compile worker, of whichever node. Another node repeats the calls that a lost node was answering."""

    def __init__(self, name: str, slots: Slots) -> None:
        self.name, self._slots = name, slots
        self._calls = 0
        self.compiling = 0

    async def lower(self, candidate: Candidate) -> Lowered | Failure:
        node, answer = await self._ask("lower", candidate)
        if isinstance(answer, Lowered) and not answer.blob:
            self._slots.homes[candidate.index] = node, candidate
        lowered: Lowered | Failure = answer
        return lowered

    async def elaborate(self, candidates: Sequence[Candidate]) -> Sequence[Elaborated | Failure]:
        _, answers = await self._ask("elaborate", list(candidates))
        elaborated: list[Elaborated | Failure] = answers
        return elaborated

    async def rank(self, prior: OwnPrior, known: Mapping[int, tuple[Config, StaticFacts]]) -> dict[int, float]:
        _, answer = await self._ask("rank", Ranking(prior.name, prior.pickled, dict(known)))
        ranks: dict[int, float] = answer
        return ranks

    async def find(self, lowered: Lowered) -> Artifact | None:
        """Return what an earlier run left on the node where it was lowered, or on any other where that is not known."""
        home, _ = self._slots.homes.get(lowered.index, (None, None))
        _, found = await self._ask("find", lowered, home)
        artifact: Artifact | None = found
        return artifact

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        """Compile `group`; those that only a node's store has come from there."""
        answers: dict[int, Built] = {}
        kept = [lowered for lowered in group if not lowered.blob]
        fresh = [lowered for lowered in group if lowered.blob]
        for lowered in kept:
            found = await self.find(lowered)
            if found is not None:
                answers[lowered.index] = found
                continue
            again = await self._lowered_elsewhere(lowered)
            if isinstance(again, Artifact | Failure):
                answers[lowered.index] = again
            else:
                fresh.append(again)
        if fresh:
            _, built = await self._ask("build", Group(tuple(fresh)))
            answers.update((one.index, one) for one in built)
        return [answers[lowered.index] for lowered in group]

    async def build_exact(self, candidates: Sequence[Candidate], known: Mapping[int, Lowered]) -> list[Built]:
        _, answers = await self._ask("build_exact", ExactGroup(tuple(candidates), dict(known)))
        built: list[Built] = answers
        return built

    async def prove(self, candidate: Candidate, measured: Artifact, lowered: Lowered | None = None) -> Proof | Failure:
        _, answer = await self._ask("prove", Proving(candidate, measured, lowered))
        proof: Proof | Failure = answer
        return proof

    async def _lowered_elsewhere(self, lowered: Lowered) -> Lowered | Artifact | Failure:
        """Lower a candidate again whose only library was on a node that was lost, or was removed there."""
        _, candidate = self._slots.homes[lowered.index]
        while True:
            again = await self.lower(candidate)
            if isinstance(again, Failure) or again.blob:
                return again
            if (found := await self.find(again)) is not None:
                return found

    async def _ask(self, entry: str, body: Any, wanted: Node | None = None) -> tuple[Node, Any]:
        """Ask a node; return it with its answer. Raises what was raised there, and `MachineError` without a node."""
        while True:
            async with self._slots.taken(wanted) as (node, number):
                self._calls += 1
                self.compiling = self._calls if entry == "build" else 0
                try:
                    return node, await node.ask(entry, body, number)
                except NodeLost:
                    continue
                finally:
                    self.compiling = 0

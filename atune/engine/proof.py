"""The proof that the winner is tilelang's own code: it is compiled plain, and compared with what was measured.

The leader's proof begins on a free compile worker once no likely winner is left to compile, at the latest with the
final. A new leader's proof cancels it. If the final finds another winner, that one is proven after it. If the plain
library differs, it replaces the winner's: it is checked and timed, and the final is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle

import anyio
import msgspec

from atune.engine.benchmark_stage import BenchmarkStage
from atune.engine.interfaces import CompileWorker
from atune.engine.run_state import Run
from atune.errors import AtuneError, MachineError
from atune.journal.events import Warned, WinnerProven
from atune.model.artifact import Artifact, Failure, Proof
from atune.model.candidate import Candidate
from atune.model.jobs import ProveJob

TRIES = 2
"""How many workers one proof may lose."""

Library = tuple[str, str]
"""A library's file, and the symbol of a candidate in it."""


def library(artifact: Artifact) -> Library:
    return artifact.path, artifact.symbol


class Proofs:
    """Compares libraries with plain compiles, each library once.

    `candidate`: returns one by its index. `wanted`: whether libraries that are not plain are proven.
    """

    def __init__(
        self, run: Run, candidate: Callable[[int], Candidate], workers: Sequence[CompileWorker], *, wanted: bool
    ) -> None:
        self.run, self.candidate, self.workers, self.wanted = run, candidate, workers, wanted
        self._made: dict[Library, Proof | Failure] = {}
        """The result of each proof, by the library's file and symbol."""
        self._one = anyio.Lock(fast_acquire=True)
        self._ahead: tuple[Library, anyio.CancelScope] | None = None
        """The proof that began before the final, if one did: the last one's."""

    def leader(self) -> Artifact | None:
        """Return the leader's artifact, if it needs a proof that has not begun."""
        best = self.run.recorder.state.winner
        artifact = None if best is None else self.run.artifacts.get(best)
        if artifact is None or artifact.plain or not self.wanted:
            return None
        begun = self._ahead is not None and self._ahead[0] == library(artifact)
        return None if begun or library(artifact) in self._made else artifact

    async def ahead(self, worker: CompileWorker) -> None:
        """Prove the leader on `worker`, while others are compiled or measured. A later leader's proof cancels this."""
        leader = self.leader()
        if leader is not None:
            self._drop_other(library(leader))
            with anyio.CancelScope() as scope:
                self._ahead = library(leader), scope
                await self._proof_by(leader, [worker])  # the others may be busy

    def _drop_other(self, key: Library) -> None:
        if self._ahead is not None and self._ahead[0] != key:
            self._ahead[1].cancel()

    async def begin(self, artifact: Artifact) -> None:
        """Prove `artifact` if that will be needed once it wins."""
        if self.wanted and not artifact.plain:
            await self.proof_of(artifact)

    async def proof_of(self, artifact: Artifact) -> Proof | Failure:
        """Return the proof of `artifact`. If a worker is lost, another one tries."""
        self._drop_other(library(artifact))
        return await self._proof_by(artifact, self.workers)

    async def _proof_by(self, artifact: Artifact, workers: Sequence[CompileWorker]) -> Proof | Failure:
        async with self._one:  # waits for a proof of the same library, and until a cancelled one has ended
            if (key := library(artifact)) not in self._made:
                self._made[key] = await self._make(artifact, workers)
        return self._made[key]

    async def _make(self, artifact: Artifact, workers: Sequence[CompileWorker]) -> Proof | Failure:
        index, lost = artifact.index, ""
        for _, worker in zip(range(TRIES), cycle(workers), strict=False):
            try:
                return await worker.run(ProveJob(self.candidate(index), artifact))
            except MachineError:
                raise
            except AtuneError as error:  # no measurement depends on it
                lost = str(error)
        return Failure(index, "worker_lost", lost)


class ProofStage:
    """Runs the final, proves its winner, and replaces libraries that differ by plain ones."""

    def __init__(
        self, run: Run, proofs: Proofs, benchmark: BenchmarkStage, hold: Callable[[], Awaitable[None]]
    ) -> None:
        self.run, self.proofs, self.benchmark, self.hold = run, proofs, benchmark, hold
        self.emit = run.recorder.emit
        self._replaced: dict[int, float] = {}
        """Candidates whose library was replaced by a plain one, with the seconds that compiling it took."""

    async def settle(self) -> None:
        """Repeat the final until its winner is proven, or cannot be. Each library is replaced once at most."""
        settled = False
        while not settled:
            await self.hold()
            settled = await self._prove_winner()

    async def _prove_winner(self) -> bool:
        """Return whether the winner stands; if not, the final must be repeated."""
        winner = self.run.recorder.state.winner
        artifact = None if winner is None else self.run.artifacts.get(winner)
        if artifact is None:
            return True
        index = artifact.index
        if artifact.plain:
            how, seconds = ("replaced", self._replaced[index]) if index in self._replaced else ("plain", 0.0)
            self.emit(WinnerProven, index=index, seconds=seconds, how=how)
            return True
        if not self.proofs.wanted:
            return True
        proof = await self.proofs.proof_of(artifact)
        if isinstance(proof, Failure):
            self._unproven(index, f"compiling it plain failed ({proof.kind}: {proof.message})")
        elif not proof.difference:
            self.emit(WinnerProven, index=index, seconds=proof.seconds, how="compared")
        elif proof.plain is None:
            self._unproven(index, f"{proof.difference} differ, and there is no plain library")
        else:
            return not await self._replace(proof, proof.plain)
        return True

    async def _replace(self, proof: Proof, plain: Artifact) -> bool:
        """Check and time the plain library instead of the measured one. Returns False if no device is left."""
        index = proof.index
        message = f"candidate {index} differs from what tilelang compiles ({proof.difference}): cicc is wrong"
        self.emit(Warned, message=f"{message}. The plain library takes its place, and is checked and timed")
        self._replaced[index] = proof.seconds
        if not await self.benchmark.again(msgspec.structs.replace(plain, index=index)):
            self._unproven(index, "no device is left to time its plain library")
            return False
        await self.run.outcomes.acknowledge()
        return True

    def _unproven(self, index: int, why: str) -> None:
        self.emit(Warned, message=f"the winner, candidate {index}, is not proven to be tilelang's own code: {why}")

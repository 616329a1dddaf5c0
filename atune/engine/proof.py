"""The proof that what wins is tilelang's own code: compiled plain, and compared with what was measured.

Leaders are proven ahead of the final by workers that have nothing else to do. After it the winner is, where it is not
yet. Where the plain library differs, it takes the winner's place: it is checked and timed, and the final held again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import anyio
import msgspec

from atune.engine.benchmark_stage import Measuring
from atune.engine.compile_stage import Ahead
from atune.engine.finalists import Finalists
from atune.engine.interfaces import CompileWorker
from atune.engine.plan import GONE
from atune.engine.run_state import Run
from atune.errors import AtuneError, MachineError
from atune.journal.events import Warned, WinnerProven
from atune.model.artifact import Artifact, Failure, Proof
from atune.model.candidate import Candidate

TRIES = 2
"""Workers that may be lost over one proof."""

How = Literal["plain", "compared", "replaced"]


class Proofs:
    """Proves libraries, each once.

    `candidates`: those of the space, by index. `wanted`: whether anything is to be proven that is not plain. `n_final`:
    how many leaders the final has. `workers`: workers, of which a third at most prove ahead of the final.
    `unmeasured`: whether devices have something to measure, beside which a proof costs nothing.
    """

    def __init__(
        self,
        run: Run,
        candidates: Mapping[int, Candidate],
        finalists: Finalists,
        *,
        wanted: bool,
        n_final: int,
        workers: int,
        unmeasured: Callable[[], bool],
    ) -> None:
        self.run, self.candidates, self.finalists = run, candidates, finalists
        self.wanted, self.unmeasured = wanted, unmeasured
        self._ahead = min(max(1, workers // 3), max(1, n_final))
        self._made: dict[tuple[str, str], Proof | Failure] = {}
        """What proving a library came to, by its file and symbol; a lost worker counts as a failure the second time."""
        self._lost: dict[tuple[str, str], int] = {}
        self._under_way: list[tuple[int, anyio.CancelScope]] = []

    def next(self) -> Ahead | None:
        """Return work for a worker that has nothing else to do: a leader to prove; None once all is measured."""
        if not self.wanted or (self.run.compiled.is_set() and not self.unmeasured()):
            return None
        under_way = {index for index, _ in self._under_way}
        for index in self._leaders():
            artifact = self._library(index)
            if index not in under_way and artifact is not None and _key(artifact) not in self._made:
                return partial(self._prove_ahead, artifact)
        return None

    def drop_overtaken(self) -> None:
        """Cancel proofs of all but the leader: the final waits for no other's."""
        leader = self.finalists.fastest(1)
        for index, scope in self._under_way:
            if index not in leader:
                scope.cancel()

    async def proof_of(self, artifact: Artifact, workers: Sequence[CompileWorker]) -> Proof | Failure:
        """Return what proving `artifact` comes to. While a worker is lost, another is asked."""
        key, asked = _key(artifact), 0
        if isinstance(before := self._made.get(key), Failure) and before.kind in ("timeout", "crash"):
            del self._made[key]  # it was on a busy machine: once more, on one with nothing else to do
        while key not in self._made:
            await self._prove(artifact, workers[asked % len(workers)])
            asked += 1
        return self._made[key]

    async def _prove_ahead(self, artifact: Artifact, worker: CompileWorker) -> None:
        with anyio.CancelScope() as scope:
            self._under_way.append((artifact.index, scope))
            try:
                await self._prove(artifact, worker)
            finally:
                self._under_way.remove((artifact.index, scope))

    async def _prove(self, artifact: Artifact, worker: CompileWorker) -> None:
        key = _key(artifact)
        candidate = self.candidates.get(artifact.index)
        if candidate is None:  # measured by an earlier part of the run
            self._made[key] = Failure(artifact.index, "lower", GONE)
            return
        try:
            self._made[key] = await worker.prove(candidate, artifact)
        except MachineError:
            raise
        except AtuneError as error:  # nothing that was measured depends on it
            self._lost[key] = self._lost.get(key, 0) + 1
            if self._lost[key] >= TRIES:
                self._made[key] = Failure(artifact.index, "worker_lost", str(error))

    def _leaders(self) -> list[int]:
        return self.finalists.fastest(self._ahead)

    def _library(self, index: int) -> Artifact | None:
        """Return the library of a leader that will be the final's, where it is known and to be proven."""
        artifact = self.run.artifacts.get(index)
        if artifact is not None and not artifact.exact:
            made = self.finalists.made.get(index)
            artifact = made if isinstance(made, Artifact) else None
        return None if artifact is None or artifact.plain else artifact


class ProofStage:
    """Holds the final, proves who wins it, and has plain libraries take the place of those that differ."""

    def __init__(
        self,
        run: Run,
        proofs: Proofs,
        measuring: Measuring,
        compile_workers: Sequence[CompileWorker],
        hold: Callable[[], Awaitable[None]],
    ) -> None:
        self.run, self.proofs, self.measuring, self.compile_workers = run, proofs, measuring, compile_workers
        self.hold = hold
        self.emit = run.recorder.emit
        self._replaced: dict[int, float] = {}
        """Candidates whose plain library took their place, with the seconds that compiling it took."""

    async def settle(self) -> None:
        """Hold the final until its winner is proven, or cannot be. Each candidate is replaced once at most."""
        settled = False
        while not settled:
            await self.hold()
            settled = await self._prove_winner()

    async def _prove_winner(self) -> bool:
        """Return whether the winner stands; else the final is to be held again."""
        winner = self.run.recorder.state.winner
        artifact = None if winner is None else self.run.artifacts.get(winner)
        if artifact is None:
            return True
        index = artifact.index
        if artifact.plain:
            replaced = index in self._replaced
            self._proven(index, self._replaced.get(index, 0.0), "replaced" if replaced else "plain")
            return True
        if not self.proofs.wanted:
            return True
        proof = await self.proofs.proof_of(artifact, self.compile_workers)
        if isinstance(proof, Failure):
            self._unproven(index, f"compiling it plain failed ({proof.kind}: {proof.message})")
        elif not proof.difference:
            self._proven(index, proof.seconds, "compared")
        elif proof.plain is None:
            self._unproven(index, f"{proof.difference} differ, and there is no plain library")
        else:
            return not await self._replace(proof, proof.plain, exact=artifact.exact)
        return True

    async def _replace(self, proof: Proof, plain: Artifact, *, exact: bool) -> bool:
        """Check and time the plain library in the place of the measured one; False where no device is left for it."""
        index = proof.index
        why = "an accelerator is wrong" if exact else "its compile was shared, and it was not compiled again by itself"
        message = f"candidate {index} is not what tilelang compiles ({proof.difference}): {why}"
        self.emit(Warned, message=f"{message}. The plain library takes its place, and is checked and timed")
        self._replaced[index] = proof.seconds
        if not await self.measuring.again(msgspec.structs.replace(plain, index=index, plain=True)):
            self._unproven(index, "no device is left to time its plain library on")
            return False
        await self.run.outcomes.acknowledge()
        return True

    def _proven(self, index: int, seconds: float, how: How) -> None:
        self.emit(WinnerProven, index=index, seconds=seconds, how=how)

    def _unproven(self, index: int, why: str) -> None:
        self.emit(Warned, message=f"the winner, candidate {index}, is not proven to be tilelang's own code: {why}")


def _key(artifact: Artifact) -> tuple[str, str]:
    return artifact.path, artifact.symbol

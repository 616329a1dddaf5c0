"""The proof that the winner is tilelang's own code: compiles it plain, and compares that with what was measured.

Idle workers prove leaders ahead of the final. One that leads for long is proven while others compile. After the final,
the winner is proven if it was not yet. If the plain library differs, it replaces the winner's: it is checked and timed,
and the final is repeated.
"""

from __future__ import annotations

import math
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
"""How many workers one proof may lose."""

WORKERS_EACH = 8
"""Compile workers for each leader that is proven early. The final's leaders are the limit."""
LONG, LONG_SHARE = 16, 0.125
"""How many candidates, and which share of all, are measured while a leader leads, before it is proven early."""

How = Literal["plain", "compared", "replaced"]


class Proofs:
    """Proves each library once.

    `candidates`: the space's, by index. `wanted`: whether libraries that are not plain are proven. `n_final`: how many
    leaders the final has. `workers`: how many; a third at most prove ahead of the final. `unmeasured`: tells whether
    devices still have work, so that a proof delays nothing.
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
        """The result of each proof, by the library's file and symbol. A second lost worker counts as a failure."""
        self._lost: dict[tuple[str, str], int] = {}
        self._under_way: list[tuple[int, anyio.CancelScope]] = []

    def next(self, leaders: Sequence[int] | None = None) -> Ahead | None:
        """Return work for an idle worker: one of `leaders` (default: the current ones) to prove.

        None once all is measured.
        """
        if not self.wanted or (self.run.compiled.is_set() and not self.unmeasured()):
            return None
        under_way = {index for index, _ in self._under_way}
        for index in self._leaders() if leaders is None else leaders:
            artifact = self._library(index)
            if index not in under_way and artifact is not None and _key(artifact) not in self._made:
                return partial(self._prove_ahead, artifact)
        return None

    def drop_overtaken(self) -> None:
        """Cancel all proofs but the leader's, because the final waits for no other."""
        leader = self.finalists.fastest(1)
        for index, scope in self._under_way:
            if index not in leader:
                scope.cancel()

    async def proof_of(self, artifact: Artifact, workers: Sequence[CompileWorker]) -> Proof | Failure:
        """Return the proof of `artifact`. If a worker is lost, another one tries."""
        key, asked = _key(artifact), 0
        if isinstance(before := self._made.get(key), Failure) and before.kind in ("timeout", "crash"):
            del self._made[key]  # the machine was busy: try again when it is idle
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
            self._made[key] = await worker.prove(candidate, artifact, self.finalists.lowered_to(artifact))
        except MachineError:
            raise
        except AtuneError as error:  # no measurement depends on it
            self._lost[key] = self._lost.get(key, 0) + 1
            if self._lost[key] >= TRIES:
                self._made[key] = Failure(artifact.index, "worker_lost", str(error))

    def _leaders(self) -> list[int]:
        return self.finalists.fastest(self._ahead)

    def _library(self, index: int) -> Artifact | None:
        """Return the library that a leader will have in the final, if it is known and must be proven."""
        artifact = self.run.artifacts.get(index)
        if artifact is not None and not artifact.exact:
            made = self.finalists.made.get(index)
            artifact = made if isinstance(made, Artifact) else None
        return None if artifact is None or artifact.plain else artifact


class EarlyProofs:
    """Proves the first leaders while other candidates still compile, once they have led for long.

    A proof delays these by one of many compiles, and the run's end need not wait for it. `total`: how many candidates
    will be proposed. `workers`: how many; with few, a proof would delay the others too much.
    """

    def __init__(self, run: Run, finalists: Finalists, proofs: Proofs, *, total: int, workers: int) -> None:
        self._run, self._finalists, self._proofs = run, finalists, proofs
        self._most = min(workers // WORKERS_EACH, max(1, finalists.n_final))
        self._long = max(LONG, math.ceil(LONG_SHARE * total))
        self._since = dict[int, int]()
        """Each leader, with the number of candidates that were measured when it became one."""

    def next(self) -> Ahead | None:
        """Return work for any worker; None if no leader is to be proven now."""
        if not self._most or not self._proofs.wanted:
            return None
        measured = self._run.recorder.state.counts["measured"]
        self._since = {i: self._since.get(i, measured) for i in self._finalists.fastest(self._most)}
        leaders = [index for index, since in self._since.items() if measured - since >= self._long]
        if part := self._finalists.next_part(leaders):
            return partial(self._finalists.make, part)
        return self._proofs.next(leaders)


class ProofStage:
    """Runs the final, proves its winner, and replaces libraries that differ by plain ones."""

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
        """Check and time the plain library instead of the measured one. Returns False if no device is left."""
        index = proof.index
        why = "an accelerator is wrong" if exact else "its compile was shared, and it was not compiled again by itself"
        message = f"candidate {index} differs from what tilelang compiles ({proof.difference}): {why}"
        self.emit(Warned, message=f"{message}. The plain library takes its place, and is checked and timed")
        self._replaced[index] = proof.seconds
        if not await self.measuring.again(msgspec.structs.replace(plain, index=index, plain=True)):
            self._unproven(index, "no device is left to time its plain library")
            return False
        await self.run.outcomes.acknowledge()
        return True

    def _proven(self, index: int, seconds: float, how: How) -> None:
        self.emit(WinnerProven, index=index, seconds=seconds, how=how)

    def _unproven(self, index: int, why: str) -> None:
        self.emit(Warned, message=f"the winner, candidate {index}, is not proven to be tilelang's own code: {why}")


def _key(artifact: Artifact) -> tuple[str, str]:
    return artifact.path, artifact.symbol

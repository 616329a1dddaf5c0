"""Compiles the leaders as tilelang itself does, on idle workers, ahead of the final."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import anyio

from atune.engine.compile_stage import Ahead
from atune.engine.interfaces import CompileWorker
from atune.engine.plan import GONE
from atune.engine.run_state import Run
from atune.errors import AtuneError, MachineError
from atune.model.artifact import Artifact, Built, Failure, Lowered
from atune.model.candidate import Candidate

KEPT = 256
"""Number of lowered candidates to keep, about 25 MB, so that a leader need not be lowered again."""


def share(missing: Sequence[int], failed: Collection[int], workers: int, n_final: int) -> tuple[int, ...]:
    """Return which of `missing` an idle worker compiles into one library, the fastest first.

    That is its share of `n_final` among `workers` workers.

    Those that `failed` come last, and alone, because another member or the worker may have caused the failure.
    """
    fresh = [index for index in missing if index not in failed]
    if not fresh:
        return tuple(missing[:1])
    return tuple(fresh[: math.ceil(n_final / workers)])


class Finalists:
    """Compiles likely finalists as tilelang does, if their first timing used shared code.

    `candidates`: the space's, by index. `n_final`: how many leaders to compile; 0 compiles none. `workers`: how many.
    `proves`: whether the winner will be proven.
    """

    def __init__(
        self, run: Run, candidates: Mapping[int, Candidate], n_final: int, workers: int, *, proves: bool = False
    ) -> None:
        self.run, self.candidates, self.n_final, self.workers = run, candidates, n_final, workers
        self._proves = proves
        self.made: dict[int, Built] = {}
        """Each candidate's artifact, or its failure once it failed twice."""
        self._failed: set[int] = set()
        self._under_way: list[tuple[tuple[int, ...], anyio.CancelScope]] = []
        self._lowered: dict[int, Lowered] = {}

    def leaders(self) -> list[int]:
        """Return who would be in the final if it began now, the fastest first; empty if there would be no final."""
        ranked = self.fastest(max(2, self.n_final))
        return ranked[: self.n_final] if len(ranked) > 1 and self.run.recorder.state.final is None else []

    def fastest(self, most: int) -> list[int]:
        """Return up to `most` measured candidates, the fastest first."""
        return [measured.index for measured in self.run.recorder.state.ranked(most)]

    def next(self) -> Ahead | None:
        """Return work for an idle worker."""
        part = self.next_part()
        return partial(self.make, part) if part else None

    def next_part(self, leaders: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return which of `leaders` (default: the current ones) an idle worker should compile; empty if none is left.

        Leaders that are compiled or being compiled are not among them.
        """
        if not self.n_final:
            return ()
        taken = {index for part, _ in self._under_way for index in part} | self.made.keys()
        artifacts, wanted = self.run.artifacts, self.leaders() if leaders is None else leaders
        missing = [i for i in wanted if i not in taken and i in artifacts and not artifacts[i].exact]
        return share(missing, self._failed, self.workers, self.n_final)

    def remember(self, lowered: Lowered, artifact: Artifact) -> None:
        """Keep a lowered candidate that may be compiled again, until it is clearly no finalist.

        That happens if its code is shared, or for its proof.
        """
        proves = self._proves and lowered.plain and bool(lowered.blob) and not artifact.plain
        if not proves and (artifact.exact or not self.n_final):
            return
        self._lowered[lowered.index] = lowered
        if len(self._lowered) > KEPT:
            leaders, outcome = self.leaders(), self.run.recorder.state.outcome
            unknown = [index for index in self._lowered if index not in leaders and outcome(index) is None]
            keep = {*leaders, *unknown[-KEPT // 2 :]}
            self._lowered = {index: one for index, one in self._lowered.items() if index in keep}

    def lowered_to(self, artifact: Artifact) -> Lowered | None:
        """Return what the plain steps lowered a candidate to, for the proof of its library; None if it is not kept."""
        lowered = self._lowered.get(artifact.index)
        return lowered if lowered is not None and lowered.plain else None

    async def make(self, part: tuple[int, ...], worker: CompileWorker) -> None:
        """Compile `part` into one library. Cancelling (see `drop_overtaken`) leaves nothing behind."""
        began, answers = self.run.recorder.elapsed_s, list[Built]()
        with anyio.CancelScope() as scope:
            self._under_way.append((part, scope))
            try:
                known = {index: self._lowered[index] for index in part if index in self._lowered}
                wanted = [self.candidates[index] for index in part if index in self.candidates]
                answers = await worker.build_exact(wanted, known) if wanted else []
                answers += [Failure(index, "lower", GONE) for index in part if index not in self.candidates]
            except MachineError:
                raise
            except AtuneError as error:  # no measurement depends on it
                answers = [Failure(index, "worker_lost", str(error)) for index in part]
            finally:
                self._under_way.remove((part, scope))
        for one in answers:
            if isinstance(one, Artifact) or one.index in self._failed:
                self.made[one.index] = one
                if one.index in self._lowered and not self._lowered[one.index].plain:  # else its proof needs it
                    del self._lowered[one.index]
            else:
                self._failed.add(one.index)
        good = [one for one in answers if isinstance(one, Artifact)]
        if good:
            seconds = round(self.run.recorder.elapsed_s - began, 4)
            self.run.built(worker.name, good, "compiled as tilelang does, for the final", seconds)

    def drop_overtaken(self) -> None:
        """Cancel compiles of groups without a current leader, so that the final does not wait for them."""
        leaders = self.leaders()
        for part, scope in self._under_way:
            if not set(part) & set(leaders):
                scope.cancel()

    async def complete(self, workers: Sequence[CompileWorker], leaders: Sequence[int]) -> None:
        """Compile the missing `leaders` on all `workers`."""

        async def work(worker: CompileWorker) -> None:
            while part := self.next_part(leaders):
                await self.make(part, worker)

        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(work, worker)

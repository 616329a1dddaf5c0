"""The final: re-benchmarks the best few candidates in turn, until their order is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from atune.engine.benchmark_stage import BETWEEN, Measuring
from atune.engine.finalists import Finalists
from atune.engine.interfaces import CompileWorker, DeviceWorker
from atune.engine.plan import GONE
from atune.engine.ranking import equal_best, final_order, unsettled
from atune.engine.run_state import Run
from atune.errors import WorkerError
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkRepeated,
    CandidateMeasured,
    FinalOrdered,
    FinalStarted,
    Warned,
)
from atune.model.artifact import Artifact, Failure
from atune.model.candidate import Candidate
from atune.model.jobs import FinalJob, MeasureJob
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings

NO_FINAL = "no final: no device is left to time the finalists on"
FINAL_S = 5.0
"""Seconds after which the final times no further round, even if the order is not settled."""

Find = Callable[[Artifact], Artifact | None]


class _FinalistsFailed(Exception):
    """Finalists gave wrong results after they were timed: the timings of that round do not count."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


class FinalStage:
    """Re-benchmarks finalists on one device. Gets libraries for those that an earlier part of the run measured.

    `candidates`: the space's, by index. `find` looks a library up in the artifact store. Some candidates share code
    with others; `finalists` compiles these as tilelang does, before they are timed.
    """

    def __init__(
        self,
        run: Run,
        benchmark: BenchmarkSettings,
        measuring: Measuring,
        finalists: Finalists,
        compile_workers: Sequence[CompileWorker],
        candidates: Mapping[int, Candidate],
        find: Find,
    ) -> None:
        self.run, self.benchmark = run, benchmark
        self.measuring, self.finalists = measuring, finalists
        self.compile_workers, self.candidates, self.find = compile_workers, candidates, find
        self.emit, self.state = run.recorder.emit, run.recorder.state
        self._tried: set[int] = set()
        """Finalists whose library, compiled as tilelang does, was tried on a device."""

    async def hold(self) -> None:
        """Re-benchmark the best few in turn, with the default and the slowest beside them, while nothing compiles.

        A finalist with wrong results becomes a failure, and the others are timed again. A final that a journal already
        holds is kept; then only a missing library of the winner is compiled.
        """
        while await self._hold():
            await self.run.outcomes.acknowledge()

    async def _hold(self) -> bool:
        """Run the final. Returns whether it must be repeated without a finalist that failed in it."""
        contenders = self.finalists.fastest(max(2, self.benchmark.n_final))
        if self.benchmark.n_final == 0 or len(contenders) < 2 or self.state.final is not None:
            await self._get_winner()
            return False
        usable = self.measuring.usable()
        if not usable:
            self.emit(Warned, message=NO_FINAL)
            return False
        contenders = contenders[: self.benchmark.n_final]
        chosen = self._chosen(contenders)
        await self._recover(chosen)
        chosen = [i for i in chosen if i in self.run.artifacts]
        contenders = [i for i in contenders if i in self.run.artifacts]
        if len(chosen) < 2 or not contenders:
            return False
        worker = next((worker for worker in usable if worker.alive), usable[0])
        ready = worker.alive or await self.measuring.restarted(worker, BETWEEN)
        if not ready or not await self._build_exact(worker, contenders):
            return self._on_another(NO_FINAL)
        return await self._time(worker, chosen, contenders)

    def _on_another(self, without: str) -> bool:
        """Return whether a device is left for a final whose device was given up. Warns `without` one."""
        if not (left := bool(self.measuring.usable())):
            self.emit(Warned, message=without)
        return left

    def _chosen(self, leaders: Sequence[int]) -> list[int]:
        """Return the leaders, the slowest, and the default if it was measured."""
        slowest = self.state.slowest
        beside = (None if slowest is None else slowest.index, self._default())
        return list(dict.fromkeys([*leaders, *(index for index in beside if index is not None)]))

    def _default(self) -> int | None:
        """Return the candidate that was built and ran for the default; None if it was not measured."""
        header = self.state.header
        outcome = None if header is None or header.default is None else self.state.outcome(header.default)
        return outcome.index if isinstance(outcome, CandidateMeasured) else None

    async def _get_winner(self) -> None:
        winner = self.state.winner
        if winner is None:
            return
        await self._recover([winner])
        workers = [worker for worker in self.measuring.usable() if worker.alive]
        if winner in self.run.artifacts and workers and self.benchmark.n_final:
            await self._build_exact(workers[0], [winner])

    async def _time(self, worker: DeviceWorker, chosen: Sequence[int], contenders: Sequence[int]) -> bool:
        """Time and record the final; repeat it once if its device is lost.

        Returns whether a further final must be held: finalists failed, or the device was given up and others are left.
        """
        for attempt in range(2):
            self.emit(FinalStarted, worker=worker.name, device=worker.name, indices=tuple(chosen))
            try:
                entries, ties, reference = await self._rounds(worker, chosen, contenders)
            except _FinalistsFailed as failed:
                await self._drop(worker, failed.failures)
                return True
            except WorkerError as error:
                without = f"no final: {error}; the order is that of the first timings"
                if attempt:
                    self.emit(Warned, message=without)
                    return False
                if not await self.measuring.restarted(worker, str(error)):
                    return self._on_another(without)
            else:
                where = {"worker": worker.name, "device": worker.name}
                self.emit(FinalOrdered, **where, entries=tuple(entries), reference=reference, ties=ties)
                return False
        return False

    async def _drop(self, worker: DeviceWorker, failures: Sequence[Failure]) -> None:
        """Record finalists as failures, and restart the device if they killed its process."""
        for one in failures:
            where = {"worker": worker.name, "index": one.index, "device": worker.name}
            self.emit(BenchmarkFailed, **where, kind=one.kind, message=one.message, detail=one.detail)  # type: ignore[arg-type]
            self.run.artifacts.pop(one.index, None)
            self.run.outcomes.settled(one.index)
        if not worker.alive:
            await self.measuring.restarted(worker, f"{failures[0].kind}: {failures[0].message}")

    async def _rounds(
        self, worker: DeviceWorker, chosen: Sequence[int], contenders: Sequence[int]
    ) -> tuple[list[FinalEntry], tuple[int, ...], Timing | None]:
        """Time all in turn, then only those whose order is open, until it is settled or a limit is reached."""
        rounds = self.benchmark.n_final_rounds
        looks = max(1, self.benchmark.n_final_limit // rounds)
        began, timings = self.run.recorder.elapsed_s, dict[int, Timing]()
        found, reference = await self._timed(worker, chosen, rounds)
        timings.update((e.index, e.timing) for e in found)
        for _ in range(looks - 1):
            playing = unsettled(timings, contenders, looks)
            if not playing or self.run.recorder.elapsed_s - began > FINAL_S:
                break
            found, _ = await self._timed(worker, playing, rounds, with_reference=False)
            timings.update((e.index, timings[e.index].and_more(e.timing)) for e in found)
        keys = {i: self.state.entries[i].key for i in timings}
        entries = final_order(timings, contenders, keys, looks, self._default())
        equals = equal_best(timings, contenders, keys, looks)
        return entries, tuple(e.index for e in entries[1:] if e.index in equals), reference

    async def _timed(
        self, worker: DeviceWorker, finalists: Sequence[int], rounds: int, with_reference: bool = True
    ) -> tuple[list[FinalEntry], Timing | None]:
        artifacts = tuple(self.run.artifacts[i] for i in finalists)
        found = await worker.run(FinalJob(artifacts, rounds, with_reference))
        if found.failures:
            raise _FinalistsFailed(found.failures)
        return list(found.entries), found.reference

    async def _build_exact(self, worker: DeviceWorker, contenders: Sequence[int]) -> bool:
        """Replace shared libraries by tilelang's own, if these work. Returns False if the device is lost."""
        artifacts, made = self.run.artifacts, self.finalists.made
        await self.finalists.complete(self.compile_workers, contenders)
        for index in contenders:
            if artifacts[index].exact or index in self._tried or index not in made:
                continue
            self._tried.add(index)
            one = made[index]
            answer = await self._measured(worker, one) if isinstance(one, Artifact) else one
            if isinstance(one, Artifact) and isinstance(answer, Failure) and answer.doubt:
                self.emit(BenchmarkRepeated, worker=worker.name, index=index, device=worker.name, reason=answer.doubt)
                if not await self.measuring.restarted(worker, f"{answer.kind}: {answer.message}"):
                    self._tried.discard(index)
                    return False
                answer = await self._measured(worker, one)
            if not worker.alive and not await self.measuring.restarted(worker, BETWEEN):
                self._tried.discard(index)
                return False
            if isinstance(one, Artifact) and isinstance(answer, Measurement):
                artifacts[index] = one
            elif isinstance(answer, Failure):
                message = f"candidate {index} may differ, in the final, from what tilelang compiles"
                why = f"compiled as tilelang does it, it does not work ({answer.message})"
                self.emit(Warned, message=f"{message}: {why}")
        return True

    @staticmethod
    async def _measured(worker: DeviceWorker, artifact: Artifact) -> Measurement | Failure:
        """Check and time `artifact` again, because it is not the library that was measured."""
        try:
            return await worker.run(MeasureJob(artifact))
        except WorkerError as error:
            return Failure(artifact.index, "worker_lost", str(error))

    async def _recover(self, wanted: Sequence[int]) -> None:
        """Get the libraries of candidates that an earlier part measured: from the store, or by compiling again."""
        state = self.state
        missing = [index for index in wanted if index not in self.run.artifacts]
        if missing and state.kept is not None and state.kept.index in missing:
            found = await anyio.to_thread.run_sync(self.find, state.kept)
            if found is not None:
                self.run.artifacts[found.index] = found
                missing.remove(found.index)

        async def rebuild(worker: CompileWorker) -> None:
            while missing:
                index = missing.pop(0)
                candidate = self.candidates.get(index)
                failed = GONE if candidate is None else await self._rebuild(worker, candidate)
                if failed:
                    message = f"candidate {index} was measured before and could not be compiled again ({failed})"
                    self.emit(Warned, worker=worker.name, message=f"{message}: it is not in the final")

        async with anyio.create_task_group() as tasks:
            for worker in self.compile_workers[: len(missing)]:
                tasks.start_soon(rebuild, worker)

    async def _rebuild(self, worker: CompileWorker, candidate: Candidate) -> str:
        """Compile one candidate again. Returns why that failed, or an empty text."""
        lowered = await worker.lower(candidate)
        if isinstance(lowered, Failure) and lowered.doubt:
            lowered = await worker.lower(candidate)
        if isinstance(lowered, Failure):
            return lowered.message
        if lowered.code_key != self.state.entries[candidate.index].code_key:
            return "it has other code now"
        built, reason = await worker.find(lowered), "compiled before"
        if built is None:
            [answer] = await worker.build([lowered])
            if isinstance(answer, Failure) and answer.doubt:
                [answer] = await worker.build([lowered])
            if isinstance(answer, Failure):
                return answer.message
            built, reason = answer, "measured before: again for the final"
        self.run.artifacts[candidate.index] = built
        self.finalists.remember(lowered, built)
        self.run.built(worker.name, [built], reason, built.seconds)
        return ""

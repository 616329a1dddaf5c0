"""The final: times the best few candidates again in turn until their order is settled, and decides the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from atune.engine.benchmark_stage import ENDED_BETWEEN, BenchmarkStage
from atune.engine.interfaces import CompileWorker, DeviceWorker
from atune.engine.run_state import Run
from atune.errors import MachineError, WorkerError
from atune.journal.events import BitsCompared, CandidateMeasured, DeviceLost, FinalOrdered, FinalStarted, Warned
from atune.journal.state import COMPILED_BEFORE
from atune.model.artifact import Built, Failure, Lowered
from atune.model.candidate import Candidate
from atune.model.jobs import BitsJob, BuildJob, FinalJob, Finals, FindJob, GroupFailed, LowerJob
from atune.model.measurement import CLOSE, FinalEntry, Timing, ratio_interval
from atune.model.settings import BenchmarkSettings

ERROR_PROBABILITY = 0.05
"""Probability of a wrong decision in a final, summed over all comparisons at all `INTERIM_LOOKS` (Bonferroni)."""
TIE = 0.002
"""Two finalists are equally fast if the confidence interval of their latencies' ratio is within this distance of 1."""
SEEDS = (1, 2)
"""Seeds of further inputs. With `same_bits`, a finalist's outputs must have the same bits as the default's outputs."""


def unsettled(timings: Mapping[int, Timing], contenders: Sequence[int]) -> list[int]:
    """Return the contenders for further rounds: the leader, and each contender that may be as fast as the leader.

    The list is empty if every other contender is known to be slower than the leader, or as fast as the leader. A
    contender with fewer samples than others was found to be slower in an earlier round, so it is ignored.
    """
    playing = _most_timed(timings, contenders)
    leader = min(playing, key=lambda i: timings[i].latency_ms)
    level = _level(contenders)
    undecided = [i for i in playing if i != leader and _verdict(timings[i], timings[leader], level) == "open"]
    return [leader, *undecided] if undecided else []


def final_order(
    timings: Mapping[int, Timing], contenders: Sequence[int], keys: Mapping[int, str], default: int | None = None
) -> tuple[list[FinalEntry], tuple[int, ...]]:
    """Return all entries (the winner, then the others by latency), and the candidates that are as fast as the winner.

    The winner is the leader if it is faster than all others. Otherwise, of the leader and the candidates that are as
    fast, the one with the smallest config key wins, so that repeated runs agree. The `default`, if it is a contender,
    loses only to a candidate that gains at least `CLOSE`, with a 95 % interval of the gain that excludes 1.
    """
    playing = _most_timed(timings, contenders)
    leader = min(playing, key=lambda i: (timings[i].latency_ms, keys[i]))
    equals = {leader}
    for i in playing:
        slower = _verdict(timings[i], timings[leader], _level(contenders)) == "slower"
        if not slower and ratio_interval(timings[i], timings[leader])[1] <= 1 + CLOSE:
            equals.add(i)
    winner = min(equals, key=lambda i: keys[i])
    if default is not None and default in contenders:
        fast, slow = timings[winner], timings[default]
        gains = slow.latency_ms / fast.latency_ms >= 1 + CLOSE and ratio_interval(slow, fast)[0] > 1
        winner = winner if gains else default
    rest = sorted((i for i in timings if i != winner), key=lambda i: (timings[i].latency_ms, keys[i]))
    return [FinalEntry(i, timings[i]) for i in (winner, *rest)], tuple(i for i in rest if i in equals)


def finalists(
    measured: Sequence[CandidateMeasured], reference_ms: Mapping[str, float], most: int
) -> list[CandidateMeasured]:
    """Return the `most` fastest candidates, and the `most` fastest relative to the reference on the same device.

    `measured`: the fastest first. Relative latencies keep good candidates that a slower device measured.
    """
    if not {m.device for m in measured} <= reference_ms.keys():
        return list(measured[:most])
    relative = sorted(measured, key=lambda m: m.timing.latency_ms / reference_ms[m.device])
    chosen = {m.index for m in (*measured[:most], *relative[:most])}
    return [m for m in measured if m.index in chosen]


def _most_timed(timings: Mapping[int, Timing], contenders: Sequence[int]) -> list[int]:
    most = max(timings[i].n_samples for i in contenders)
    return [i for i in contenders if timings[i].n_samples == most]


def _level(contenders: Sequence[int]) -> float:
    return 1 - ERROR_PROBABILITY / max(1, INTERIM_LOOKS * (len(contenders) - 1))


def _verdict(slow: Timing, fast: Timing, level: float) -> str:
    low, _, high = ratio_interval(slow, fast, level)
    if low >= 1 - TIE and high <= 1 + TIE:
        return "tied"
    return "slower" if low > 1 else "open"


NO_FINAL = "no final: no device is left to time the finalists on"
FINAL_S = 5.0
"""Seconds after which the final begins no further round, even if the order is not settled."""
MOST_LOSSES = 2
"""Number of processes that a final may lose. The finalist that ended a process is unknown, and may end more."""
INTERIM_LOOKS = 10
"""Largest number of times that the order is examined: after the first rounds, and after each further set of rounds."""


class _FinalistsFailed(Exception):
    """Finalists gave wrong results after they were timed, so the round's timings are invalid. `args`: the failures."""


class FinalStage:
    """Gets the libraries of finalists that an earlier part measured, then times all finalists again on one device.

    `candidate`: a function that returns the candidate with a given index.
    """

    def __init__(
        self,
        run: Run,
        benchmark: BenchmarkSettings,
        measuring: BenchmarkStage,
        workers: Sequence[CompileWorker],
        candidate: Callable[[int], Candidate],
        alone: bool = False,
    ) -> None:
        self.run, self.benchmark, self.alone = run, benchmark, alone
        self.measuring, self.workers, self.candidate = measuring, workers, candidate
        self.emit, self.state = run.recorder.emit, run.recorder.state
        self._memory_bytes = 0

    async def time_finalists(self, wrong: set[int]) -> None:
        """Time the best few candidates and the default again, in turn. `wrong`: candidates that need another library.

        A finalist with wrong results becomes a failure, and the others are timed again. If the journal already holds a
        final, no new final is run, and the winner is compiled again only if its library is missing.
        """
        while await self._time_finalists(wrong):
            await self.run.outcomes.acknowledge()

    async def _time_finalists(self, wrong: set[int]) -> bool:
        """Run the final. Returns whether to run another final, without the finalists that failed."""
        reference_ms = {name: timing.latency_ms for name, timing in self.state.references.items()}
        most = max(2, self.benchmark.n_final)
        best = finalists(self.state.admitted(), reference_ms, most)
        contenders = [measured.index for measured in best]
        fewest = 1 if self.alone and any(self.state.first(i).in_space for i in contenders) else 2
        if self.benchmark.n_final == 0 or len(contenders) < fewest or self.state.final is not None:
            return await self._recovered(wrong)
        usable = self.measuring.usable()
        if not usable:
            self.emit(Warned, message=NO_FINAL)
            return False
        contenders = contenders if self.benchmark.n_final > 1 else contenders[:1]
        default = self._default()
        if default is not None and self.state.first(default).may_win:
            contenders = list(dict.fromkeys([*contenders, default]))
        chosen = list(dict.fromkeys([*contenders, *([] if default is None else [default])]))
        if len(chosen) < fewest:
            return await self._recovered(wrong)
        await self._recover(chosen)
        chosen = [i for i in chosen if i in self.run.artifacts]
        contenders = [i for i in contenders if i in self.run.artifacts]
        if len(chosen) < fewest or not contenders:
            return False
        worker = next((worker for worker in usable if worker.alive), usable[0])
        if not worker.alive and not await self.measuring.restarted(worker, ENDED_BETWEEN):
            return self._on_another(NO_FINAL)
        return await self._time(worker, chosen, contenders)

    async def _recovered(self, wrong: set[int]) -> bool:
        """Get the winner's library if no final is run. Returns whether another candidate may be the winner now."""
        winner = self.state.winner
        if winner is None:
            return False
        await self._recover([winner])
        if winner not in wrong or winner not in self.run.artifacts:
            return False
        wrong.discard(winner)
        return await self.measuring.again(self.run.artifacts[winner])

    def _on_another(self, warning: str) -> bool:
        """Return whether another device is left to run the final. If no device is left, emit `warning`."""
        if not (left := bool(self.measuring.usable())):
            self.emit(Warned, message=warning)
        return left

    def _default(self) -> int | None:
        """Return the index of the measured candidate that has the default's code; None if there is none."""
        return None if self.state.default is None else self.state.default.index

    async def _time(self, worker: DeviceWorker, chosen: Sequence[int], contenders: Sequence[int]) -> bool:
        """Time and record the final. If a finalist kills the process, start the final again.

        After `MOST_LOSSES` lost processes in all parts of the run, the first timings decide the order. Returns whether
        to run another final, because finalists failed, or because the device was given up and another device is left.
        """
        warning = f"no final: the final's process ended {MOST_LOSSES} times, so the first timings decide the order"
        while self.state.final_losses < MOST_LOSSES:
            self.emit(FinalStarted, worker=worker.name, device=worker.name, indices=tuple(chosen))
            try:
                if self.benchmark.same_bits and await self._bits_differ(worker, chosen):
                    return True
                order = await self._rounds(worker, chosen, contenders)
            except _FinalistsFailed as failed:
                await self._drop(worker, failed.args)
                return True
            except (WorkerError, MachineError) as error:
                warning = f"no final: {error}; the first timings decide the order"
                if self.state.final_losses == MOST_LOSSES - 1:  # no further process is needed
                    self.emit(DeviceLost, worker=worker.name, device=worker.name, reason=str(error))
                elif isinstance(error, MachineError):
                    raise
                elif not await self.measuring.restarted(worker, str(error)):
                    return self._on_another(warning)
            else:
                self.emit(FinalOrdered, worker=worker.name, device=worker.name, **order)
                return False
        self.emit(Warned, message=warning)
        return False

    async def _bits_differ(self, worker: DeviceWorker, chosen: Sequence[int]) -> bool:
        """Compare the finalists' output bits with the default's, on inputs from `SEEDS`. Returns whether any differ."""
        if (default := self._default()) is None or default not in chosen:  # the default could not be compiled again
            return False
        bits = await worker.run(BitsJob(tuple(self.run.artifacts[i] for i in chosen), self.run.roles, SEEDS))
        by_index = dict(zip(chosen, bits.digests, strict=True))
        differ = tuple(i for i, digests in by_index.items() if digests != by_index[default])
        self.emit(BitsCompared, worker=worker.name, seeds=1 + len(bits.digests[0]), differ=differ)
        return bool(differ)

    async def _drop(self, worker: DeviceWorker, failures: Sequence[Failure]) -> None:
        """Record finalists as failures, and restart the device if they killed its process."""
        for failure in failures:
            self.measuring.failed(worker, failure)
            self.run.artifacts.pop(failure.index, None)
        if not worker.alive:
            await self.measuring.restarted(worker, f"{failures[0].kind}: {failures[0].message}")

    async def _rounds(self, worker: DeviceWorker, chosen: Sequence[int], contenders: Sequence[int]) -> dict[str, Any]:
        """Time all finalists in turn, then the undecided finalists, until the order is settled or a limit is reached.

        The default and the reference take part in every round, because the winner is compared with them. Returns
        fields of `FinalOrdered`.
        """
        rounds = self.benchmark.n_final_rounds
        began, default = self.run.recorder.elapsed_s, self._default()
        timed = await self._timed(worker, chosen, rounds)
        timings, reference = {e.index: e.timing for e in timed.entries}, timed.reference
        for _ in range(0 if self.alone else INTERIM_LOOKS - 1):
            playing = unsettled(timings, contenders)
            if not playing or self.run.recorder.elapsed_s - began > FINAL_S:
                break
            if default is not None and default in timings:
                playing = list(dict.fromkeys([*playing, default]))
            timed = await self._timed(worker, playing, rounds)
            timings.update((e.index, timings[e.index].and_more(e.timing)) for e in timed.entries)
            if reference is not None and timed.reference is not None:
                reference = reference.and_more(timed.reference)
        keys = {i: self.state.entries[i].key for i in timings}
        entries, ties = final_order(timings, contenders, keys, default)
        return {"entries": tuple(entries), "ties": ties, "reference": reference, "memory_bytes": self._memory_bytes}

    async def _timed(self, worker: DeviceWorker, finalists: Sequence[int], rounds: int) -> Finals:
        artifacts = tuple(self.run.artifacts[i] for i in finalists)
        timed = await worker.run(FinalJob(artifacts, self.run.roles, rounds))
        if timed.failures:
            raise _FinalistsFailed(*timed.failures)
        self._memory_bytes = max(self._memory_bytes, timed.memory_bytes)
        return timed

    async def _recover(self, wanted: Sequence[int]) -> None:
        """Get the libraries of candidates that an earlier part measured, from the store or by compiling again."""
        missing = [index for index in wanted if index not in self.run.artifacts]

        async def rebuild(worker: CompileWorker) -> None:
            while missing:
                index = missing.pop(0)
                failed = await self._rebuild(worker, self.candidate(index))
                if failed:
                    message = f"candidate {index} was measured before, but could not be compiled again ({failed})"
                    self.emit(Warned, worker=worker.name, message=f"{message}, so it is not in the final")

        async with anyio.create_task_group() as tasks:
            for worker in self.workers[: len(missing)]:
                tasks.start_soon(rebuild, worker)

    async def _rebuild(self, worker: CompileWorker, candidate: Candidate) -> str:
        """Compile a candidate again. Returns the reason for a failure, or else an empty string."""
        lowered = await worker.run(LowerJob(candidate))
        if isinstance(lowered, Failure) and lowered.doubt:
            lowered = await worker.run(LowerJob(candidate))
        if isinstance(lowered, Failure):
            return lowered.message
        entry = self.state.entries[candidate.index]
        if lowered.code_key != entry.code_key:
            return "its code has changed"
        built, reason = await worker.run(FindJob(lowered)), COMPILED_BEFORE
        if built is None:
            answer = await _built(worker, lowered)
            if isinstance(answer, Failure) and answer.doubt:
                answer = await _built(worker, lowered)
            if isinstance(answer, Failure):
                return answer.message
            built, reason = answer, "compiled again for the final"
        if built.source_key != entry.source_key and built.source_key and entry.source_key:
            return "the code of its library has changed"
        self.run.artifacts[candidate.index] = built
        self.run.built(worker.name, [built], reason)
        return ""


async def _built(worker: CompileWorker, lowered: Lowered) -> Built:
    """Compile a candidate alone and with nvcc, because the run no longer compares code that cicc made."""
    answers = await worker.run(BuildJob((lowered,), plain=True))
    assert not isinstance(answers, GroupFailed), "a candidate alone has its own failure"
    return answers[0]

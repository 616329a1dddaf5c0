"""The end of a run's measuring: the best few timed in turn, until their order is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from atune.engine.benchmark_stage import BETWEEN, Measuring
from atune.engine.compile_stage import Compiling
from atune.engine.finalists import Finalists
from atune.engine.interfaces import CompileLane, DeviceLane
from atune.engine.ranking import final_order, unsettled
from atune.engine.run_state import Run
from atune.errors import WorkerError
from atune.journal.events import ArtifactBuilt, FinalOrdered, Warned
from atune.model.artifact import Artifact, Failure
from atune.model.candidate import Candidate
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings

NO_FINAL = "no final: no device is left to time it on"
FINAL_S = 5.0
"""Seconds after which the final takes no further look at an order that is not settled."""

Find = Callable[[Artifact], Artifact | None]


class FinalStage:
    """Times finalists on one device, and gets libraries for those that an earlier part of the run measured.

    `candidates`: those of the space, by index. `find` looks a library up where an earlier run kept it. `finalists`
    has those whose code is not just what tilelang makes (which shared their compile, or NVRTC compiled) compiled as
    tilelang does it, before they are timed.
    """

    def __init__(
        self,
        run: Run,
        benchmark: BenchmarkSettings,
        measuring: Measuring,
        compiling: Compiling,
        finalists: Finalists,
        compile_lanes: Sequence[CompileLane],
        candidates: Mapping[int, Candidate],
        find: Find,
    ) -> None:
        self.run, self.benchmark = run, benchmark
        self.measuring, self.compiling, self.finalists = measuring, compiling, finalists
        self.compile_lanes, self.candidates, self.find = compile_lanes, candidates, find
        self.emit, self.state = run.recorder.emit, run.recorder.state

    async def hold(self) -> None:
        """Time the best few in turn, with the default and the slowest beside them, while nothing compiles."""
        state = self.state
        ranked = [m.index for m in state.ranked()]
        if self.benchmark.n_final == 0 or len(ranked) < 2 or state.final is not None:
            await self._recover(ranked[:1] if state.final is None else [state.final.entries[0].index])
            return
        usable = self.measuring.usable()
        if not usable:
            self.emit(Warned, message=NO_FINAL)
            return
        contenders = ranked[: self.benchmark.n_final]
        chosen = contenders + ranked[-1:]
        if state.header is not None and state.header.default is not None:
            chosen += [i for i in ranked if state.first(i) is state.first(state.header.default)]
        chosen = list(dict.fromkeys(chosen))
        await self._recover(chosen)
        chosen = [i for i in chosen if i in self.run.artifacts]
        contenders = [i for i in contenders if i in self.run.artifacts]
        if len(chosen) < 2 or not contenders:
            return
        lane = next((lane for lane in usable if lane.alive), usable[0])
        if not (lane.alive or await self.measuring.restarted(lane, BETWEEN)):
            self.emit(Warned, message=NO_FINAL)
            return
        if not await self._again_as_tilelang(lane, contenders):
            self.emit(Warned, message=NO_FINAL)
            return
        for attempt in range(2):
            try:
                entries, reference = await self._rounds(lane, chosen, contenders)
                break
            except WorkerError as error:
                if attempt or not await self.measuring.restarted(lane, str(error)):
                    self.emit(Warned, message=f"no final: {error}; the order is that of the first timings")
                    return
        self.emit(FinalOrdered, lane=lane.name, device=lane.name, entries=tuple(entries), reference=reference)

    async def _rounds(
        self, lane: DeviceLane, chosen: Sequence[int], contenders: Sequence[int]
    ) -> tuple[list[FinalEntry], Timing | None]:
        """Time all in turn, then those whose order is open, until it is settled or a limit is reached."""
        rounds = self.benchmark.n_final_rounds
        looks = max(1, self.benchmark.n_final_limit // rounds)
        began, timings = self.run.recorder.elapsed_s, dict[int, Timing]()
        found, reference = await lane.final([self.run.artifacts[i] for i in chosen], rounds)
        timings.update((e.index, e.timing) for e in found)
        for _ in range(looks - 1):
            playing = unsettled(timings, contenders, looks)
            if not playing or self.run.recorder.elapsed_s - began > FINAL_S:
                break
            found, _ = await lane.final([self.run.artifacts[i] for i in playing], rounds, with_reference=False)
            timings.update((e.index, timings[e.index].and_more(e.timing)) for e in found)
        return final_order(timings, contenders, {i: self.state.entries[i].key for i in timings}, looks), reference

    async def _again_as_tilelang(self, lane: DeviceLane, contenders: Sequence[int]) -> bool:
        """Put libraries as tilelang makes them in the place of others, where they work; False if the device is lost."""
        artifacts = self.run.artifacts
        await self.finalists.complete(self.compile_lanes)
        for one in [self.finalists.made[index] for index in contenders if index in self.finalists.made]:
            if isinstance(one, Artifact):
                answer = await self._tried(lane, one)
                if not lane.alive and not await self.measuring.restarted(lane, BETWEEN):
                    return False
                if isinstance(answer, Measurement):
                    artifacts[one.index] = one
                    continue
                why = answer.message
            else:
                why = one.message
            message = f"candidate {one.index} may differ, in the final, from what tilelang compiles"
            self.emit(Warned, message=f"{message}: compiled as tilelang does it, it does not work ({why})")
        return True

    @staticmethod
    async def _tried(lane: DeviceLane, artifact: Artifact) -> Measurement | Failure:
        """Check and time `artifact` once more: it is another library than the one that was measured."""
        try:
            return await lane.measure(artifact)
        except WorkerError as error:
            return Failure(artifact.index, "worker_lost", str(error))

    async def _recover(self, wanted: Sequence[int]) -> None:
        """Get the libraries of candidates that an earlier part measured: from the store, else by compiling again."""
        state = self.state
        missing = [index for index in wanted if index not in self.run.artifacts]
        if missing and state.kept is not None and state.kept.index in missing:
            found = await anyio.to_thread.run_sync(self.find, state.kept)
            if found is not None:
                self.run.artifacts[found.index] = found
                missing.remove(found.index)

        async def rebuild(lane: CompileLane) -> None:
            while missing:
                index = missing.pop(0)
                failed = await self._rebuild(lane, self.candidates[index])
                if failed:
                    message = f"candidate {index} was measured before and could not be compiled again ({failed})"
                    self.emit(Warned, lane=lane.name, message=f"{message}: it is not in the final")

        async with anyio.create_task_group() as tasks:
            for lane in self.compile_lanes[: len(missing)]:
                tasks.start_soon(rebuild, lane)

    async def _rebuild(self, lane: CompileLane, candidate: Candidate) -> str:
        """Compile one candidate again; return why not, where that fails."""
        lowered = await lane.lower(candidate)
        if isinstance(lowered, Failure):
            return lowered.message
        if lowered.code_key != self.state.entries[candidate.index].code_key:
            return "it has other code now"
        if (known := await self.compiling.find(lane, lowered)) is not None:
            self.run.artifacts[candidate.index] = known
            return ""
        [built] = await lane.build([lowered])
        if isinstance(built, Failure):
            return built.message
        self.run.artifacts[candidate.index] = built
        self.finalists.remember(lowered, built)
        where = {"indices": (candidate.index,), "file": built.path.rpartition("/")[2], "seconds": built.seconds}
        self.emit(ArtifactBuilt, lane=lane.name, **where, reason="measured before: again for the final")
        return ""

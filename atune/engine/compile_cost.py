"""How long compiles take: estimates by lowered facts, and the deadline by how long the run's other compiles took."""

from __future__ import annotations

import bisect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from atune.engine.background import background
from atune.engine.interfaces import CompileWorker
from atune.engine.screen import SPILL_REGISTERS
from atune.journal.state import State
from atune.model.artifact import Built, Failure, Lowered
from atune.model.jobs import BuildJob, GroupFailed

HEAVY_REGISTERS = 512
"""Accumulators, in registers a thread, from which a compile is among the longest. Its time cannot be predicted, and
parsing headers is a small part of it."""
WORK = ((HEAVY_REGISTERS, 6.0), (SPILL_REGISTERS, 2.5))
"""Pairs of accumulators, in registers a thread, and the relative compile time from that number on. Measured: 2.3 s (1.3
to 4) and 0.9 s, where fewer accumulators took 0.35 s."""
LONG = 4.0
"""A device source this many times longer than the median compiles far longer than others. So do loops of this many
times more iterations a thread. Compilers unroll these. One such kernel took 51 s."""
LONG_BYTES = 32_000
"""Shorter sources compile quickly, even if their neighbours are much shorter still."""
LONG_ITERATIONS = 1024
"""Fewer iterations compile quickly, likewise."""
ITERATIONS = 64.0
"""Iterations a thread that take as long as a compile with few accumulators. Measured: 0.15 s with 16 to 80 iterations,
4 to 5 s with 2,560, 10 to 13 s with 4,096, and 13 to 48 s with 5,120 and 10,240."""

LEAST = 8
"""Number of candidates that must have been compiled before a compile can be hopeless."""
QUANTILE = 0.9
FACTOR = 5.0
"""A compile may take this many times the quantile of the others' times."""
LONG_FACTOR = 2.0
"""The same of a kernel with long loops. On an H200 such kernels of one space took 4 to 48 s, and were 5 to 80 times
slower than the winner."""
FLOOR_S = 10.0
"""The shortest deadline, because a busy machine may delay any compile by this long."""
STEP_S = 1.0
"""Seconds after which the deadline of a compile under way is read again."""


@dataclass
class CompileWork:
    """Estimates compile times, in units of one kernel with a short source and few accumulators."""

    lengths: list[int] = field(default_factory=list)
    """Lengths of the device sources seen, in bytes, sorted."""
    iterations: list[int] = field(default_factory=list)
    """Iterations a thread of the kernels seen, where known, sorted."""
    _many: dict[int, int] = field(default_factory=dict)
    """Iterations of the candidates that have at least `LONG_ITERATIONS`, by index."""

    def saw(self, lowered: Lowered) -> None:
        """Add a candidate's source length, and the iterations of its loops."""
        facts = lowered.facts
        if facts.source_bytes is not None:
            bisect.insort(self.lengths, facts.source_bytes)
        if (iterations := iterations_of(lowered)) is not None:
            bisect.insort(self.iterations, iterations)
            if iterations >= LONG_ITERATIONS:
                self._many[lowered.index] = iterations

    def is_long(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's source or loops are far longer than its neighbours'."""
        return self.has_long_source(lowered) or self.has_long_loops(lowered)

    def has_long_source(self, lowered: Lowered) -> bool:
        length = lowered.facts.source_bytes or 0
        return length >= LONG_BYTES and length >= LONG * _median(self.lengths)

    def has_long_loops(self, lowered: Lowered) -> bool:
        iterations = self._many.get(lowered.index)
        return iterations is not None and iterations >= LONG * _median(self.iterations)

    def of(self, lowered: Lowered) -> float:
        """Return the time to compile one candidate, in compiles."""
        work = max(work_by_registers(lowered), self._many.get(lowered.index, 0) / ITERATIONS)
        if not self.has_long_source(lowered):
            return work
        return max(work, (lowered.facts.source_bytes or 0) / max(1, _median(self.lengths)))

    def of_all(self, queue: Sequence[Lowered], enough: float = math.inf) -> float:
        """Sum up the compile times of `queue`. Stops at `enough`."""
        work = 0.0
        for lowered in queue:
            work += self.of(lowered)
            if work >= enough:
                break
        return work


def _median(ordered: Sequence[int]) -> float:
    """Return the lower median; infinite if there is none."""
    return ordered[(len(ordered) - 1) // 2] if ordered else math.inf


def iterations_of(lowered: Lowered) -> int | None:
    """Return the iterations of its loops a thread; None if they are not known."""
    layouts = lowered.facts.layouts
    return None if layouts is None else layouts.iterations


def accumulators(lowered: Lowered) -> int:
    return lowered.facts.accumulators or 0


def work_by_registers(lowered: Lowered) -> float:
    return next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)


# ---- the deadline


def compile_deadline_s(state: State, group: Sequence[Lowered], most_s: float, factor: float = FACTOR) -> float | None:
    """Return the seconds after which compiling `group` is hopeless; None if the user's limit `most_s` applies.

    A pure function of the events so far, namely of each compiled candidate's share of its library's seconds. The limit
    grows with the number of members. Many accumulators multiply it by the factor that such compiles take longer.

    The space's default configuration has the user's limit, because every result is compared with it. In a group it has
    that of the group, whose parts are then compiled again.
    """
    seen = state.compile_s
    if len(seen) < LEAST or any(state.first(one.index).built for one in group):
        return None  # an earlier part of the run compiled one, so it is not hopeless
    if len(group) == 1 and _is_default(state, group[0].index):
        return None
    usual_s = seen[math.ceil(QUANTILE * len(seen)) - 1]
    limit_s = max(FLOOR_S, factor * usual_s * sum(map(work_by_registers, group)))
    return round(limit_s, 1) if limit_s < most_s else None


def _is_default(state: State, index: int) -> bool:
    """Tell whether a candidate is the space's default configuration, or the one that has its code."""
    default = state.header.default if state.header is not None else None
    return default is not None and state.first(default).index == state.first(index).index


async def compiled_in_time(
    worker: CompileWorker,
    job: BuildJob,
    deadline_s: Callable[[Sequence[Lowered]], float | None],
    sleep: Callable[[float], Awaitable[None]],
) -> list[Built] | GroupFailed:
    """Have `worker` compile a group. Past the deadline that is known by then, kill the compile: it is ``hopeless``.

    Time passes in steps of `sleep`, and only while a process compiles. So of the time in which this program is stopped
    a step counts at most, and waiting for memory, for a place or for a process does not count.
    """
    passed_s, limit_s, scope, group = 0.0, None, anyio.CancelScope(), job.group

    async def end_in_time() -> None:
        nonlocal passed_s, limit_s
        while limit_s is None or passed_s < limit_s:
            await sleep(STEP_S)
            passed_s = passed_s + STEP_S if worker.compiling else 0.0
            limit_s = deadline_s(group) if passed_s >= FLOOR_S else None
        scope.cancel()

    async with background() as tasks:
        tasks.start_soon(end_in_time)
        with scope:
            return await worker.run(job)
    message = f"compiling ran past {limit_s:g} s, far longer than the others' compiles took"
    if len(group) > 1:
        return GroupFailed(message)
    return [Failure(group[0].index, "hopeless", message)]

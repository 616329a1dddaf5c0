"""Decides what a free compile worker does next, as a pure function of the compile stage's state."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered

MAX_GROUP = 16
"""Largest size of a group that the engine chooses itself. At this size, parsing headers is a small share of the cost.
The unit is the compile of a kernel with few accumulators (`work_of`), unless the user gave a number of candidates."""
MIN_GROUP = 4
LOWERING = 1.0
"""Time to lower a candidate, as a multiple of the time of one compile."""
GROUPS_EACH = 1.5
"""Number of groups of equal size that each of several workers should still get. More groups mean more libraries, each
of which costs half a compile. With fewer groups, workers are idle at the end."""
FIRST_GROUP = 2
"""Size of the smallest group, used until every device has something to do."""
COSTLY_REGISTERS = 100.0
"""Above this many registers per thread, compile time is proportional to the accumulators. Measured: 0.35 s with few
registers, 0.9 s with 256, 2.3 s (1.3 to 4) with 512."""
LONG_LOOP, LONG = 1024, 4
"""Loops with at least this many iterations per thread, and `LONG` times the median kernel's iterations, unroll slowly.
Measured: 0.15 s with 20 to 160 iterations, 4 to 5 s with 2,560, 11 to 16 s with 5,120, 40 to 50 s with 10,240."""


@dataclass(frozen=True)
class Lower:
    """Lower the next proposed candidate."""


@dataclass(frozen=True)
class Build:
    """Compile a group into one library. `reason`: explains the group's size."""

    group: tuple[Lowered, ...]
    reason: str


Job = Lower | Build


@dataclass
class CompileState:
    """The compile stage's state, as the scheduler sees it. `workers`, `devices`: the numbers of workers and devices."""

    workers: int
    devices: int
    total: int
    """Largest number of candidates that the space and the budget let the strategy propose."""
    group_size: int | None = None
    pipeline: bool = True
    proposing: bool = True
    held: bool = False
    """Whether the strategy proposes nothing until it gets outcomes. If so, all waiting candidates are compiled."""
    hints: CompileHints = CompileHints()  # noqa: RUF009
    waiting: int = 0
    """Number of proposed candidates that no worker has taken yet."""
    ready: list[Lowered] = field(default_factory=list)
    """Candidates that wait to be built, the oldest first. The candidates in `deferred` are built later."""
    deferred: list[Lowered] = field(default_factory=list)
    retry: list[tuple[Lowered, ...]] = field(default_factory=list)
    """Parts of groups that failed as a whole, and groups whose worker was lost."""
    lowering: int = 0
    seen: int = 0
    """Number of candidates that were lowered or failed to lower."""
    groups: int = 0
    busy: int = 0
    """Number of workers that lower or build."""
    building: int = 0
    comparing: int = 0
    lengths: list[int] = field(default_factory=list)
    """Lengths of all device sources so far, in bytes, in ascending order."""
    iterations: list[int] = field(default_factory=list)
    """Iterations per thread of all kernels so far, in ascending order."""

    def add(self, lowered: Lowered, *, deferred: bool = False) -> None:
        if lowered.facts.source_bytes is not None:
            bisect.insort(self.lengths, lowered.facts.source_bytes)
        bisect.insort(self.iterations, _iterations(lowered))
        (self.deferred if deferred else self.ready).append(lowered)

    def work_of(self, group: Sequence[Lowered]) -> float:
        """Estimate the compile time of `group`. Unit: the compile of a median-length kernel with few accumulators."""
        median = self.lengths[(len(self.lengths) - 1) // 2] if self.lengths else math.inf
        return sum(
            max(1.0, (facts.source_bytes or 0) / max(1, median), (facts.accumulators or 0) / COSTLY_REGISTERS)
            for facts in (lowered.facts for lowered in group)
        )

    def _is_long(self, lowered: Lowered) -> bool:
        """Tell whether compiling a kernel takes far longer than usual because of its loops."""
        iterations, known = _iterations(lowered), self.iterations
        return iterations >= LONG_LOOP and iterations >= LONG * known[(len(known) - 1) // 2]

    @property
    def waits(self) -> bool:
        """Whether nothing can start before a compile under way has ended."""
        return not (self._more_to_lower or self.ready or self.deferred or self.retry)

    @property
    def finished(self) -> bool:
        """Whether no compile work is left or under way."""
        return self.waits and not (self.proposing or self.busy)

    def next_job(self) -> Job | None:
        """Return a free worker's next job, and take it out of the queues; None if the worker must wait.

        At first, each device gets one small group. Later groups follow guided self-scheduling (Polychronopoulos and
        Kuck, IEEE ToC C-36, 1987): each group is one worker's share of the remaining work. So groups shrink towards the
        end of the run, and no large group delays the end.
        """
        if self.busy and self.busy + self.comparing >= self.workers - self.hints.resting:
            return None
        if self.retry:
            return Build(self.retry.pop(), "after a failed or lost group")
        if self.group_size is None and any(map(self._is_long, self.ready)):
            self.deferred += filter(self._is_long, self.ready)
            self.ready = [lowered for lowered in self.ready if not self._is_long(lowered)]
        if self.ready and (build := self._build_ready()) is not None:
            return build
        if self.waiting:
            return Lower()
        if self.hints.builds and not self._coming and self.deferred:
            self.deferred.sort(key=lambda m: (-self._is_long(m) * _iterations(m), -self.work_of([m])))  # longest first
            if self.group_size is None and self._is_long(self.deferred[0]):
                return self._build(self.deferred, 1, "a long loop, alone")
            return self._build(self.deferred, self.group_size or self._share(), "deferred by the screen")
        return None

    def _build_ready(self) -> Build | None:
        """Return the next group of `ready` candidates; None if it is too early for a group."""
        ready = self.ready
        if not self.hints.builds:
            return None
        if self.pipeline and self.groups < self.devices and self.group_size is None:
            size = min(FIRST_GROUP, self._even(), self.total)
            if len(ready) >= size:
                return self._build(ready, size, "small, because a device waits")
        if self.group_size is not None:
            if len(ready) >= self.group_size or not self._more_to_lower:
                return self._build(ready, self.group_size, "group size as requested")
        elif self._work_of_many(ready) >= (share := self._ready_share()):
            return self._build(ready, share, "a worker's share of the remaining work")
        elif not self._more_to_lower:
            part = min(MAX_GROUP, math.ceil(self._work_of_many(ready) / max(1, self.workers - self.busy)))
            return self._build(ready, part, "the rest, divided among the free workers")
        return None

    @property
    def _left(self) -> int:
        """Number of candidates whose lowering has not begun, including candidates that are not proposed yet."""
        return self.total - self.seen - self.lowering if self._coming else self.waiting

    @property
    def _more_to_lower(self) -> bool:
        return bool(self.waiting or self.lowering or self._coming)

    @property
    def _coming(self) -> bool:
        """Whether the strategy will propose more candidates without waiting for measurements."""
        return self.proposing and not self.held

    def _ready_share(self) -> float:
        """Return the size of the next group of `ready`: a worker's share of the remaining work, or less at first."""
        earlier = self.groups / self.workers if self.pipeline and self.devices else math.inf
        first = MIN_GROUP * (1 + earlier)  # the first groups are small, because devices wait for them
        return min(max(MIN_GROUP, min(first, self._share())), self._even())

    def _share(self) -> float:
        """Return a worker's share of the remaining work."""
        shares = GROUPS_EACH * self.workers if self.workers > 1 else 1.0
        return min(MAX_GROUP, self._left_of(self.ready + self.deferred, LOWERING) / shares)

    def _even(self) -> int:
        """Return the largest size of a group that leaves `ready` candidates for every other free worker."""
        free = max(1, self.workers - self.hints.resting - self.building)
        return max(1, math.ceil(self._left_of(self.ready, 0.0) / free))

    def _left_of(self, known: Sequence[Lowered], lowering: float) -> float:
        """Return the work of the `known` candidates and of candidates still to be lowered, in units of one compile.

        A candidate still to be lowered has the work of an average known candidate plus `lowering`.
        """
        work = self._work_of_many(known)
        each = work / len(known) if known else 1.0
        return work + (max(self._left, 0) + self.lowering) * (each + lowering)

    def _work_of_many(self, queue: Sequence[Lowered]) -> float:
        """Return the compile time of `queue`. For a long queue, count only enough work for all workers."""
        return self.work_of(queue[: 2 * MAX_GROUP * self.workers])

    def _build(self, queue: list[Lowered], size: float, reason: str) -> Build:
        """Take the oldest candidates of `queue` as a group: as many as fit in `size`, but at least one. The unit of
        `size` is one compile, or one candidate if the user gave the size."""
        key, work = queue[0].merge_key, 0.0
        group: list[Lowered] = []
        left: list[Lowered] = []
        for lowered in queue:
            more = self.work_of([lowered])
            fits = len(group) < size if self.group_size is not None else not group or work + more <= size
            if lowered.merge_key == key and fits:
                work += more
                group.append(lowered)
            else:
                left.append(lowered)
        queue[:] = left
        self.groups += 1
        return Build(tuple(group), reason)


def _iterations(lowered: Lowered) -> int:
    layouts = lowered.facts.layouts
    return 0 if layouts is None else sum(loop.slots for loop in layouts.loops)


def halves(group: Sequence[Lowered]) -> tuple[tuple[Lowered, ...], tuple[Lowered, ...]]:
    """Split a group that failed as a whole into two."""
    middle = len(group) // 2
    return tuple(group[:middle]), tuple(group[middle:])

"""What a free compile worker does next: a pure function of the compile stage's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atune.artifact import Lowered

MAX_GROUP = 16
"""Largest group the engine chooses by itself: beyond it the headers' share of a library's cost is small. As all sizes
here that nobody asked for, it counts compiles: candidates of one family share theirs."""
MIN_GROUP = 4
MAX_MEMBERS = 4 * MAX_GROUP
"""Most candidates of a group, however few compiles they take."""
HEAVY_REGISTERS = 512
"""Accumulators, in registers a thread, from which a deferred candidate is compiled alone. Of such with half as many
four go together: what a kernel takes grows faster than they do (seen: 0.3 s with 256, 1 to 3 s with 512)."""
HEAVY_LEFT = 6
"""Candidates left to lower for each worker when the compiles that take longest are begun: so few that likely losers
still come late, and enough work beside them that no worker ends long after the others."""
FIRST_GROUP = 2
"""Groups are this small until every device has something to do."""


@dataclass(frozen=True)
class Lower:
    """Take `count` proposed candidates and lower them, one after the other."""

    count: int = 1


@dataclass(frozen=True)
class Build:
    """Compile these together, for `reason`."""

    group: tuple[Lowered, ...]
    reason: str


Job = Lower | Build


@dataclass
class CompileState:
    """The compile stage as the scheduler sees it. Counts are of candidates; `lanes` of workers."""

    lanes: int
    devices: int
    total: int
    """Candidates that will be proposed, at most: the space, or the budget."""
    group_size: int | None = None
    pipeline: bool = True
    in_a_row: int = 1
    """Candidates that one worker lowers one after the other, while there are many: neighbours may share the work."""
    sharing: bool = False
    """Whether candidates of one family share a compile, with the compiler that builds now."""
    related: bool = False
    """Whether neighbours were seen to share it: then they are lowered in a row to the end."""
    taken: int = 0
    """Proposed candidates that workers have taken."""
    waiting: int = 0
    lowering: int = 0
    building: int = 0
    busy: int = 0
    ahead: int = 0
    """Workers that compile leaders ahead of the final, which no candidate waits for: they are not `busy`."""
    proposing: bool = True
    seen: int = 0
    """Candidates whose lowering has ended, either way."""
    groups: int = 0
    ready: list[Lowered] = field(default_factory=list)
    deferred: list[Lowered] = field(default_factory=list)
    resting: int = 0
    """Workers that start nothing new for now: devices that measure need their cores."""
    hold: bool = False
    """Whether building will soon be cheaper than it is now: then only the first groups, which devices wait for."""
    hold_first: bool = False
    """Whether it will be so much sooner than a first group would be built now that those wait, too."""
    retry: list[tuple[Lowered, ...]] = field(default_factory=list)
    """Parts of groups that failed as a whole."""

    @property
    def finished(self) -> bool:
        """Whether no compile work is left or under way."""
        return self._all_begun and not self.building

    @property
    def spare(self) -> bool:
        """Whether a worker without a job may compile ahead of the final: nothing else will need it but by a failure."""
        return self.pipeline and self._all_begun and self._idle

    @property
    def leaders_known(self) -> bool:
        """Whether a worker may do so before likely losers are compiled: they are all that is left to begin.

        That all others are measured is seen to elsewhere. nvcc takes longer than most of the losers, with which half
        of the workers go on.
        """
        spare = self._idle and self.ahead < self.lanes // 2
        return self.pipeline and bool(self.deferred) and self._only_deferred and not self.hold and spare

    @property
    def _idle(self) -> bool:
        return self.busy + self.ahead < self.lanes - self.resting

    @property
    def _all_begun(self) -> bool:
        return self._only_deferred and not self.deferred

    @property
    def _only_deferred(self) -> bool:
        left = self.waiting or self.lowering or self.ready or self.retry
        return not self.proposing and not left

    def next_job(self) -> Job | None:
        """Return what a free worker should do now, taking it out of the queues; None when it must wait.

        Early on, one small group a device gets the devices going. Then groups follow guided self-scheduling
        (Polychronopoulos and Kuck, IEEE ToC C-36, 1987): a share of what is left for each worker, so they shrink
        towards the end and no worker waits for a late large group.
        """
        if self.busy and self.busy >= self.lanes - self.resting:
            return None
        if self.retry:
            return Build(self.retry.pop(), "part of a failed group")
        if self._heavy_due():
            return self._build_deferred()
        if self.ready:
            waits = self.pipeline and self.groups < self.devices and self.group_size is None and not self.hold_first
            if waits and len(self.ready) >= min(FIRST_GROUP, self.total):
                return self._build(self.ready, FIRST_GROUP, "small: a device waits")
            elif self.hold:
                pass
            elif self.group_size is not None:
                if len(self.ready) >= self.group_size or not self._more_to_lower:
                    return self._build(self.ready, self.group_size, "group size as asked")
            elif self._parts(self.ready) >= self._share():
                return self._build(self.ready, self._share(), "a worker's share of what is left")
            elif not self._more_to_lower and not self.lowering:
                return self._build(self.ready, self._split(self.ready), "the rest, split over the free workers")
        if self.waiting:
            return Lower(min(self._row(), self.waiting))
        if not self.hold and not self.proposing and self.deferred:
            return self._build_deferred()  # nothing else can be begun
        return None

    def _heavy_due(self) -> bool:
        heavy = any((lowered.facts.accumulators or 0) >= HEAVY_REGISTERS for lowered in self.deferred)
        return heavy and not self.hold and self.groups >= self.devices and self._left <= HEAVY_LEFT * self.lanes

    def _build_deferred(self) -> Build:
        """Take the longest first, by what is known of them, so that none of those is the last."""
        self.deferred.sort(key=lambda lowered: -(lowered.facts.accumulators or 0))
        return self._build(self.deferred, self.group_size or self._heavy(), "deferred by the screen")

    def _row(self) -> int:
        """Return how many candidates to lower in a row.

        All workers begin at once with one each; whoever comes second of two neighbours then finds the other's work.
        Rows end where the space's do.
        """
        many = self.related or self._left >= 2 * self.in_a_row * self.lanes
        if not many or self.taken < self.lanes:
            return 1
        return self.in_a_row - self.taken % self.in_a_row

    @property
    def _left(self) -> int:
        """Count the candidates whose lowering has not begun, those to come included."""
        return self.total - self.seen - self.lowering

    @property
    def _more_to_lower(self) -> bool:
        return bool(self.waiting or self.lowering or self.proposing)

    def _share(self) -> int:
        known = self.ready + self.deferred
        left = max(self.total - self.seen, 0) + len(known)
        parts = left * self._parts(known) / len(known)  # families are as large among what is not lowered yet
        return max(MIN_GROUP, min(MAX_GROUP, math.ceil(parts / (2 * self.lanes))))

    def _split(self, queue: Sequence[Lowered]) -> int:
        free = max(1, self.lanes - self.busy)
        return max(1, min(MAX_GROUP, math.ceil(self._parts(queue) / free)))

    def _heavy(self) -> int:
        """Return how many of the deferred to build together.

        Likely to spill means long in the compiler, the longer the more it holds: such groups are small, so that the
        workers end at the same time.
        """
        registers, parts = self.deferred[0].facts.accumulators, self._parts(self.deferred)
        if not registers:  # nobody knows how long it takes
            return max(1, min(MAX_GROUP, math.ceil(parts / (2 * self.lanes))))
        last = parts <= FIRST_GROUP  # one a worker: whoever is not free yet soon will be
        share = math.ceil(parts / (self.lanes if last else 2 * self.lanes))
        return max(1, min(MAX_GROUP, share, (HEAVY_REGISTERS // registers) ** 2))

    def _parts(self, queue: Sequence[Lowered]) -> int:
        """Count the compiles that `queue` takes: one for each candidate, or one for all of a family."""
        return len({(self.sharing and lowered.family) or lowered.index for lowered in queue})

    def _build(self, queue: list[Lowered], size: int, reason: str) -> Build:
        """Take members that compile together, the oldest first: up to `size` compiles, with all that share one.

        A size that was asked for is one of candidates.
        """
        key = queue[0].merge_key
        group: list[Lowered] = []
        for lowered in queue:
            fits = len(group) < size if self.group_size is not None else self._parts([*group, lowered]) <= size
            fits &= len(group) < MAX_MEMBERS
            if lowered.merge_key == key and fits:
                group.append(lowered)
        taken = {lowered.index for lowered in group}
        queue[:] = [lowered for lowered in queue if lowered.index not in taken]
        self.groups += 1
        return Build(tuple(group), reason)


def halves(group: Sequence[Lowered]) -> tuple[tuple[Lowered, ...], tuple[Lowered, ...]]:
    """Split a group that failed as a whole."""
    middle = len(group) // 2
    return tuple(group[:middle]), tuple(group[middle:])

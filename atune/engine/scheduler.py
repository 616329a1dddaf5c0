"""What a free compile worker does next: a pure function of the compile stage's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atune.engine.screen import SPILL_REGISTERS
from atune.model.artifact import Lowered

MAX_GROUP = 16
"""Largest group the engine chooses by itself: beyond it the headers' share of a library's cost is small. As all sizes
here that nobody asked for, it counts compiles of kernels with few accumulators: see `WORK`. Candidates of one family
share a compile."""
MIN_GROUP = 4
MAX_MEMBERS = 4 * MAX_GROUP
"""Most candidates of a group, however few compiles they take."""
HEAVY_REGISTERS = 512
"""Accumulators, in registers a thread, that make a compile one of the longest: nobody knows how long, and headers are
a small part of it. So, with more than `FEW_WORKERS`, it has a library of its own."""
FEW_WORKERS = 3
"""Workers that have so much to do each that one long compile does not decide when the end comes: those that take
longest begin with the other likely losers, and share libraries as all do."""
WORK = ((HEAVY_REGISTERS, 6.0), (SPILL_REGISTERS, 2.5))
"""Accumulators, in registers a thread, and how long the compile of a kernel with so many takes beside one with fewer:
2.3 s (1.3 to 4) and 0.9 s were seen for 0.35 s."""
LOWERING = 1.0
"""What it takes to lower a candidate, beside such a compile."""
SHARES = 1.5
"""Groups that would be left for each of several workers if all were as large as the next. More, smaller ones cost what
each library costs again (half as much as a compile); fewer leave workers idle at the end."""
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
    """Whether candidates of one family share a compile, with the compiler that builds now or soon will."""
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
        (Polychronopoulos and Kuck, IEEE ToC C-36, 1987): a share of the work that is left for each worker, so they
        shrink towards the end and no worker waits for a late large group.
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
            elif (work := self._work(self.ready)) >= MIN_GROUP and work >= (share := self._ready_share()):
                return self._build(self.ready, share, "a worker's share of what is left")
            elif not self._more_to_lower and not self.lowering:
                return self._build(self.ready, self._split(self.ready), "the rest, split over the free workers")
        if self.waiting:
            return Lower(min(self._row(), self.waiting))
        if not self.hold and not self.proposing and self.deferred:
            return self._build_deferred()  # nothing else can be begun
        return None

    def _heavy_due(self) -> bool:
        late = not self.hold and self.groups >= self.devices and self._left <= HEAVY_LEFT * self.lanes
        return late and any(map(self._stands_alone, self.deferred))

    def _stands_alone(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's compile may be the last to end: it is begun early, and nothing waits for it."""
        return self.lanes > FEW_WORKERS and (lowered.facts.accumulators or 0) >= HEAVY_REGISTERS

    def _build_deferred(self) -> Build:
        """Take the longest first, by what is known of them, so that none of those is the last."""
        self.deferred.sort(key=lambda lowered: -(lowered.facts.accumulators or 0))
        return self._build(self.deferred, self.group_size or self._share(), "deferred by the screen")

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
        return self.total - self.seen - self.lowering if self.proposing else self.waiting

    @property
    def _more_to_lower(self) -> bool:
        return bool(self.waiting or self.lowering or self.proposing)

    def _ready_share(self) -> float:
        """Return a worker's share of what is left, for likely winners: the devices are to have some of them soon."""
        return bounded(self._share(), self.groups / self.lanes if self.pipeline and self.devices else math.inf)

    def _share(self) -> float:
        """Return a worker's share of the work that is left."""
        shares = SHARES * self.lanes if self.lanes > 1 else 1.0
        known = self.ready + self.deferred
        work = self._work(known, enough=MAX_GROUP * shares)
        to_lower = max(self._left, 0) + self.lowering
        left = work + to_lower * (work / len(known) + LOWERING)  # the rest is taken to be as heavy as what is known
        return min(MAX_GROUP, left / shares)

    def _split(self, queue: Sequence[Lowered]) -> float:
        free = max(1, self.lanes - self.busy)
        return min(MAX_GROUP, math.ceil(self._work(queue) / free))

    def _work(self, queue: Sequence[Lowered], enough: float = math.inf) -> float:
        """Sum up the compiles that `queue` takes, one for each candidate or for all of a family, as far as `enough`."""
        compiles: set[str | int] = set()
        work = 0.0
        for lowered in queue:
            if (one := self._compile_of(lowered)) not in compiles:
                compiles.add(one)
                work += _work_of(lowered)
                if work >= enough:
                    break
        return work

    def _compile_of(self, lowered: Lowered) -> str | int:
        return (self.sharing and lowered.compile_key) or lowered.index

    def _build(self, queue: list[Lowered], size: float, reason: str) -> Build:
        """Take members that compile together, the oldest first: at least one, up to `size`, and all that share these.

        A size that was asked for is one of candidates.
        """
        key, alone = queue[0].merge_key, self._stands_alone(queue[0])
        group: list[Lowered] = []
        left: list[Lowered] = []
        compiles: set[str | int] = set()
        work = 0.0
        for lowered in queue:
            one = self._compile_of(lowered)
            more = 0.0 if one in compiles else _work_of(lowered)
            if self.group_size is not None:
                fits = len(group) < size
            else:
                together = not alone and not self._stands_alone(lowered) and work + more <= size
                fits = one in compiles or not group or together
            if lowered.merge_key == key and fits and len(group) < MAX_MEMBERS:
                work += more
                compiles.add(one)
                group.append(lowered)
            else:
                left.append(lowered)
        queue[:] = left
        self.groups += 1
        return Build(tuple(group), reason)


def bounded(share: float, earlier: float) -> float:
    """Return the size of a group of likely winners, of a worker's `share` of the work that is left.

    `earlier`: groups so far, for each worker, where devices wait for results: then the first ones are small.
    """
    return max(MIN_GROUP, min(MAX_GROUP, MIN_GROUP * (1 + earlier), share))


def _work_of(lowered: Lowered) -> float:
    """Return how long a candidate's compile takes, beside one of a kernel with few accumulators."""
    accumulators = lowered.facts.accumulators or 0
    return next((work for registers, work in WORK if accumulators >= registers), 1.0)


def halves(group: Sequence[Lowered]) -> tuple[tuple[Lowered, ...], tuple[Lowered, ...]]:
    """Split a group that failed as a whole."""
    middle = len(group) // 2
    return tuple(group[:middle]), tuple(group[middle:])

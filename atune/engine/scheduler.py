"""What a free compile worker does next: a pure function of the compile stage's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atune.engine.compile_work import HEAVY_REGISTERS, CompileWork, accumulators, compile_of
from atune.engine.interfaces import CompileHints
from atune.model.artifact import Lowered

MAX_GROUP = 16
"""Largest group the engine chooses by itself: beyond it the headers' share of a library's cost is small. As all sizes
here that nobody asked for, it counts compiles of kernels with few accumulators: see `CompileWork`. Candidates of equal
`compile_key` share a compile."""
MIN_GROUP = 4
MAX_MEMBERS = 4 * MAX_GROUP
"""Most candidates of a group, however few compiles they take."""
FEW_WORKERS = 3
"""Workers that have so much to do each that one heavy compile does not decide when the end comes: the heaviest begin
with the other likely losers, and share libraries as all do. With more workers each has a library of its own."""
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
class Queues:
    """Candidates between two steps, the oldest first."""

    waiting: int = 0
    """Proposed candidates that nobody has taken yet."""
    ready: list[Lowered] = field(default_factory=list)
    deferred: list[Lowered] = field(default_factory=list)
    retry: list[tuple[Lowered, ...]] = field(default_factory=list)
    """Parts of groups that failed as a whole, and groups whose worker was lost."""
    undecided: dict[int, Lowered] = field(default_factory=dict)
    """Lowered candidates that are judged once others are lowered, too."""


@dataclass
class Counts:
    """How far the candidates are, and what the workers do."""

    taken: int = 0
    """Proposed candidates that workers have taken."""
    lowering: int = 0
    seen: int = 0
    """Candidates whose lowering has ended, either way."""
    groups: int = 0
    busy: int = 0
    """Workers that lower or build."""
    building: int = 0
    ahead: int = 0
    """Workers that compile for leaders ahead of the final, which no candidate waits for: they are not `busy`."""


@dataclass
class CompileState:
    """The compile stage as the scheduler sees it. `workers` counts workers."""

    workers: int
    devices: int
    total: int
    """Candidates that will be proposed, at most: the space, or the budget."""
    group_size: int | None = None
    pipeline: bool = True
    proposing: bool = True
    held: bool = False
    """Whether nothing is proposed until outcomes come: what is there is compiled now, in whatever groups it makes."""
    auditing: bool = False
    """Whether some of what was skipped may be proposed yet, once all others are measured: nothing waits for that."""
    hints: CompileHints = CompileHints()  # noqa: RUF009
    queues: Queues = field(default_factory=Queues)
    counts: Counts = field(default_factory=Counts)
    work: CompileWork = field(default_factory=CompileWork)

    def add(self, lowered: Lowered, *, deferred: bool = False) -> None:
        """Queue a candidate to be built."""
        self.work.saw(lowered)
        (self.queues.deferred if deferred else self.queues.ready).append(lowered)

    @property
    def finished(self) -> bool:
        """Whether no compile work is left or under way."""
        return self._all_begun and not self.counts.building and not self.auditing

    @property
    def spare(self) -> bool:
        """Whether a worker without a job may work ahead of the final: nothing else will need it but by a failure."""
        return self.pipeline and self._all_begun and self._idle

    @property
    def leaders_known(self) -> bool:
        """Whether a worker may do so before likely losers are compiled: they are all that is left to begin.

        That all others are measured is seen to elsewhere. A plain compile takes longer than most of the losers', with
        which half of the workers go on.
        """
        spare = self._idle and self.counts.ahead < self.workers // 2
        left = bool(self.queues.deferred) and self._only_deferred
        return self.pipeline and left and self.hints.builds == "all" and spare

    @property
    def _idle(self) -> bool:
        return self.counts.busy + self.counts.ahead < self.workers - self.hints.resting

    @property
    def _all_begun(self) -> bool:
        return self._only_deferred and not self.queues.deferred

    @property
    def _only_deferred(self) -> bool:
        queues = self.queues
        left = queues.waiting or queues.undecided or queues.ready or queues.retry
        return not (self.proposing or self.counts.lowering or left)

    def next_job(self) -> Job | None:
        """Return what a free worker should do now, taking it out of the queues; None when it must wait.

        Early on, one small group a device gets the devices going. Then groups follow guided self-scheduling
        (Polychronopoulos and Kuck, IEEE ToC C-36, 1987): a share of the work that is left for each worker, so they
        shrink towards the end and no worker waits for a late large group.
        """
        queues = self.queues
        if self.counts.busy and self.counts.busy >= self.workers - self.hints.resting:
            return None
        if queues.retry:
            return Build(queues.retry.pop(), "after a failed or lost group")
        if self._heavy_due():
            return self._build_deferred(accumulators)
        self._put_long_ones_last()
        if queues.ready and (build := self._build_ready()) is not None:
            return build
        if queues.waiting:
            return Lower(min(self._row(), queues.waiting))
        if self.hints.builds == "all" and not self._coming and queues.deferred:
            return self._build_deferred(self.work.of)  # nothing else can be begun
        return None

    def _build_ready(self) -> Build | None:
        """Return the next group of likely winners, where it is time for one."""
        ready, builds = self.queues.ready, self.hints.builds
        if builds != "none" and self.pipeline and self.counts.groups < self.devices and self.group_size is None:
            size = min(FIRST_GROUP, self._even(), self.total)
            if len(ready) >= size:
                return self._build(ready, size, "small: a device waits")
        if builds != "all":
            return None
        if self.group_size is not None:
            if len(ready) >= self.group_size or not self._more_to_lower:
                return self._build(ready, self.group_size, "group size as asked")
        elif self.work.of_all(ready) >= (share := self._ready_share()):
            return self._build(ready, share, "a worker's share of what is left")
        elif not self._more_to_lower:
            return self._build(ready, self._split(ready), "the rest, split over the free workers")
        return None

    def _heavy_due(self) -> bool:
        late = self.counts.groups >= self.devices and self._left <= HEAVY_LEFT * self.workers
        return self.hints.builds == "all" and late and any(map(self._heavy, self.queues.deferred))

    def _heavy(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's compile may be the last to end: it is begun early, and nothing waits for it."""
        return self.workers > FEW_WORKERS and accumulators(lowered) >= HEAVY_REGISTERS

    def _put_long_ones_last(self) -> None:
        """Have candidates whose source is far longer than their neighbours' wait until nothing else can be begun."""
        queues = self.queues
        if self.group_size is None and any(map(self.work.is_long, queues.ready)):
            queues.deferred += [one for one in queues.ready if self.work.is_long(one)]
            queues.ready = [one for one in queues.ready if not self.work.is_long(one)]

    def _build_deferred(self, weight: Callable[[Lowered], float]) -> Build:
        """Take the longest first, by what is known of them, so that none of those is the last."""
        deferred = self.queues.deferred
        deferred.sort(key=lambda lowered: (-weight(lowered), -accumulators(lowered)))
        reason = "a long source, alone" if self.work.is_long(deferred[0]) else "deferred by the screen"
        return self._build(deferred, self.group_size or self._share(), reason)

    def _row(self) -> int:
        """Return how many candidates to lower in a row.

        All workers begin at once with one each; whoever comes second of two neighbours then finds the other's work.
        Rows end where the space's do.
        """
        row = self.hints.row
        return 1 if self.counts.taken < self.workers else row - self.counts.taken % row

    @property
    def _left(self) -> int:
        """Count the candidates whose lowering has not begun, those to come included."""
        return self.total - self.counts.seen - self.counts.lowering if self._coming else self.queues.waiting

    @property
    def _more_to_lower(self) -> bool:
        return bool(self.queues.waiting or self.counts.lowering or self._coming)

    @property
    def _coming(self) -> bool:
        """Whether more is proposed without anything having to be measured first."""
        return self.proposing and not self.held

    def _ready_share(self) -> float:
        """Return a worker's share of what is left, for likely winners: the devices are to have some of them soon."""
        earlier = self.counts.groups / self.workers if self.pipeline and self.devices else math.inf
        return min(bounded(self._share(), earlier), self._even())

    def _share(self) -> float:
        """Return a worker's share of the work that is left."""
        shares = SHARES * self.workers if self.workers > 1 else 1.0
        queues = self.queues
        return min(MAX_GROUP, self._left_of(queues.ready + queues.deferred, LOWERING, MAX_GROUP * shares) / shares)

    def _even(self) -> int:
        """Return the largest work of a group that leaves none of the free workers without one, of likely winners."""
        counts = self.counts
        free = max(1, self.workers - self.hints.resting - counts.building - counts.ahead)
        return max(1, math.ceil(self._left_of(self.queues.ready, 0.0, MAX_GROUP * free) / free))

    def _left_of(self, known: Sequence[Lowered], lowering: float, enough: float) -> float:
        """Sum up the compiles of `known` and of all that are to be lowered yet, which takes `lowering` each.

        Those are taken to be as heavy as what is known. What is known counts as far as `enough`.
        """
        work = self.work.of_all(known, enough)
        each = work / len(known) if known else 1.0
        return work + (max(self._left, 0) + self.counts.lowering) * (each + lowering)

    def _split(self, queue: Sequence[Lowered]) -> float:
        free = max(1, self.workers - self.counts.busy)
        return min(MAX_GROUP, math.ceil(self.work.of_all(queue) / free))

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
            one = compile_of(lowered)
            more = 0.0 if one in compiles else self.work.of(lowered)
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
        self.counts.groups += 1
        return Build(tuple(group), reason)

    def _stands_alone(self, lowered: Lowered) -> bool:
        return self._heavy(lowered) or self.work.is_long(lowered)


def bounded(share: float, earlier: float) -> float:
    """Return the size of a group of likely winners, of a worker's `share` of the work that is left.

    `earlier`: groups so far, for each worker, where devices wait for results: then the first ones are small.
    """
    return max(MIN_GROUP, min(MAX_GROUP, MIN_GROUP * (1 + earlier), share))


def halves(group: Sequence[Lowered]) -> tuple[tuple[Lowered, ...], tuple[Lowered, ...]]:
    """Split a group that failed as a whole."""
    middle = len(group) // 2
    return tuple(group[:middle]), tuple(group[middle:])

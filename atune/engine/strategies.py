"""The strategy of a run: chooses it and makes it. A resumed run's strategy asks as the uninterrupted one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from atune.errors import UsageError
from atune.journal.candidate_state import Entry
from atune.journal.events import CandidateMeasured, RunStarted
from atune.journal.state import State
from atune.model.advice import Advice
from atune.model.candidate import Candidate
from atune.model.grid import grid_of
from atune.model.points import MOST_POINTS
from atune.model.settings import Budget
from atune.search.advice import elsewhere
from atune.search.choosing import AUTO, BEST_FIRST, ORDERS, PRIOR, chosen, make_order, make_strategy
from atune.search.guard import Guarded
from atune.search.interface import Searched, Strategy
from atune.search.orders import Begun, first_of
from atune.search.recording import reason_of
from atune.search.surveyed import told
from atune.workload.workload import WorkloadSpec

MOST_REFUSED = 10_000
"""How many points in a row constraints may have refused."""

Make = Callable[[State], Strategy]
"""Returns a strategy, using the survey of the space in the state."""


def strategy_name(
    given: str | Strategy | None, header: RunStarted | None, total: int, budget: Budget, **known: bool
) -> str:
    """Return the name that the header records for the strategy of a run over `total` candidates.

    A resumed run keeps its header's strategy, unless another is given. `known`: see `chosen`.
    """
    if given is not None and not isinstance(given, str):
        return given.name
    if given is not None and given != AUTO:
        return given
    if header is not None:
        return header.strategy
    return chosen(total, budget.most(total), limited=budget.limited, **known)


def check_ranked(spec: WorkloadSpec, strategy: str, *, own_prior: bool, drawn: bool) -> None:
    """Raise `UsageError` if a prior is to rank candidates of a large space, and they cannot be ranked as asked.

    `drawn`: whether the space admitted enough candidates to draw a pool of them.
    """
    if spec.size is None:
        return
    if not drawn and (own_prior or strategy in (PRIOR, BEST_FIRST)):
        raise UsageError(
            f"the space has {spec.size:,} points and its constraints refuse nearly all of them, so that there is no "
            "sample for a prior to rank: leave out prior= and the strategies prior and best-first, or give axes whose "
            "values fit together"
        )


def made(given: str | Strategy, searched: Searched) -> Strategy:
    """Return the strategy for a space: the one of that name, or the user's own after its `begin`."""
    if isinstance(given, str):
        return make_strategy(given, searched)
    begin = getattr(given, "begin", None)
    if begin is not None:
        begin(searched)
    return given


def maker(
    strategy: str | Strategy,
    spec: WorkloadSpec,
    candidates: Mapping[int, Candidate],
    seed: int,
    most: int | None,
    default: int | None,
    advice: Sequence[Advice] = (),
    *,
    pool: Mapping[int, Candidate] = {},
) -> tuple[str, Make]:
    """Return a strategy's name, and a function that makes it.

    `pool`: candidates of a large space, which a prior ranks and from which it may begin to learn.
    """
    if isinstance(strategy, str) and strategy in ORDERS:
        configs = [candidate.config for candidate in candidates.values()] if spec.size is None else None
        grid = grid_of(spec.axes)
        return strategy, lambda state: begun(
            make_order(strategy, spec.total, seed, listed=spec.size is None, configs=configs, grid=grid),
            advice, candidates, most,
        )  # fmt: skip
    name = strategy if isinstance(strategy, str) else strategy.name
    known, grid = pool or candidates, grid_of(spec.axes)

    def learning(state: State) -> Strategy:
        searched = _searched(known, seed, most, default, advice, state)
        return made(strategy, replace(searched, grid=grid))

    return name, learning


def begun(order: Strategy, advice: Sequence[Advice], candidates: Mapping[int, Candidate], most: int | None) -> Strategy:
    """Return `order`, preceded by the candidates that `advice` recommends.

    Those of a large space go by their places, as `candidates` has few of them.
    """
    if not advice:
        return order
    keys = {index: candidate.key for index, candidate in candidates.items()}
    ratios = elsewhere(advice, keys | {place: key for each in advice for key, place in each.places.items()})
    return Begun(order, first_of(ratios, most)) if ratios else order


def _searched(
    candidates: Mapping[int, Candidate],
    seed: int,
    most: int | None,
    default: int | None,
    advice: Sequence[Advice],
    state: State,
) -> Searched:
    """Return what a strategy is told of the space: all candidates except those that failed in the survey."""
    left = {index: one.config for index, one in candidates.items() if not state.entry(index).surveyed}
    ratios = elsewhere(advice, {index: candidates[index].key for index in left})
    return Searched(left, seed, most, **told(state.surveyed), default=default, elsewhere=ratios)


def continued(
    header: RunStarted,
    before: Sequence[Entry],
    make: Make,
    candidates: Mapping[int, Candidate],
    size: int,
    most: int | None,
    suspects: Collection[int],
    spec: WorkloadSpec,
    *,
    refused: bool = False,
) -> Make:
    """Return a function that makes the strategy of a resumed run over `size` candidates.

    `before`: the candidates proposed so far. `most`: see `maker`. `suspects`: candidates that are not tried again.
    `refused`: whether it may propose points that constraints refuse.
    """

    def going_on(state: State) -> Strategy:
        if header.strategy in ORDERS:
            stages = list(_stages(header, state, size, candidates, spec))
            first = {index: candidate for index, candidate in candidates.items() if index < header.total}
            stages[:1] = [begun(stage, header.advice, first, most) for stage in stages[:1]]
        else:
            stages = [make(state)]
        strategy = _Continued(before[header.known :], stages, state, known=before[: header.known], refused=refused)
        for index in suspects:
            strategy.tell(index, None, "suspect")
        return strategy

    return going_on


def _stages(
    header: RunStarted, state: State, total: int, candidates: Mapping[int, Candidate], spec: WorkloadSpec
) -> Iterable[Strategy]:
    """Yield the header's strategy over the original space, then over each later addition."""
    low, seed = 0, int(header.settings.get("seed") or 0)
    if header.large:
        grid = grid_of(spec.axes) if header.spread else None
        yield make_order(header.strategy, header.total, seed, listed=False, grid=grid)
        return
    for high in [*state.totals, total]:
        if high > low:
            there = [candidates[index].config for index in range(low, high) if index in candidates]
            configs = there if header.spread and len(there) == high - low else None  # otherwise the space lost some
            yield _Shifted(make_order(header.strategy, high - low, seed, configs=configs), low)
            low = high


class _Shifted:
    """A strategy over candidates that begin at `low`."""

    def __init__(self, inner: Strategy, low: int) -> None:
        self.name, self.inner, self.low = inner.name, inner, low

    def ask(self) -> int | None:
        index = self.inner.ask()
        return None if index is None else index + self.low

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        self.inner.tell(index - self.low, latency_ms, reason)


class _Continued:
    """Asks as the uninterrupted strategy would: it first replays all earlier proposals and outcomes, silently.

    Before each replayed proposal, the strategy is told the outcomes that it had heard by then. If the space, the budget
    or an outcome changed, it may propose a candidate twice; the second proposal is dropped. `known`: what earlier runs
    tried, told like outcomes. `refused`: whether it may propose points that constraints refuse, which the journal does
    not record.
    """

    def __init__(
        self,
        before: Sequence[Entry],
        stages: Sequence[Strategy],
        state: State,
        *,
        known: Sequence[Entry] = (),
        refused: bool = False,
    ) -> None:
        self._stages = [Guarded(stage, range(MOST_POINTS)) for stage in stages]
        self.name = self._stages[0].name if self._stages else ""
        self._seen, self._ahead = {entry.index for entry in (*known, *before)}, deque[int]()
        beside = {entry.index for entry in before if entry.beside}
        outcomes = {index: state.outcome(index) for index in self._seen}
        untold = deque(sorted((o.seq, index) for index, o in outcomes.items() if o is not None))
        for entry in before:
            while untold and untold[0][0] <= entry.heard:
                self._tell_of(untold.popleft()[1], state)
            if entry.beside:
                continue
            answer = self._next()
            while answer in beside:
                answer = self._next()
            for _ in range(MOST_REFUSED * refused):
                if answer is None or answer in self._seen:
                    break
                answer = self._next()
            if answer is not None and answer not in self._seen:
                self._ahead.append(answer)
        for _, index in untold:
            self._tell_of(index, state)

    @property
    def most_outstanding(self) -> int:
        return min((stage.limit(2**31) for stage in self._stages), default=1)

    def ask(self) -> int | None:
        if self._ahead:
            return self._ahead.popleft()
        while (index := self._next()) is not None:
            if index not in self._seen:
                return index
        return None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        for stage in reversed(self._stages):
            inner = stage.strategy
            if not isinstance(inner, _Shifted) or index >= inner.low:
                stage.tell(index, latency_ms, reason)
                return

    def expected_best(self) -> float | None:
        said = (stage.expected_best() for stage in self._stages)
        return next((latency_ms for latency_ms in said if latency_ms is not None), None)

    def _tell_of(self, index: int, state: State) -> None:
        outcome, reason = state.outcome(index), reason_of(state, index)
        own = isinstance(outcome, CandidateMeasured) and not reason
        self.tell(index, outcome.timing.latency_ms if own and isinstance(outcome, CandidateMeasured) else None, reason)

    def _next(self) -> int | None:
        for stage in self._stages:
            if (index := stage.ask()) is not None:
                return index
        return None

"""Strategies: their protocol, the space that they search, the checks of their answers, and their names."""

from __future__ import annotations

import math
import operator
import random
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, runtime_checkable

from atune.errors import StrategyError, UsageError, asked, name_and_message
from atune.journal.events import CandidateMeasured
from atune.journal.state import State
from atune.model.candidate import Config, key_of
from atune.model.settings import AUTO_BATCH, AUTO_GAIN_PERCENT

AHEAD, FULL = 2, 16
"""A learning strategy may have `AHEAD` candidates outstanding for each compile worker, but always at least `FULL`."""
ROOM = 3
"""A strategy at its limit is asked again when one worker's share of the limit, divided by `ROOM`, is free."""
DUPLICATE = "duplicate"
"""Reason that a strategy gets for a candidate with the same code as another candidate. A duplicate is no failure."""


@runtime_checkable
class Strategy(Protocol):
    """Proposes candidates by index. The engine calls the methods in threads, but never two at the same time.

    A resumed run makes a new object, and calls `tell` for each earlier outcome before the first `ask`. If the object
    then proposes a candidate that was tried before, the engine ignores the proposal and asks again. Two attributes are
    optional. The method `begin` gets the `Searched` before any other call. The integer `most_outstanding` limits the
    number of proposed candidates without an outcome, and may change.
    """

    name: str

    def ask(self) -> int | None:
        """Return the index of the next candidate to try, or None to end the search. Return each index at most once."""

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Learn a candidate's outcome: its latency in ms, or None and the `reason` why it has no latency of its own.

        The reason is the kind of the failure (such as ``timeout``, ``mismatch`` or ``compile``), ``pruned`` for a
        device limit, or `DUPLICATE`. If `tell` is called again for a candidate, the new latency replaces the old one.
        """


@dataclass(frozen=True)
class Searched:
    """The space to search, by candidate index. Candidates that failed in the survey or are tried last are left out.

    `budget`: the largest number of candidates that will be tried; None if unknown. `prior`: estimates by index, in
    milliseconds, or in a unit in which half the value is twice as good. Candidates without an estimate above 0 come
    last. `facts`: further numbers by index and name. `default`: the default configuration's index, if the space has it.
    The engine always tries the default first, and then `advised`, the fastest candidates of other runs.
    """

    configs: Mapping[int, Config]
    seed: int = 0
    budget: int | None = None
    prior: Mapping[int, float] | None = None
    facts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    default: int | None = None
    advised: Sequence[int] = ()

    @property
    def first(self) -> list[int]:
        """Candidates that are tried before all others."""
        return [*([] if self.default is None else [self.default]), *self.advised]


def by_prior(indices: Sequence[int], prior: Mapping[int, float]) -> list[int]:
    """Return `indices` by estimate, the best first. Indices without an estimate, or with NaN, come last, in order."""

    def estimate(index: int) -> float:
        value = float(prior.get(index, float("inf")))
        return value if value == value else float("inf")

    return sorted(indices, key=estimate)


class Guarded:
    """Forwards the engine's calls to `strategy`, and checks the answers.

    `known`: indices that the strategy may propose. `first`: indices to try before the proposals, such as the default's
    index. `last`: indices to try after the proposals. `enough`: decides when to stop asking, unless it is None.
    """

    def __init__(
        self,
        strategy: Strategy,
        known: Container[int],
        first: Iterable[int] = (),
        last: Iterable[int] = (),
        enough: Enough | None = None,
    ) -> None:
        self.strategy, self.name, self.enough = strategy, strategy.name, enough
        self._known, self._first, self._last = known, deque(dict.fromkeys(first)), iter(last)
        self._begun, self._asked, self._ended = frozenset(self._first), set[int](), False
        self._full = False

    def full(self, outstanding: int, workers: int) -> bool:
        """Return whether too many candidates are `outstanding` to ask for another candidate.

        The answer then stays True until the engine can ask for many candidates, because small groups compile slowly.
        """
        if self.enough is not None and self.enough.full(outstanding):
            return True
        limit = self.limit(max(FULL, AHEAD * workers))
        room = max(1, min(FULL, limit // workers) // ROOM) if self._full else 1
        self._full = outstanding + room > limit
        return self._full

    def limit(self, most: int) -> int:
        """Return the number of candidates that may be outstanding now, at most `most`."""
        name, mine = "most_outstanding", self.strategy
        own = asked(lambda: operator.index(getattr(mine, name, most)), partial(self._raised, name), passes=False)
        return max(1, min(most, own))

    def ask(self) -> int | None:
        """Return the next index: from `first`, then from the strategy, then from `last`; None if no index is left.

        Raises `StrategyError`.
        """
        if self.enough is not None and self.enough.reached:
            return None
        if self._first:
            return self._first.popleft()
        while (index := self._next()) in self._begun:
            pass
        return index

    def _next(self) -> int | None:
        answer = None if self._ended else asked(self.strategy.ask, partial(self._raised, "ask()"), passes=False)
        if answer is None:
            self._ended = True
            return next((index for index in self._last if index not in self._asked), None)
        try:
            index = operator.index(answer)
        except TypeError:
            index = -1
        if isinstance(answer, bool) or index not in self._known:
            raise self._error(
                f"ask() returned {answer!r}, which is not a candidate's index. "
                "Return an index, or None to end the search"
            )
        if index in self._asked:
            raise self._error(f"ask() returned {index} a second time. Propose each candidate only once")
        self._asked.add(index)
        return index

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Tell the strategy an outcome. Raises `StrategyError`."""
        if self.enough is not None:
            self.enough.tell(index, latency_ms)
        call = f"tell({index}, {latency_ms}, {reason!r})"
        asked(lambda: self.strategy.tell(index, latency_ms, reason), partial(self._raised, call), passes=False)

    def tell_all(self, outcomes: Iterable[tuple[int, float | None, str]]) -> None:
        """Tell the strategy `outcomes` in their order. Raises `StrategyError`."""
        for outcome in outcomes:
            self.tell(*outcome)

    def _raised(self, call: str, error: BaseException) -> StrategyError:
        return error if isinstance(error, StrategyError) else self._error(f"{call} raised {name_and_message(error)}")

    def _error(self, message: str) -> StrategyError:
        return StrategyError(f"strategy {self.name!r}: {message}. The journal, if any, keeps all measurements")


class Enough:
    """Ends a search with the budget ``auto`` after a batch in which no candidate is clearly better than all before.

    Decisions depend only on the outcomes of whole batches, so a resumed run makes the same decisions.
    """

    def __init__(self) -> None:
        self._latencies = dict[int, float]()
        """Latencies of all candidates that were tried; infinite for candidates that failed."""
        self._best, self._until = math.inf, AUTO_BATCH
        self.reached = False
        """Whether the search is over."""

    def full(self, outstanding: int) -> bool:
        """Return whether to wait for the batch's outcomes. `outstanding`: number of candidates without an outcome."""
        return outstanding > 0 and len(self._latencies) + outstanding >= self._until

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Learn an outcome. If the outcome completes a batch, decide whether the search is over."""
        self._latencies[index] = math.inf if latency_ms is None else latency_ms
        if self.reached or len(self._latencies) < self._until:
            return
        before, self._best = self._best, min(self._latencies.values())
        self.reached = self._best < math.inf and self._best >= (1 - AUTO_GAIN_PERCENT / 100) * before
        self._until += AUTO_BATCH


def latency_or_reason(state: State, index: int) -> tuple[float | None, str]:
    """Return the outcome that strategies get for candidate `index`: its latency in ms, or None and a reason.

    The reason is a failure's kind, ``pruned`` or `DUPLICATE`, even if the duplicate's code is not measured yet.
    """
    outcome = state.outcome(index)
    if outcome is None or state.first(index).index != index:
        return None, DUPLICATE
    if isinstance(outcome, CandidateMeasured):
        return outcome.timing.latency_ms, ""
    return None, getattr(outcome, "kind", "pruned")


_ABSENT = object()
"""Placeholder for a configuration's value on an axis that the configuration lacks."""
SPREAD = 4096
"""Number of candidates that are drawn so that each axis's values are equally frequent. Later draws are plain."""
SPREAD_TRIES = 16
"""For each of the first `SPREAD` draws, this many candidates are drawn, and the one with the rarest values is taken."""


class Axis:
    """An axis with its values in order: numbers by size, other values by first occurrence."""

    def __init__(self, name: str, configs: Sequence[Config]) -> None:
        self.name = name
        values: dict[bytes, Any] = {}
        for config in configs:
            value = config.get(name, _ABSENT)
            values.setdefault(_text(value), value)
        self.ordered = all(isinstance(v, (int, float)) for v in values.values())
        """Whether all values are numbers or booleans."""
        ranked = sorted(values, key=lambda text: values[text]) if self.ordered else list(values)
        self.values = [values[text] for text in ranked]
        self._positions = {text: position for position, text in enumerate(ranked)}

    def position(self, config: Config) -> int:
        return self._positions[_text(config.get(self.name, _ABSENT))]


class Encoding:
    """Encodes candidates 0 … n-1, numbered as in `configs`, on the axes that have more than one value."""

    def __init__(self, configs: Sequence[Config]) -> None:
        names = dict.fromkeys(name for config in configs for name in config)
        axes = [Axis(name, configs) for name in names]
        varied = [axis for axis in axes if len(axis.values) > 1]
        self.axes = varied
        self.places = [tuple(axis.position(config) for axis in varied) for config in configs]
        """Each candidate's position on each axis."""
        self.at: dict[tuple[int, ...], int] = {}
        for candidate, place in enumerate(self.places):
            self.at.setdefault(place, candidate)

    def neighbours(self, candidate: int) -> list[int]:
        """Return the candidates that differ on one axis: by one step if the axis has numbers, or else by any change."""
        place = self.places[candidate]
        neighbours = dict[int, None]()
        for number, axis in enumerate(self.axes):
            for way in self._ways(axis, place[number]):
                for step in way:
                    there = self.at.get((*place[:number], step, *place[number + 1 :]))
                    if there is not None:
                        neighbours[there] = None
                        break
        neighbours.pop(candidate, None)
        return list(neighbours)

    def _ways(self, axis: Axis, here: int) -> Iterator[Sequence[int]]:
        if axis.ordered:
            yield range(here - 1, -1, -1)
            yield range(here + 1, len(axis.values))
        else:
            yield from ([other] for other in range(len(axis.values)) if other != here)

    def spread_order(self, seed: int) -> Iterator[int]:
        """Yield each candidate once. In the first part, all values of an axis are about equally frequent.

        For each candidate of the first part, draw `SPREAD_TRIES` candidates, and take the one with the rarest values.
        """
        rng = random.Random(seed)
        left = list(range(len(self.places)))
        rng.shuffle(left)
        seen, counts = set[int](), [Counter[int]() for _ in self.axes]

        def frequency(candidate: int) -> int:
            """Return how often a candidate's values were drawn, weighted by the number of values on their axes."""
            place = self.places[candidate]
            return sum(
                count[value] * len(axis.values) for count, value, axis in zip(counts, place, self.axes, strict=True)
            )

        for _ in range(min(SPREAD, len(left) // 4)):
            drawn = [candidate for candidate in rng.choices(left, k=SPREAD_TRIES) if candidate not in seen]
            rarest = min(drawn, key=frequency, default=None)
            if rarest is not None:
                seen.add(rarest)
                for count, value in zip(counts, self.places[rarest], strict=True):
                    count[value] += 1
                yield rarest
        yield from (candidate for candidate in left if candidate not in seen)


def _text(value: Any) -> bytes:
    return b"" if value is _ABSENT else key_of(value)


AUTO, EXHAUSTIVE, RANDOM, PRIOR, BAYESIAN = "auto", "exhaustive", "random", "prior", "bayesian"
WALKED = 64
"""Largest size of a space that is tried in its own order. Larger spaces are tried in the order of the prior."""


class FixedOrder:
    """A strategy that proposes every candidate once, in a given order."""

    def __init__(self, name: str, order: Iterable[int]) -> None:
        self.name, self._order = name, iter(order)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


def _random(searched: Searched) -> FixedOrder:
    """Return the candidates in a random order, drawn with the seed. The first candidates cover each axis evenly."""
    indices = list(searched.configs)
    order = Encoding(list(searched.configs.values())).spread_order(searched.seed)
    begin = list(islice(order, SPREAD))  # the slow part, which is done before the first answer
    return FixedOrder(RANDOM, (indices[position] for position in chain(begin, order)))


def _ranked(searched: Searched) -> FixedOrder:
    """Return the candidates by estimate, the best first, then candidates without an estimate. The seed breaks ties."""
    shuffled = list(searched.configs)
    random.Random(searched.seed).shuffle(shuffled)
    return FixedOrder(PRIOR, by_prior(shuffled, searched.prior or {}))


def _exhaustive(searched: Searched) -> FixedOrder:
    """Return a small space in its own order, and a larger space in the order of `_ranked`.

    Spaces often list large and costly configurations last, and their long compiles would delay the end.
    """
    large = len(searched.configs) > WALKED
    return FixedOrder(EXHAUSTIVE, iter(_ranked(searched).ask, None) if large else searched.configs)


def _bayesian(searched: Searched) -> Strategy:
    from atune.engine.bayesian import Bayesian  # imports numpy

    return Bayesian(searched)


MAKERS: dict[str, Callable[[Searched], Strategy]] = {
    EXHAUSTIVE: _exhaustive,
    RANDOM: _random,
    PRIOR: _ranked,
    BAYESIAN: _bayesian,
}
STRATEGIES = (AUTO, *MAKERS)
"""The names of strategies, as users give them."""
FEW_CANDIDATES = 8
"""Without a prior, learning does not help if the budget is at most this many candidates."""


def learns(name: str) -> bool:
    """Return whether the strategy `name`, or a user's own strategy, may learn from outcomes and take long to answer."""
    return name not in (EXHAUSTIVE, RANDOM, PRIOR)


def check_given(strategy: str | Strategy | None, *, pipeline: bool = True) -> None:
    """Raise `UsageError` if `strategy` is invalid, or if it learns and there is no `pipeline`."""
    if strategy is None:
        return
    name: Any = strategy if isinstance(strategy, str) else getattr(strategy, "name", None)
    if isinstance(strategy, str):
        if strategy not in STRATEGIES:
            raise UsageError(
                f"strategy {strategy!r} is unknown; choose {', '.join(STRATEGIES)}, or give a strategy object"
            )
    elif isinstance(strategy, type) or not (isinstance(name, str) and name and isinstance(strategy, Strategy)):
        raise UsageError(
            f"strategy {strategy!r} is not a strategy; give a name, or an object with a name (a string) "
            "and the methods ask() and tell(index, latency_ms, reason)"
        )
    elif name in STRATEGIES:
        raise UsageError(f"strategy {name!r}: atune has a strategy with this name; rename yours")
    if not pipeline and name != AUTO and learns(name):
        raise UsageError(f"strategy {name!r} learns while candidates compile: omit pipeline=False")


def uses_prior(strategy: str | Strategy, total: int) -> bool:
    """Return whether `strategy`, given as an object or by name, uses a prior in a space with `total` candidates."""
    if not isinstance(strategy, str):
        return hasattr(strategy, "begin")
    return strategy != RANDOM and (strategy != EXHAUSTIVE or total > WALKED)


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Make the strategy called `name`. Raises `UsageError` as `check_given` does."""
    check_given(name)
    return MAKERS[name](searched)


def chosen(total: int, budget: int | None, *, limited: bool, pipeline: bool = True, prior: bool = False) -> str:
    """Return the name of the strategy that ``auto`` means in a space with `total` candidates.

    `limited`: whether there is any budget. `budget`: the number of candidates that the budget admits, if known.
    `pipeline`: whether outcomes come before all candidates are proposed. `prior`: whether there is a prior.
    """
    if not limited or (budget is not None and budget >= total):
        return EXHAUSTIVE
    few = budget is not None and budget <= FEW_CANDIDATES
    if pipeline and (prior or not few):
        return BAYESIAN
    return PRIOR if prior else RANDOM

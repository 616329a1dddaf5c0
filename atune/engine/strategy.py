"""Strategies: their protocol, the checks of their answers, the space that they search, and which one a name means."""

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
"""A learning strategy may have `AHEAD` candidates for each compile worker outstanding, and always a `FULL` group."""
ROOM = 3
"""Once so many are outstanding, the strategy is asked again when this part of a worker's share has outcomes."""
DUPLICATE = "duplicate"
"""The reason of a candidate that compiles to the same code as another: that one has the latency. It did not fail."""


@runtime_checkable
class Strategy(Protocol):
    """Proposes candidates by index. Its methods are called in threads, and no two of them at the same time.

    A resumed run tells a new object all earlier outcomes before it asks, also of candidates that this object did not
    propose. What it proposes of these is passed over. Two attributes are optional. `begin` gets the `Searched` before
    any other call. `most_outstanding`, an int, is how many proposed candidates may lack an outcome at that moment.
    """

    name: str

    def ask(self) -> int | None:
        """Return the index to try next, each at most once, or None at the end."""

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Learn a candidate's latency, ms, or None if it has none of its own, for `reason`.

        The reason is its kind of failure (such as ``timeout``, ``mismatch`` or ``compile``), ``pruned`` for a device
        limit, or `DUPLICATE`. An outcome may come again; then the new latency counts.
        """


@dataclass(frozen=True)
class Searched:
    """The space to search, by the candidates' indices: without what failed in the survey, or comes last anyway.

    `budget`: candidates that will be tried at most, where that is known. `prior`: an estimate for each, in milliseconds
    or another unit of which half is twice as good; those without one, or not above 0, come last. `facts`: numbers
    known of candidates in addition to their axes. `default`: the default configuration's index, where the space holds
    it; it is tried first, and then `advised`, those that were the fastest in other runs, whatever the strategy
    proposes.
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
    """Return `indices` by their estimate, the best first; those without one (or NaN) last, in order."""

    def estimate(index: int) -> float:
        value = float(prior.get(index, float("inf")))
        return value if value == value else float("inf")

    return sorted(indices, key=estimate)


class Guarded:
    """Forwards calls of the engine to `strategy`, and checks the answers.

    `known`: the indices that it may propose. `first`: those that come before all that it proposes, such as the default
    configuration. `last`: those that come after all. `enough`: when to ask for no more; None for never.
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
        """Tell whether to wait with asking while so many are outstanding.

        Then it is full until many may be asked for at once, because small groups take longer to compile.
        """
        if self.enough is not None and self.enough.full(outstanding):
            return True
        limit = self.limit(max(FULL, AHEAD * workers))
        room = max(1, min(FULL, limit // workers) // ROOM) if self._full else 1
        self._full = outstanding + room > limit
        return self._full

    def limit(self, most: int) -> int:
        """Return how many candidates may be outstanding now, `most` at most."""
        name, mine = "most_outstanding", self.strategy
        own = asked(lambda: operator.index(getattr(mine, name, most)), partial(self._raised, name), passes=False)
        return max(1, min(most, own))

    def ask(self) -> int | None:
        """Return the next index: the first ones, what the strategy proposes besides, the last ones.

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
                f"ask() returned {answer!r}, which is no candidate's index: return one of the space, or None at the end"
            )
        if index in self._asked:
            raise self._error(f"ask() returned {index} a second time: propose each candidate once")
        self._asked.add(index)
        return index

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Tell of an outcome. Raises `StrategyError`."""
        if self.enough is not None:
            self.enough.tell(index, latency_ms)
        call = f"tell({index}, {latency_ms}, {reason!r})"
        asked(lambda: self.strategy.tell(index, latency_ms, reason), partial(self._raised, call), passes=False)

    def tell_all(self, outcomes: Iterable[tuple[int, float | None, str]]) -> None:
        """Tell of `outcomes` in their order. Raises `StrategyError`."""
        for outcome in outcomes:
            self.tell(*outcome)

    def _raised(self, call: str, error: BaseException) -> StrategyError:
        return error if isinstance(error, StrategyError) else self._error(f"{call} raised {name_and_message(error)}")

    def _error(self, message: str) -> StrategyError:
        return StrategyError(f"strategy {self.name!r}: {message}. A journal keeps all measurements")


class Enough:
    """Lets candidates be proposed in batches, until one brings nothing better: the end of a search with ``auto``.

    What it decides depends only on the outcomes of whole batches: of the same ones a resumed run decides the same.
    """

    def __init__(self) -> None:
        self._latencies = dict[int, float]()
        """Of all that were tried; infinite for those that failed."""
        self._best, self._until = math.inf, AUTO_BATCH
        self.reached = False
        """Whether enough is tried."""

    def full(self, outstanding: int) -> bool:
        """Tell whether to wait for the outcomes of a batch, of which so many are outstanding."""
        return outstanding > 0 and len(self._latencies) + outstanding >= self._until

    def tell(self, index: int, latency_ms: float | None) -> None:
        """Learn an outcome, and decide if it is the last of a batch."""
        self._latencies[index] = math.inf if latency_ms is None else latency_ms
        if self.reached or len(self._latencies) < self._until:
            return
        before, self._best = self._best, min(self._latencies.values())
        self.reached = self._best < math.inf and self._best >= (1 - AUTO_GAIN_PERCENT / 100) * before
        self._until += AUTO_BATCH


def latency_or_reason(state: State, index: int) -> tuple[float | None, str]:
    """Return what strategies get of candidate `index`: its latency, ms, or why it has none of its own.

    The reason is a failure's kind; ``pruned``; or `DUPLICATE`, also while another with its code is still measured.
    """
    outcome = state.outcome(index)
    if outcome is None or state.first(index).index != index:
        return None, DUPLICATE
    if isinstance(outcome, CandidateMeasured):
        return outcome.timing.latency_ms, ""
    return None, getattr(outcome, "kind", "pruned")


_ABSENT = object()
"""Marks configurations that have no value on an axis."""
SPREAD = 4096
"""How many draws are spread. Later ones are plain, because that many cover all axes anyway."""
SPREAD_TRIES = 16
"""The next one is that with the rarest values of so many that are drawn."""


class Axis:
    """One axis, with its values in order: numbers by size, others by first occurrence."""

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
    """Encodes candidates 0 … n-1, the positions in `configs`, on the axes that have more than one value."""

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
        """Return the candidates that differ in one axis: by one step along numbers, by any value along others."""
        place = self.places[candidate]
        found = dict[int, None]()
        for number, axis in enumerate(self.axes):
            for way in self._ways(axis, place[number]):
                for step in way:
                    there = self.at.get((*place[:number], step, *place[number + 1 :]))
                    if there is not None:
                        found[there] = None
                        break
        found.pop(candidate, None)
        return list(found)

    def _ways(self, axis: Axis, here: int) -> Iterator[Sequence[int]]:
        if axis.ordered:
            yield range(here - 1, -1, -1)
            yield range(here + 1, len(axis.values))
        else:
            yield from ([other] for other in range(len(axis.values)) if other != here)

    def spread_order(self, seed: int) -> Iterator[int]:
        """Yield each candidate once: first those that have each value of each axis about equally often, then the rest.

        Each of the first ones is that of `SPREAD_TRIES` drawn ones whose values were drawn the least often.
        """
        rng = random.Random(seed)
        left = list(range(len(self.places)))
        rng.shuffle(left)
        seen, counts = set[int](), [Counter[int]() for _ in self.axes]

        def met(candidate: int) -> int:
            """Return how often a candidate's values were drawn, those of long axes weighing more."""
            place = self.places[candidate]
            return sum(
                count[value] * len(axis.values) for count, value, axis in zip(counts, place, self.axes, strict=True)
            )

        for _ in range(min(SPREAD, len(left) // 4)):
            drawn = [candidate for candidate in rng.choices(left, k=SPREAD_TRIES) if candidate not in seen]
            found = min(drawn, key=met, default=None)
            if found is not None:
                seen.add(found)
                for count, value in zip(counts, self.places[found], strict=True):
                    count[value] += 1
                yield found
        yield from (candidate for candidate in left if candidate not in seen)


def _text(value: Any) -> bytes:
    return b"" if value is _ABSENT else key_of(value)


AUTO, EXHAUSTIVE, RANDOM, PRIOR, BAYESIAN = "auto", "exhaustive", "random", "prior", "bayesian"
WALKED = 64
"""Spaces of more candidates are not walked from end to end, but by the prior."""


class FixedOrder:
    """Every candidate once, in an order that is known from the start."""

    def __init__(self, name: str, order: Iterable[int]) -> None:
        self.name, self._order = name, iter(order)

    def ask(self) -> int | None:
        return next(self._order, None)

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass


def _random(searched: Searched) -> FixedOrder:
    """Return an order that the seed draws: the first ones spread over the axes."""
    indices = list(searched.configs)
    order = Encoding(list(searched.configs.values())).spread_order(searched.seed)
    begin = list(islice(order, SPREAD))  # the slow part, which is done before the first answer
    return FixedOrder(RANDOM, (indices[position] for position in chain(begin, order)))


def _ranked(searched: Searched) -> FixedOrder:
    """Return the order of the prior's estimates, the best first; then those without one. The seed shuffles equals."""
    shuffled = list(searched.configs)
    random.Random(searched.seed).shuffle(shuffled)
    return FixedOrder(PRIOR, by_prior(shuffled, searched.prior or {}))


def _exhaustive(searched: Searched) -> FixedOrder:
    """Return small spaces in their own order, larger ones as `_ranked` has them.

    Spaces often list their large and costly configurations last, whose compiles would end last.
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
"""The names that a user may give, for messages."""
FEW_CANDIDATES = 8
"""With budgets of up to this many candidates, learning does not help without a prior."""


def learns(name: str) -> bool:
    """Tell whether the strategy called `name` learns from outcomes, as a user's may; only such take long to answer."""
    return name not in (EXHAUSTIVE, RANDOM, PRIOR)


def check_given(strategy: str | Strategy | None, *, pipeline: bool = True) -> None:
    """Raise `UsageError` for a `strategy` that is none, or cannot learn without `pipeline`."""
    if strategy is None:
        return
    name: Any = strategy if isinstance(strategy, str) else getattr(strategy, "name", None)
    if isinstance(strategy, str):
        if strategy not in STRATEGIES:
            raise UsageError(
                f"strategy {strategy!r} is unknown; there is {', '.join(STRATEGIES)}, or an object of your own"
            )
    elif isinstance(strategy, type) or not (isinstance(name, str) and name and isinstance(strategy, Strategy)):
        raise UsageError(
            f"strategy {strategy!r}: give a name, or an object with a name (text), ask() and "
            "tell(index, latency_ms, reason)"
        )
    elif name in STRATEGIES:
        raise UsageError(f"strategy {name!r}: atune has a strategy of that name; rename yours")
    if not pipeline and name != AUTO and learns(name):
        raise UsageError(f"strategy {name!r} learns while candidates compile: leave out pipeline=False")


def uses_prior(strategy: str | Strategy, total: int) -> bool:
    """Tell whether a strategy, given itself or by name, uses a prior in a space of `total` candidates."""
    if not isinstance(strategy, str):
        return hasattr(strategy, "begin")
    return strategy != RANDOM and (strategy != EXHAUSTIVE or total > WALKED)


def make_strategy(name: str, searched: Searched) -> Strategy:
    """Return the strategy called `name`. Raises `UsageError` as `check_given` does."""
    check_given(name)
    return MAKERS[name](searched)


def chosen(total: int, budget: int | None, *, limited: bool, pipeline: bool = True, prior: bool = False) -> str:
    """Return the name of the strategy that ``auto`` stands for, for a space of `total` candidates.

    `limited`: whether there is any budget. `budget`: how many candidates it admits, if known. `pipeline`: whether
    outcomes come before all is proposed. `prior`: whether there is a prior.
    """
    if not limited or (budget is not None and budget >= total):
        return EXHAUSTIVE
    few = budget is not None and budget <= FEW_CANDIDATES
    if pipeline and (prior or not few):
        return BAYESIAN
    return PRIOR if prior else RANDOM

"""The strategy of a run: chosen by name, made once the space is known, and told what earlier parts found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atune.engine.search.interface import Guarded, Searched, Strategy
from atune.engine.search.recording import reason_of
from atune.engine.search.registry import AUTO, chosen, make_strategy
from atune.engine.search.survey_columns import survey_fields
from atune.engine.search.warm_start import elsewhere
from atune.journal.events import CandidateMeasured, RunStarted
from atune.journal.state import State
from atune.model.advice import Advice
from atune.model.candidate import Candidate
from atune.model.settings import Budget


@dataclass(frozen=True)
class Search:
    """How a run searches its space. `strategy`: a name, or the user's own. `advice`: see `Advice`."""

    strategy: str | Strategy
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    default: int | None = None
    advice: Sequence[Advice] = ()

    @property
    def name(self) -> str:
        """The strategy's name."""
        return self.strategy if isinstance(self.strategy, str) else self.strategy.name


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


def strategy_of(
    search: Search, candidates: Mapping[int, Candidate], state: State, suspects: Iterable[int] = ()
) -> Guarded:
    """Return the strategy, told of all outcomes so far in their order, with the survey of the space in `state`.

    `suspects`: candidates that are not tried again. Raises `UsageError` if it does not fit the space.
    """
    left = {index: one.config for index, one in candidates.items() if not state.entry(index).surveyed}
    most = search.budget.most(len(candidates))
    ratios = elsewhere(search.advice, {index: candidates[index].key for index in left})
    searched = Searched(
        left,
        search.seed,
        None if most is None else min(most, len(candidates)),
        **survey_fields(state.surveyed),
        default=search.default,
        elsewhere=ratios,
    )
    strategy = Guarded(_made(search.strategy, searched), candidates)
    for index, latency_ms, reason in _past(state):
        if index in candidates:
            strategy.tell(index, latency_ms, reason)
    for index in suspects:
        strategy.tell(index, None, "suspect")
    return strategy


def _made(given: str | Strategy, searched: Searched) -> Strategy:
    """Return the strategy of that name, or the user's own after its `begin`."""
    if isinstance(given, str):
        return make_strategy(given, searched)
    begin = getattr(given, "begin", None)
    if begin is not None:
        begin(searched)
    return given


def _past(state: State) -> list[tuple[int, float | None, str]]:
    """Return the outcomes so far in their order, as strategies are told: index, latency and reason."""
    found = []
    for entry in state.entries.values():
        outcome = state.outcome(entry.index)
        if entry.key and not entry.surveyed and outcome is not None:
            reason = reason_of(state, entry.index)
            own = isinstance(outcome, CandidateMeasured) and not reason
            latency_ms = outcome.timing.latency_ms if own and isinstance(outcome, CandidateMeasured) else None
            found.append((outcome.seq, (entry.index, latency_ms, reason)))
    return [past for _, past in sorted(found, key=lambda each: each[0])]

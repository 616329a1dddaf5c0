"""The plan of a run, or of a part that resumes it: a pure function of the journal's state and the current workload.

A new run plans everything, and a resumed run plans the work that the journal lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from atune.engine.prior import CAN_RUN, survey_fields
from atune.engine.strategy import Enough, Guarded, Searched, Strategy, latency_or_reason, make_strategy, uses_prior
from atune.journal.state import Entry, State, all_proposed, proposed
from atune.model.candidate import BASELINE, Advice, Candidate, config_key, numbered, with_tuples
from atune.model.settings import Budget
from atune.workload.workload import WorkloadSpec

DEATHS = 2
"""A candidate is suspect if the whole program died this many times while measuring the candidate."""


class Plan:
    """The work of a run of `spec` that the journal's `state` still lacks. All indices are the journal's indices.

    `given`: the strategy's name, or the user's own strategy. `default`: the default configuration's index. `advice`:
    configurations to try before the strategy's proposals. `prior`: whether there is a prior.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        state: State,
        given: str | Strategy,
        *,
        seed: int,
        budget: Budget,
        default: int | None,
        advice: Sequence[Advice],
        prior: bool,
    ) -> None:
        self.given, self.seed, self.budget, self.advice, self.default_index = given, seed, budget, advice, default
        self.candidates = {candidate.index: candidate for candidate in numbered(spec.configs)}
        """All candidates of the space, by index."""
        tried, before, total = state.entry(BASELINE), proposed(state), self.total
        self.baseline: Candidate | None = None
        """The default configuration, if the space does not list it."""
        if tried.key:  # the journal's default, even if the current default differs
            self.baseline = Candidate(BASELINE, tried.key, tried.config)
        elif default == BASELINE and spec.baseline is not None:
            self.baseline = Candidate(BASELINE, config_key(spec.baseline), with_tuples(spec.baseline))
        over = budget.used_up(state.wall_s) or all_proposed(state, budget)
        further = [entry.index for entry in before if not entry.further_layout]
        self.baseline_left = not over and self.baseline is not None and not tried.key
        """Whether the baseline must still be proposed."""
        self.proposable = 0 if over else max(0, min(total, budget.most(total) or total) - len(further))
        """Number of candidates that the strategy may still propose."""
        self.to_survey = prior and state.surveyed is None and uses_prior(given, total)
        """Whether the space must be surveyed before the strategy is made."""
        self.redo = list[Candidate]()
        """Candidates that an earlier part proposed, and that have no outcome."""
        self.suspects = dict[int, str]()
        """For each candidate that must not be tried again, the device that was measuring it when the program died."""
        self.codes = dict[str, int]()
        """For each code key that has an outcome, the candidate with this outcome."""
        self._assign(state, [*before, tried] if tried.key else before)
        self.begun = [*(candidate.index for candidate in self.redo), *further[-1:]]
        """Candidates whose further layouts may still have to be proposed."""

    def _assign(self, state: State, before: Sequence[Entry]) -> None:
        """Assign the candidates that were proposed `before` to `redo`, `suspects` and `codes`."""
        members: dict[int, list[Entry]] = {}
        for entry in before:
            members.setdefault(state.first(entry.index).index, []).append(entry)
        for first, group in members.items():
            deadly = [entry.index for entry in group if state.deaths(entry.index) >= DEATHS]
            if state.entry(first).outcome is None and not deadly:
                self.redo.append(self.candidate(group[0].index))
                continue
            if state.entry(first).outcome is None:
                self.suspects[deadly[0]] = getattr(state.measuring.get(deadly[0]), "device", "")
            self.codes.update((entry.code_key, first) for entry in group if entry.code_key)

    @property
    def total(self) -> int:
        return len(self.candidates)

    @property
    def default(self) -> list[Candidate]:
        index = self.default_index
        return [] if index is None or (index == BASELINE and self.baseline is None) else [self.candidate(index)]

    def candidate(self, index: int) -> Candidate:
        """Return a candidate of the space, or the baseline."""
        return self.baseline if self.baseline is not None and index == BASELINE else self.candidates[index]

    def strategy(self, state: State) -> Guarded:
        """Return the strategy, after telling it the survey of the space and all outcomes in `state`.

        Raises `UsageError` if the strategy does not fit the space.
        """
        candidates, known = self.candidates, survey_fields(state.surveyed)
        default = self.default_index if self.default_index in candidates else None
        left = {index: candidate.key for index, candidate in candidates.items() if not state.entry(index).surveyed}
        unfit = {index for index, facts in known.get("facts", {}).items() if facts.get(CAN_RUN) == 0}
        last = [index for index in left if index in unfit and index != default]
        keys = {index: left[index] for index in left.keys() - {*last}} if len(last) < len(left) else left
        most = self.budget.most(len(candidates))
        budget = None if most is None else min(most, len(candidates))
        configs = {index: candidates[index].config for index in sorted(keys)}
        first = advised(self.advice, keys, budget)
        searched = Searched(configs, self.seed, budget, **known, default=default, advised=first)
        if isinstance(self.given, str):
            own = make_strategy(self.given, searched)
        else:
            own = self.given
            getattr(own, "begin", lambda _: None)(searched)
        enough = Enough() if self.budget.auto and searched.prior else None
        strategy = Guarded(own, candidates, searched.first, last, enough)
        strategy.tell_all(past for past in _past(state) if past[0] in candidates)
        for index in self.suspects.keys() & candidates.keys():
            strategy.tell(index, None, "suspect")
        return strategy

    @property
    def to_compile(self) -> int:
        """Largest number of candidates that will be compiled."""
        return len(self.redo) + self.proposable + self.baseline_left

    @property
    def empty(self) -> bool:
        return not (self.proposable or self.redo or self.suspects or self.baseline_left)


def advised(advice: Iterable[Advice], keys: Mapping[int, str], budget: int | None) -> list[int]:
    """Return the indices of candidates to try first: the best of each source, then the second best of each source, and
    so on, up to half of the `budget`. `keys`: the candidates' configuration keys."""
    at = {key: index for index, key in keys.items()}
    ranks = zip_longest(*([at.get(config_key(config)) for config in each.first] for each in advice))
    indices = [*dict.fromkeys(index for rank in ranks for index in rank if index is not None)]
    return indices if budget is None else indices[: max(1, budget // 2)]


def _past(state: State) -> list[tuple[int, float | None, str]]:
    """Return index, latency and reason of each outcome so far, in the order of the outcomes, for a strategy."""
    seqs = {e.index: outcome.seq for e in proposed(state) if (outcome := state.outcome(e.index)) is not None}
    return [(index, *latency_or_reason(state, index)) for index in sorted(seqs, key=seqs.__getitem__)]

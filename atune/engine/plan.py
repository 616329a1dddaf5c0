"""Plans the work that is left: everything for a new run, or what the journal of a resumed run lacks; and its strategy.

`planned` is a pure function from the journal's state and the current workload to a `Plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from atune.engine.search.interface import Guarded, Searched, Strategy, latency_or_reason
from atune.engine.search.prior import CAN_RUN, survey_fields
from atune.engine.search.strategies import make_strategy, uses_prior
from atune.errors import JournalError, UsageError
from atune.journal.candidate_state import Entry
from atune.journal.events import RunStarted
from atune.journal.state import State
from atune.model.candidate import BASELINE, Advice, Candidate, config_key, thaw
from atune.model.device import DeviceInfo
from atune.model.settings import MEASURING, Budget
from atune.workload.workload import WorkloadSpec

PARTS = ("kernel", "target", "device", "versions", "settings")
"""Parts of the work that may differ when a run is resumed; each can be accepted by its name."""
DEATHS = 2
"""A candidate is suspect after the whole program died this many times while it was being measured."""


@dataclass
class Plan:
    """The work of a run, or of a further part of one. Indices are the journal's."""

    given: str | Strategy
    """The strategy's name, or the user's own."""
    seed: int
    budget: Budget
    advice: Sequence[Advice]
    """Configurations to try before what the strategy proposes."""
    default_index: int | None
    candidates: dict[int, Candidate]
    """All candidates of the space, by index."""
    proposable: int = 0
    """How many candidates the strategy may still propose."""
    baseline: Candidate | None = None
    """The default configuration, where the space does not list it."""
    baseline_left: bool = False
    """Whether the baseline must still be proposed."""
    to_survey: bool = False
    """Whether the space must be surveyed before the strategy is made."""
    redo: list[Candidate] = field(default_factory=list)
    """Candidates that an earlier part proposed and that have no outcome."""
    begun: list[int] = field(default_factory=list)
    """Candidates, the last of the configurations among them, whose further layouts may not have been proposed."""
    suspects: dict[int, str] = field(default_factory=dict)
    """Candidates that must not be tried again, with their device."""
    codes: dict[str, int] = field(default_factory=dict)
    """Code keys that have an outcome, with the candidate that has it."""

    @property
    def total(self) -> int:
        return len(self.candidates)

    @property
    def default(self) -> list[Candidate]:
        """The default configuration, if there is one."""
        index = self.default_index
        return [] if index is None or (index == BASELINE and self.baseline is None) else [self.candidate(index)]

    def candidate(self, index: int) -> Candidate:
        """Return a candidate of the space, or the baseline."""
        return self.baseline if self.baseline is not None and index == BASELINE else self.candidates[index]

    def strategy(self, state: State) -> Guarded:
        """Return the strategy before its first `ask`, with the survey of the space and all outcomes in `state`.

        Raises `UsageError` if it does not fit the space.
        """
        candidates, known = self.candidates, survey_fields(state.surveyed)
        default = self.default_index if self.default_index in candidates else None
        left = {index: one.key for index, one in candidates.items() if not state.entry(index).surveyed}
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
        strategy = Guarded(own, candidates, searched.first, last)
        for index, latency_ms, reason in _past(state):
            if index in candidates:
                strategy.tell(index, latency_ms, reason)
        for index in self.suspects.keys() & candidates.keys():
            strategy.tell(index, None, "suspect")
        return strategy

    @property
    def to_compile(self) -> int:
        """How many candidates will be compiled, at most."""
        return len(self.redo) + self.proposable + self.baseline_left

    @property
    def empty(self) -> bool:
        return not (self.proposable or self.redo or self.suspects or self.baseline_left)


def planned(
    spec: WorkloadSpec,
    state: State,
    strategy: str | Strategy,
    *,
    seed: int,
    budget: Budget,
    default: int | None,
    advice: Sequence[Advice],
    prior: bool,
) -> Plan:
    """Plan what is left of a run over `spec`: all of it if `state` has no proposals. `prior`: whether it has one."""
    candidates = {i: Candidate(i, config_key(config), thaw(config)) for i, config in enumerate(spec.configs)}
    plan = Plan(strategy, seed, budget, advice, default, candidates)
    tried, before, total = state.entry(BASELINE), proposed(state), len(candidates)
    if tried.key:  # as the journal has it, whatever the default is by now
        plan.baseline = Candidate(BASELINE, tried.key, tried.config)
    elif default == BASELINE and spec.baseline is not None:
        plan.baseline = Candidate(BASELINE, config_key(spec.baseline), thaw(spec.baseline))
    if not budget.used_up(state.wall_s):
        most = min(total, budget.most(total) or total) - sum(not entry.further_layout for entry in before)
        plan.proposable, plan.baseline_left = max(0, most), plan.baseline is not None and not tried.key
    plan.to_survey = prior and state.surveyed is None and uses_prior(strategy, total)
    _sort_out(plan, state, [*before, tried] if tried.key else before)
    last = [entry.index for entry in before if not entry.further_layout][-1:]
    plan.begun = [*(candidate.index for candidate in plan.redo), *last]
    return plan


def proposed(state: State) -> list[Entry]:
    """Return the candidates of the space that were proposed, in the order of their proposals."""
    return [entry for entry in state.entries.values() if entry.key and entry.in_space and not entry.surveyed]


def check_same_work(
    state: State, now: RunStarted, devices: Sequence[DeviceInfo], accept: Sequence[str]
) -> tuple[str, ...]:
    """Return the accepted differences between the journal's work and `now`, the header that a new run would have.

    Raises `JournalError` with the others, and if the space differs.
    """
    header = state.header
    assert header is not None
    both = header.baseline is not None and now.baseline is not None
    if header.space != now.space or (both and bool(header.refused) != bool(now.refused)):
        now_has = f"has {now.total:,}" if header.total != now.total else "has others"
        if header.space == now.space:
            now_has = "its constraints judged the default otherwise"
        raise JournalError(
            f"the journal records another space: it had {header.total:,} candidates and {now_has}. Give the space as "
            "it was, or begin a new journal that takes this one as advice (--warm, warm=)"
        )
    found = _differences(header, state, now, devices)
    if refused := [(part, text) for part, text in found if part not in accept]:
        lines = "".join(f"\n  {part}: {text}" for part, text in refused)
        options = " ".join(f"--accept {part}" for part in dict.fromkeys(part for part, _ in refused))
        raise JournalError(
            f"the journal records other work, and cannot be resumed:{lines}\n"
            f"Give another journal, or accept this: atune resume JOURNAL {options} (from Python: accept=[…])"
        )
    return tuple(f"{part}: {text}" for part, text in found)


def advised(advice: Iterable[Advice], keys: Mapping[int, str], budget: int | None) -> list[int]:
    """Return the candidates to try first, by index: the best of each source, the second best of each, and so on.

    `keys`: the candidates' configuration keys. They take half of the `budget` at most.
    """
    at = {key: index for index, key in keys.items()}
    ranks = zip_longest(*([at.get(config_key(config)) for config in each.first] for each in advice))
    found = [*dict.fromkeys(index for rank in ranks for index in rank if index is not None)]
    return found if budget is None else found[: max(1, budget // 2)]


def _sort_out(plan: Plan, state: State, before: Sequence[Entry]) -> None:
    """Decide for each candidate that was proposed `before` what `plan` does with it."""
    members: dict[int, list[Entry]] = {}
    for entry in before:
        members.setdefault(state.first(entry.index).index, []).append(entry)
    for first, group in members.items():
        if state.entry(first).outcome is not None:
            plan.codes.update((entry.code_key, first) for entry in group if entry.code_key)
        elif deadly := [e.index for e in group if state.deaths(e.index) >= DEATHS]:
            plan.suspects[deadly[0]] = state.measuring.get(deadly[0], "")
            plan.codes.update((entry.code_key, first) for entry in group if entry.code_key)
        else:
            plan.redo.append(plan.candidate(group[0].index))


def finished(state: State, budget: Budget) -> bool:
    """Tell whether a run has ended and `budget` admits no more."""
    if state.finished is None or state.finished.reason == "stopped":
        return False
    done = [entry for entry in proposed(state) if state.outcome(entry.index) is not None]
    most = budget.most(state.total)
    used_up = most is not None and sum(not entry.further_layout for entry in done) >= most
    settled = len(done) + sum(entry.surveyed for entry in state.entries.values())
    return settled >= state.total or used_up or budget.used_up(state.wall_s)


def _differences(
    header: RunStarted, state: State, now: RunStarted, devices: Sequence[DeviceInfo]
) -> list[tuple[str, str]]:
    """Return (part, sentence) for each difference between the work and the header, except for the space."""
    found: list[tuple[str, str]] = []
    if thaw(header.arguments) != thaw(now.arguments):
        found.append(("kernel", f"the problem was {_values(header.arguments)} and is {_values(now.arguments)}"))
    elif header.fingerprint != now.fingerprint:
        found.append(
            ("kernel", "the source of the kernel, its inputs or its reference, or how results are checked, changed")
        )
    if header.target != now.target:
        found.append(("target", f"it was {header.target} and is {now.target}"))
    before = {device.name for device in state.devices.values()}
    if before and (new := sorted({device.name for device in devices} - before)):
        found.append(("device", f"measured on {', '.join(sorted(before))} before, and now on {', '.join(new)}"))
    versions = state.resumed.versions if state.resumed else header.versions
    for name in sorted(versions.keys() | now.versions.keys()):
        was, here = versions.get(name, "not there"), now.versions.get(name, "not there")
        if was != here:
            found.append(("versions", f"{name} was {was} and is {here}"))
    if (header.strategy, header.settings.get("seed")) != (now.strategy, now.settings.get("seed")):
        was = f"{header.strategy} with seed {header.settings.get('seed')}"
        found.append(("settings", f"the strategy was {was} and is {now.strategy} with seed {now.settings.get('seed')}"))
    for group, names in MEASURING.items():
        one, other = header.settings.get(group, {}), now.settings.get(group, {})
        for name in names:
            if name in one and _plain(one[name]) != _plain(other.get(name)):
                found.append(("settings", f"{name} was {one[name]!r} and is {other.get(name)!r}"))
    return found


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Return `parts` as a tuple. Raises `UsageError` for a name that is not in `PARTS`."""
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable) or not all(part in PARTS for part in parts):
        raise UsageError(f"accept: give some of {', '.join(PARTS)}, got {parts!r}")
    return tuple(parts)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _values(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "without arguments"


def _past(state: State) -> list[tuple[int, float | None, str]]:
    """Return the outcomes so far in their order, as strategies get them: index, latency and reason."""
    found = []
    for entry in proposed(state):
        outcome = state.outcome(entry.index)
        if outcome is not None:
            found.append((outcome.seq, (entry.index, *latency_or_reason(state, entry.index))))
    return [past for _, past in sorted(found, key=lambda each: each[0])]

"""Plans the work that is left: everything for a new run, or what the journal of a resumed run lacks.

A pure function from the journal's state and the current workload to a `Plan`. It starts nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atune.engine.strategies import Make, continued, maker
from atune.errors import JournalError, UsageError
from atune.journal.candidate_state import Entry
from atune.journal.events import CandidateMeasured, CandidatePruned, RunStarted
from atune.journal.state import State
from atune.model.advice import Advice
from atune.model.candidate import Candidate, config_key, space_hash, thaw
from atune.model.device import DeviceInfo
from atune.model.points import MOST_POINTS
from atune.model.settings import MEASURING, Budget
from atune.search.choosing import ORDERS, uses_prior
from atune.search.guard import Guarded
from atune.search.interface import Strategy
from atune.workload.workload import WorkloadSpec

GONE = "the space does not hold it any more"
"""Why a candidate of an earlier part can be neither compiled nor tried again."""
PARTS = ("kernel", "space", "target", "device", "versions", "settings")
"""Parts of the work that may differ when a run is resumed; each can be accepted by its name."""
MOST_REFUSED = 10_000
"""How many points in a row constraints may refuse."""
DEATHS = 2
"""A candidate is suspect after the whole program died this many times while it was being measured."""


@dataclass
class Plan:
    """The work of a run, or of a further part of one. Indices are the journal's."""

    candidates: dict[int, Candidate]
    """The space's candidates, by index; of a large space, those that were proposed."""
    name: str
    """The strategy's."""
    make: Make
    known: Container[int]
    """Indices that the strategy may propose."""
    proposable: int
    """How many candidates the strategy may still propose."""
    to_survey: bool = False
    """Whether the space must be surveyed before the strategy is made."""
    redo: list[Candidate] = field(default_factory=list)
    """Candidates that an earlier part proposed and that have no outcome."""
    suspects: dict[int, str] = field(default_factory=dict)
    """Candidates that must not be tried again, with their device."""
    gone: list[int] = field(default_factory=list)
    """Candidates of the journal that the space no longer holds."""
    codes: dict[str, int] = field(default_factory=dict)
    """Code keys that have an outcome, with the candidate that has it."""
    total: int = 0
    accepted: tuple[str, ...] = ()
    listed: bool = True
    """Whether `candidates` is the whole space."""
    pool: dict[int, Candidate] = field(default_factory=dict)
    """The candidates of a large space from which the strategy begins to learn; surveying adds to them."""

    def strategy(self, state: State) -> Guarded:
        """Return the strategy before its first `ask`. Raises `UsageError` if it does not fit the space."""
        return Guarded(self.make(state), self.known)

    @property
    def to_compile(self) -> int:
        """How many candidates will be compiled, at most."""
        return len(self.redo) + self.proposable

    @property
    def empty(self) -> bool:
        return not (self.proposable or self.redo or self.suspects or self.gone)


def plan_new(
    spec: WorkloadSpec,
    strategy: str | Strategy,
    seed: int,
    budget: Budget,
    prior: bool = False,
    advice: Sequence[Advice] = (),
    pool: dict[int, Candidate] | None = None,
) -> Plan:
    """Plan a new run. `prior`: whether it has one. `pool`: see `maker`.

    Raises `UsageError` if the strategy does not fit the space.
    """
    pool = {} if pool is None else pool
    candidates = {i: Candidate(i, config_key(c), c) for i, c in enumerate(map(thaw, spec.configs))}
    total, listed = spec.total, spec.size is None
    most = min(total, budget.most(total) or total)
    limit = most if budget.most(total) else None
    name, make = maker(strategy, spec, candidates, seed, limit, spec.default, advice, pool=pool)
    surveyed = prior and (listed or bool(pool)) and uses_prior(strategy)
    known = candidates if listed else range(total)
    return Plan(candidates, name, make, known, most, surveyed, total=total, listed=listed, pool=pool)


def check_places(header: RunStarted, spec: WorkloadSpec) -> None:
    """Raise `JournalError` if a large space has other places than the journal's."""
    if header.large and (spec.size is None or spec.identity() != header.space):
        raise JournalError(
            "the journal is of a space that is too large to list, with other axes or lists. Its candidates cannot be "
            "matched with this space's. Give another journal, or the space as it was"
        )


def proposed(state: State) -> list[Entry]:
    """Return the candidates that a strategy proposed, in the order of their proposals."""
    return [entry for entry in state.entries.values() if entry.key and not entry.surveyed]


def excluded(state: State) -> int:
    """Return how many candidates the survey found to fail."""
    return sum(entry.surveyed for entry in state.entries.values())


def plan_rest(
    state: State,
    now: RunStarted,
    devices: Sequence[DeviceInfo],
    spec: WorkloadSpec,
    budget: Budget,
    accept: Sequence[str],
    known: Mapping[int, Candidate] = {},
    own: Strategy | None = None,
    prior: bool = False,
    pool: dict[int, Candidate] | None = None,
) -> Plan:
    """Plan the work that a run's earlier parts left. `now` is the header that a new run would have.

    `known`: candidates proposed before that a large space still holds, by place. `own`: the user's own strategy, if the
    run has one. `prior`: whether a run whose strategy has proposed nothing has one; an earlier part's survey is used as
    it is. `pool`: see `maker`. Raises `JournalError` with the differences if the work differs in a part that is not in
    `accept`.
    """
    header, pool = state.header, {} if pool is None else pool
    assert header is not None
    candidates, gone = _placed(state, header, spec, known)
    size = len(candidates) if spec.size is None else state.total - len(gone)
    found = differences(header, state, now, devices)
    if lacking := sum(not isinstance(state.outcome(index), CandidatePruned) for index in gone):
        found.append(("space", f"{lacking} candidates of the journal are no longer in the space"))
    elif size + len(gone) < state.total:
        found.append(("space", f"it had {state.total - len(gone)} candidates and has {size}"))
    _refuse([(part, text) for part, text in found if part not in accept])
    before = proposed(state)
    most = min(size, budget.most(size + len(gone)) or size)
    strategy = own or header.strategy
    seed = int(header.settings.get("seed") or 0)
    limit, suspects = most if budget.most(size) else None, dict[int, str]()
    name, make = maker(strategy, spec, candidates, seed, limit, header.default, header.advice, pool=pool)
    refused = spec.size is not None and name not in ORDERS
    unsurveyed = prior and (spec.size is None or bool(pool)) and state.surveyed is None and len(before) <= header.known
    plan = Plan(
        candidates,
        name,
        continued(header, before, make, candidates, size, limit, suspects, spec, refused=refused),
        range(MOST_POINTS),
        most - sum(e.index in candidates for e in before if not e.beside),
        suspects=suspects,
        to_survey=unsurveyed and uses_prior(strategy),
        total=size + len(gone),
        accepted=tuple(f"{part}: {text}" for part, text in found),
        listed=spec.size is None,
        pool=pool,
    )
    plan.proposable = max(0, plan.proposable)
    if budget.used_up(state.wall_s):
        plan.proposable = 0
    _sort_out(plan, state, before)
    return plan


def _sort_out(plan: Plan, state: State, before: Sequence[Entry]) -> None:
    """Decide for each candidate that was proposed `before` what `plan` does with it."""
    members: dict[int, list[Entry]] = {}
    for entry in before:
        members.setdefault(state.first(entry.index).index, []).append(entry)
    for first, group in members.items():
        here = [entry for entry in group if entry.index in plan.candidates]
        outcome = state.entry(first).outcome
        if not here:
            if outcome is None or isinstance(outcome, CandidateMeasured):
                plan.gone.append(first)
        elif outcome is not None:
            plan.codes.update((entry.code_key, first) for entry in group if entry.code_key)
        elif deadly := [e.index for e in group if state.deaths(e.index) >= DEATHS]:
            plan.suspects[deadly[0]] = state.measuring.get(deadly[0], "")
            plan.codes.update((entry.code_key, first) for entry in group if entry.code_key)
        else:
            plan.redo.append(plan.candidates[here[0].index])


def _refuse(found: Sequence[tuple[str, str]]) -> None:
    """Raise `JournalError` for differences that the user did not accept."""
    if found:
        lines = "".join(f"\n  {part}: {text}" for part, text in found)
        options = " ".join(f"--accept {part}" for part in dict.fromkeys(part for part, _ in found))
        raise JournalError(
            f"the journal is of other work, and cannot be resumed:{lines}\n"
            f"Give another journal, or accept this: atune resume JOURNAL {options} (from Python: accept=[…])"
        )


def finished(state: State, budget: Budget) -> bool:
    """Tell whether a run has ended and `budget` admits no more."""
    if state.finished is None or state.finished.reason == "stopped":
        return False
    count = len(proposed(state))
    most = budget.most(state.total)
    used_up = most is not None and count - sum(entry.beside for entry in state.entries.values()) >= most
    return count + excluded(state) >= state.total or used_up or budget.used_up(state.wall_s)


def differences(
    header: RunStarted, state: State, now: RunStarted, devices: Sequence[DeviceInfo]
) -> list[tuple[str, str]]:
    """Return (part, sentence) for each difference between the work and the header. A larger space is no difference."""
    found: list[tuple[str, str]] = []
    if header.arguments != now.arguments:
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


def _placed(
    state: State, header: RunStarted, spec: WorkloadSpec, there: Mapping[int, Candidate]
) -> tuple[dict[int, Candidate], list[int]]:
    """Give each candidate of the space its index in the journal. New candidates come after all others.

    Returns the candidates, and the journal's candidates that the space lacks.
    """
    if header.large:
        same = {e.index: there[e.index] for e in proposed(state) if e.index in there and there[e.index].key == e.key}
        return same, [entry.index for entry in proposed(state) if entry.index not in same]
    configs = [thaw(config) for config in spec.configs]
    keys = [config_key(config) for config in configs]
    known = {entry.key: entry.index for entry in state.entries.values() if entry.key}
    if space_hash(keys[: header.total]) == header.space and not (known.keys() - keys):
        first = dict(enumerate(keys))
        if all(first.get(index) == key for key, index in known.items()):
            return {i: Candidate(i, key, configs[i]) for i, key in enumerate(keys)}, []
    taken = set(known.values())
    free = (i for i in range(len(keys) + len(known) + 1) if i not in taken)
    placed = {}
    for key, config in zip(keys, configs, strict=True):
        index = known[key] if key in known else next(free)
        placed[index] = Candidate(index, key, config)
    return placed, sorted(index for key, index in known.items() if index not in placed)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _values(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "without arguments"

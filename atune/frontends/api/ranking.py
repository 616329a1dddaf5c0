"""Groups of a set's problems that differ in one size, which one run ranks on code in which that size is symbolic.

A group's run compiles each configuration once, with `T.dynamic` in place of the size, and times it at all sizes. Each
problem then compiles the first few of its own order with the number, and the default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from atune.journal.set_folder import ranked_first, rankings_in
from atune.journal.state import State
from atune.model.candidate import DYNAMIC, SIZES, Advice, Problem, config_key, describe_config, over_sizes
from atune.model.settings import AUTO_LEAST, Budget

WIDER = 3
"""How many times the budget of a problem a ranking has: what is fast differs from size to size. On an H100, with 1.5
times, 11 of 56 winners were more than 2 % slower than those of problems tuned by themselves, and with three times none
(bench/results/symbolic_set)."""
FEWEST = 3
"""Problems that a group has at least: with fewer, the symbolic code costs what it saves."""


@dataclass(eq=False)
class Group:
    """Problems that one run ranks. `arguments`: theirs, a symbolic one in place of the size in which they differ."""

    arguments: dict[str, object]
    journal: Path
    ended: anyio.Event = field(default_factory=anyio.Event)
    advice: dict[str, Advice] = field(default_factory=dict)
    """What each problem tries, by its key, once the run has ended; empty where the problems are tuned as others."""

    @property
    def keys(self) -> list[str]:
        """The problems' keys, in the order of the sizes."""
        return [config_key(problem) for problem in over_sizes(self.arguments)]

    def __str__(self) -> str:
        return f"{len(self.keys)} problems, {describe_config(self.arguments)},"

    def learn(self, state: State) -> None:
        """Take each problem's first configurations from the run's `state`."""
        pairs = zip(self.keys, ranked_first(state), strict=False)  # none has any where too few were measured
        self.advice = {key: Advice(str(self.journal), first) for key, first in pairs}


def wider(budget: Budget) -> Budget:
    """Return the budget of a ranking for problems that have `budget`. One that ends by itself becomes a number."""
    most = AUTO_LEAST if budget.auto and budget.candidates is None else budget.candidates
    candidates = None if most is None else WIDER * most
    share = None if budget.percent is None else min(100.0, WIDER * budget.percent)
    return Budget(candidates=candidates, seconds=budget.seconds, percent=share)


def groups_of(folder: Path, problems: Sequence[Problem]) -> list[Group]:
    """Return the groups of `problems`, none of which has begun: those of journals in `folder`, and new ones."""
    wanted, names = {problem.key for problem in problems}, {name for one in problems for name in one.arguments}
    own = [(path, {n: v for n, v in header.arguments.items() if n in names}) for path, header in rankings_in(folder)]
    found = [Group(arguments, path) for path, arguments in own]  # a header has the workload's arguments, too
    known = [group for group in found if wanted.intersection(group.keys)]
    left = [problem for problem in problems if not any(problem.key in group.keys for group in known)]
    for name, alike in _alike(left):
        sizes = sorted(problem.arguments[name] for problem in alike)
        arguments = {**alike[0].arguments, name: {DYNAMIC: name, SIZES: tuple(sizes)}}
        known.append(Group(arguments, folder / f"ranking-{config_key(arguments)}.jsonl"))
    return known


def _alike(problems: Sequence[Problem]) -> Iterable[tuple[str, list[Problem]]]:
    """Return the groups of problems that differ in one size alone: by that size which makes the fewest groups."""
    names = [name for name in (problems[0].arguments if problems else ()) if _is_size(name, problems)]
    by_name = {name: _by_others(name, problems) for name in names}
    name = min(by_name, key=lambda one: len(by_name[one]), default="")
    return [(name, group) for group in by_name.get(name, ()) if len(group) >= FEWEST]


def _is_size(name: str, problems: Collection[Problem]) -> bool:
    values = [problem.arguments.get(name) for problem in problems]
    return all(type(value) is int and value > 0 for value in values) and len({*values}) > 1


def _by_others(name: str, problems: Iterable[Problem]) -> list[list[Problem]]:
    found = defaultdict[str, list[Problem]](list)
    for problem in problems:
        found[config_key({n: v for n, v in problem.arguments.items() if n != name})].append(problem)
    return list(found.values())

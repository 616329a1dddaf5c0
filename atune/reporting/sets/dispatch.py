"""Fits dispatch rules to a regret matrix, and tests them on problems left out."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from atune.model.candidate import config_key
from atune.model.problem import is_size
from atune.reporting.sets.cover import checked_weights, costs_of, serving, weighted_mean
from atune.reporting.sets.regret import RegretMatrix
from atune.reporting.sets.rule import AnyRule, Branch, Group, Leaf, NearestRule, Point, Tree, TreeRule

DEPTH = 3
"""Questions that a tree asks at most."""
PARTS = 64
"""Fits that leave problems out, at most: of more problems each leaves out several, which are not next to each other."""

Node = Branch | Leaf


class MatrixColumn(NamedTuple):
    """A column of the matrix, with its arguments that must be equal, and its sizes."""

    column: int
    others: dict[str, Any]
    sizes: dict[str, float]


class Fitting(NamedTuple):
    """What rules are fitted to."""

    matrix: RegretMatrix
    costs: list[tuple[float, ...]]
    """By column, those of the rows."""
    names: tuple[str, ...]
    """Of the sizes."""


def dispatch_rule(matrix: RegretMatrix, weights: Sequence[float] | None = None) -> AnyRule:
    """Return the rule that chooses a configuration for problems that were never tuned.

    It is the nearest tuned problem, or a decision tree over the sizes of depth 3 at most (Breiman et al.,
    Classification and Regression Trees, 1984): whichever has the smaller regret when each problem in turn is left out
    of the fit; of more than 64 several at once. A rule that chooses what was not measured on a problem left out loses
    first.

    Arguments that are numbers above zero in every problem are sizes. All others must be equal to those of a tuned
    problem, so a problem alone with its others cannot be left out. Ties go to the nearest rule, to smaller sizes, and
    to smaller configuration keys. Where constraints take sizes it is the nearest. Raises `UsageError` for weights that
    do not fit.
    """
    known = checked_weights(matrix, weights)
    names = _sizes(matrix)
    problems = sorted((_problem(matrix, column, names) for column in range(len(matrix.problems))), key=_order)
    fitting = Fitting(matrix, list(zip(*costs_of(matrix, known), strict=True)), names)
    asks = tuple(name for name in names if name in matrix.asks)
    fits = (_nearest,) if asks else (_nearest, _tree)  # of a leaf there is no next best
    tested = [_left_out(fit, fitting, problems, known) for fit in fits]
    return replace(min(tested, key=lambda found: (found.unmeasured, found.regret or 0.0)), asks=asks)


def _sizes(matrix: RegretMatrix) -> tuple[str, ...]:
    first, *others = matrix.problems
    return tuple(sorted(n for n, v in first.items() if is_size(v) and all(is_size(o.get(n)) for o in others)))


def _problem(matrix: RegretMatrix, column: int, names: Sequence[str]) -> MatrixColumn:
    arguments = matrix.problems[column]
    others = {name: value for name, value in arguments.items() if name not in names}
    return MatrixColumn(column, others, {name: arguments[name] for name in names})


def _order(problem: MatrixColumn) -> tuple[str, tuple[float, ...]]:
    return config_key(problem.others), tuple(problem.sizes.values())


Fit = Callable[[Fitting, Sequence[MatrixColumn]], AnyRule]


def _left_out(fit: Fit, fitting: Fitting, problems: Sequence[MatrixColumn], weights: Sequence[float]) -> AnyRule:
    """Return the rule that `fit` makes of all problems, with its regret on each problem when that is left out."""
    matrix = fitting.matrix
    rows = {config_key(config): row for row, config in enumerate(matrix.configs)}
    found: list[tuple[float | None, float]] = []
    for part in range(min(PARTS, len(problems))):
        others = [problem for i, problem in enumerate(problems) if i % PARTS != part]
        rule = fit(fitting, others) if others else None
        for left in problems[part::PARTS]:
            if rule is not None and (picked := rule.pick(matrix.problems[left.column])) is not None:
                row = rows[config_key(rule.configs[picked])]
                found.append((matrix.regret[row][left.column], weights[left.column]))
    known = [regret for regret, _ in found if regret is not None]
    return replace(
        fit(fitting, problems),
        regret=weighted_mean([regret for regret, _ in found], [weight for _, weight in found]),
        worst_regret=max(known, default=None),
        tested=len(known),
        unmeasured=len(found) - len(known),
    )


def _nearest(fitting: Fitting, problems: Sequence[MatrixColumn]) -> NearestRule:
    """Return the rule that gives each problem what the nearest of `problems` is served by."""
    served = [
        (p, row)
        for p in problems
        if (row := serving(fitting.matrix, p.column, range(len(fitting.matrix.configs)))) is not None
    ]
    used = sorted({row for _, row in served})
    groups = [list(group) for _, group in itertools.groupby(served, key=lambda one: config_key(one[0].others))]
    return NearestRule(
        configs=tuple(fitting.matrix.configs[row] for row in used),
        sizes=fitting.names,
        groups=tuple(
            Group(group[0][0].others, tuple(Point(problem.sizes, used.index(row)) for problem, row in group))
            for group in groups
        ),
    )


def _tree(fitting: Fitting, problems: Sequence[MatrixColumn]) -> TreeRule:
    """Return a tree for the problems of each combination of other arguments. `problems` are in order."""
    groups = [list(group) for _, group in itertools.groupby(problems, key=lambda p: config_key(p.others))]
    grown = [(group[0].others, _grown(fitting, group, DEPTH)) for group in groups]
    used = sorted({row for _, root in grown for row in _leaves(root)})
    return TreeRule(
        configs=tuple(fitting.matrix.configs[row] for row in used),
        sizes=fitting.names,
        trees=tuple(Tree(others, _renumbered(root, used)) for others, root in grown),
    )


class Best(NamedTuple):
    """The row of the least total cost on some problems."""

    cost: float
    row: int


def _grown(fitting: Fitting, problems: Sequence[MatrixColumn], depth: int) -> Node:
    """Return the tree, with rows in its leaves, that splits where the cost falls most, as long as it falls."""
    best = _best_of_firsts(fitting, problems)[-1]
    splits = [split for name in fitting.names for split in _splits(fitting, problems, name)] if depth else []
    cost, name, most = min(splits, default=(best.cost, "", 0.0))
    if cost >= best.cost:
        return Leaf(best.row)
    small = [problem for problem in problems if problem.sizes[name] <= most]
    large = [problem for problem in problems if problem.sizes[name] > most]
    return Branch(name, most, _grown(fitting, small, depth - 1), _grown(fitting, large, depth - 1))


def _splits(fitting: Fitting, problems: Sequence[MatrixColumn], name: str) -> list[tuple[float, str, float]]:
    """Return (cost, name, limit) of each way to split `problems` by a size, half way between two in logarithms."""
    ordered = sorted(problems, key=lambda problem: problem.sizes[name])
    sizes = [problem.sizes[name] for problem in ordered]
    small, large = _best_of_firsts(fitting, ordered), _best_of_firsts(fitting, ordered[::-1])[::-1]
    return [
        (round(small[i].cost + large[i + 1].cost, 9), name, math.sqrt(one) * math.sqrt(next))
        for i, (one, next) in enumerate(itertools.pairwise(sizes))
        if one < next
    ]


def _best_of_firsts(fitting: Fitting, problems: Sequence[MatrixColumn]) -> list[Best]:
    """Return the best row for the first of `problems`, for the first two, and so on."""
    sums = [0.0] * len(fitting.matrix.configs)
    found = []
    for problem in problems:
        sums = list(map(operator.add, sums, fitting.costs[problem.column]))
        least = min(sums)
        found.append(Best(round(least, 9), sums.index(least)))
    return found


def _leaves(node: Node) -> set[int]:
    return {node.config} if isinstance(node, Leaf) else _leaves(node.small) | _leaves(node.large)


def _renumbered(node: Node, used: Sequence[int]) -> Node:
    """Return the tree with places in `used` in its leaves."""
    if isinstance(node, Leaf):
        return Leaf(used.index(node.config))
    return Branch(node.size, node.most, _renumbered(node.small, used), _renumbered(node.large, used))

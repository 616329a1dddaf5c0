"""Where the budget of a set goes: each problem's share, and what is left for measuring one's winner on another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from atune.errors import UsageError
from atune.journal.result import Result
from atune.model.candidate import Config, config_key
from atune.model.problem import distance
from atune.model.settings import Budget
from atune.reporting.sets.cover import MAX_REGRET, Cover, cover
from atune.reporting.sets.regret import RegretMatrix, regret_matrix

LEAST = 0.5
"""The least share of a problem, where 1 is the budget that was given."""
HELD_FROM = 8
"""Of smaller budgets none is held back."""


def shares(weights: Sequence[float], candidates: int | None = None) -> list[float]:
    """Return each problem's share of the budget, 1 on average and `LEAST` at least, by the square root of its weight.

    If n candidates leave a regret in proportion to 1/n, such shares leave the least weighted regret. Shares by what
    problems have gained so far did worse: bench/results/set_budget. `candidates`: the budget. From `HELD_FROM` on,
    every fourth problem holds one back for `lacking`: those of the least weight, the last ones first, because they
    begin with the most advice.
    """
    roots = [math.sqrt(weight) for weight in weights]
    found = [LEAST] * len(roots)
    order = sorted(range(len(roots)), key=lambda number: (roots[number], -number))
    for place, least in enumerate(order):
        left, total = len(roots) - LEAST * place, math.fsum(roots[number] for number in order[place:])
        if roots[least] * left >= LEAST * total:
            found = [left * root / total if root >= roots[least] else LEAST for root in roots]
            break
    if candidates is not None and candidates >= HELD_FROM:
        for number in order[: len(roots) // 4]:
            found[number] -= 1 / candidates
    return found


def rest(results: Sequence[Result], budget: Budget) -> int:
    """Return how many candidates of the set's budget were not tried; 0 where it limits no number of candidates."""
    whole = msgspec.structs.replace(budget, share=1.0)
    left = 0
    for result in results:
        total = 0 if result.header is None else result.header.total
        left += min(total, whole.most(total) or 0) - len(result.records)
    return max(0, left)


def lacking(results: Sequence[Result], weights: Sequence[float], most: int) -> dict[int, Config]:
    """Return the configurations that would let fewer serve all problems, by the result that has not tried it yet.

    An unknown regret is taken to be that on the nearest problem. `results`: each has a winner. `most`: return at most
    this many, those of the largest weights.
    """
    matrix = regret_matrix(results)
    tried = [{record.key for record in result.all_records} for result in results]
    keys = [config_key(config) for config in matrix.configs]
    guessed = tuple(
        tuple(
            _nearest(matrix, row, column) if regret is None and key not in tried[column] else regret
            for column, regret in enumerate(matrix.regret[row])
        )
        for row, key in enumerate(keys)
    )
    now, then = _cover(matrix, weights), _cover(msgspec.structs.replace(matrix, regret=guessed), weights)
    if then is None or (now is not None and len(now.rows) <= len(then.rows)):
        return {}
    found = {}
    for column, row in enumerate(then.serves):
        known = [matrix.regret[other][column] for other in then.rows]
        if row is not None and not any(regret is not None and regret <= MAX_REGRET for regret in known):
            found[column] = matrix.configs[row]
    return dict(sorted(found.items(), key=lambda one: -weights[one[0]])[:most])


def _nearest(matrix: RegretMatrix, row: int, column: int) -> float:
    """Return a configuration's regret on the nearest problem on which it was measured."""
    here, known = matrix.problems[column], matrix.regret[row]
    return min(
        (distance(there, here), number, regret)
        for number, (there, regret) in enumerate(zip(matrix.problems, known, strict=True))
        if regret is not None
    )[2]


def _cover(matrix: RegretMatrix, weights: Sequence[float]) -> Cover | None:
    try:
        return cover(matrix, weights)
    except UsageError:
        return None

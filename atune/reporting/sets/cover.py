"""The few configurations that serve a set of problems."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from atune.errors import UsageError
from atune.model.candidate import Config, describe_config
from atune.reporting.sets.regret import RegretMatrix

WORK = 20_000_000
"""Comparisons that the search for the best choice may take: seconds of a core."""
MAX_REGRET = 0.03
"""Regret that a cover allows where nothing else is asked for."""

Costs = Sequence[Sequence[float]]
"""By row and column of the matrix: weighted regret, and a penalty where there is none."""


class Cover(msgspec.Struct, frozen=True):
    """Configurations that serve a set of problems, each problem by the one that is the fastest on it."""

    configs: tuple[Config, ...]
    """The chosen ones, in the order of the matrix."""
    rows: tuple[int, ...]
    """Their rows in the matrix."""
    serves: tuple[int | None, ...]
    """By problem, the row that serves it; None where no chosen one was measured."""
    regret: tuple[float | None, ...]
    """By problem, its regret."""
    mean_regret: float
    """Weighted mean over the problems that are served."""
    exact: bool
    """Whether it was found to be the best. Otherwise a better one may exist."""

    @property
    def worst_regret(self) -> float:
        """The largest regret of those that are served."""
        return max((regret for regret in self.regret if regret is not None), default=0.0)


def cover(
    matrix: RegretMatrix,
    weights: Sequence[float] | None = None,
    *,
    max_regret: float | None = None,
    configs: int | None = None,
) -> Cover:
    """Return few configurations that serve all problems of `matrix`.

    With `max_regret` (default 0.03) these are the fewest with which each problem has one within that regret; of
    several such choices the one with the least weighted mean regret. With `configs` they are that many, or fewer, with
    the least weighted mean regret; a problem that none was measured on is avoided first. `weights`: how often each
    problem occurs.

    Branch and bound finds the best choice; a set's gain is at most the sum of its members' (Cornuejols, Fisher and
    Nemhauser, Management Science 23(8), 1977). It starts from a greedy choice (Chvátal, Mathematics of Operations
    Research 4(3), 1979), improved by exchanging one at a time (Teitz and Bart, Operations Research 16(5), 1968). That
    choice is the answer where the search is too long; `Cover.exact` tells. The smallest keys win ties.

    Raises `UsageError` for both limits at once, for weights that do not fit, and where a problem cannot be covered.
    """
    if max_regret is not None and configs is not None:
        raise UsageError("cover: give max_regret or configs, not both")
    if configs is not None and configs < 1:
        raise UsageError(f"cover: configs must be 1 or more, got {configs}")
    known = checked_weights(matrix, weights)
    if configs is not None:
        costs = costs_of(matrix, known)
        rows, exact = _least(costs, configs, _exchanged(costs, _greedy(costs, configs)))
    else:
        rows, exact = _fewest(matrix, known, MAX_REGRET if max_regret is None else max_regret)
    return _cover(matrix, known, sorted(rows), exact)


def checked_weights(matrix: RegretMatrix, weights: Sequence[float] | None) -> list[float]:
    """Return a weight for each problem, 1 without `weights`. Raises `UsageError` for those that do not fit."""
    if weights is None:
        return [1.0] * len(matrix.problems)
    if len(weights) != len(matrix.problems):
        raise UsageError(f"{len(weights)} weights for {len(matrix.problems)} problems: give one for each")
    if wrong := [weight for weight in weights if not (weight > 0 and math.isfinite(weight))]:
        raise UsageError(f"weights must be numbers above zero, got {wrong[0]!r}")
    return [float(weight) for weight in weights]


def costs_of(matrix: RegretMatrix, weights: Sequence[float], limit: float = math.inf) -> list[list[float]]:
    """Return the weighted regret by row and column. What is above `limit`, or unknown, has the penalty."""
    penalty = penalty_of(matrix, weights)
    return [
        [w * (penalty if r is None or r > limit else r) for w, r in zip(weights, row, strict=True)]
        for row in matrix.regret
    ]


def penalty_of(matrix: RegretMatrix, weights: Sequence[float]) -> float:
    """Return a regret so large that one problem with it counts more than the measured regret of all problems."""
    worst = max((r for row in matrix.regret for r in row if r is not None), default=0.0)
    return (worst + 1) * math.fsum(weights) / min(weights)


def _fewest(matrix: RegretMatrix, weights: Sequence[float], limit: float) -> tuple[list[int], bool]:
    costs, covered = costs_of(matrix, weights, limit), penalty_of(matrix, weights) * min(weights)
    for column, problem in enumerate(matrix.problems):
        if min(row[column] for row in costs) >= covered:
            raise UsageError(f"no configuration is within {limit:.2%} on the problem {describe_config(problem)}")
    chosen = _greedy(costs, len(costs), enough=covered)
    while len(chosen) > 1 and _total(costs, fewer := _exchanged(costs, chosen[:-1])) < covered:
        chosen = fewer
    count = len(chosen)
    exact = True
    while exact and count > 1:
        fewer, exact = _least(costs, count - 1, None, below=covered)
        if not fewer:
            break
        chosen, count = fewer, len(fewer)
    rows, best = _least(costs, count, chosen)
    return rows, exact and best


def _greedy(costs: Costs, count: int, enough: float = 0.0) -> list[int]:
    """Return at most `count` rows, each the one that lowers the total most, until it is below `enough`."""
    chosen: list[int] = []
    now = [math.inf] * len(costs[0])
    while len(chosen) < count and (not chosen or math.fsum(now) >= enough):
        row, total = _best_with(costs, now)
        if total >= math.fsum(now):
            break
        chosen.append(row)
        now = list(map(min, now, costs[row]))
    return chosen


def _exchanged(costs: Costs, chosen: Sequence[int]) -> list[int]:
    """Return as many rows, each exchanged for another while that lowers the total."""
    best, least = list(chosen), _total(costs, chosen)
    while True:
        swaps = []
        for place in range(len(best)):
            others = [*best[:place], *best[place + 1 :]]
            row, total = _best_with(costs, _served(costs, others))
            swaps.append((total, [*others, row]))
        total, rows = min(swaps)
        if total >= least:
            return best
        best, least = rows, total


def _best_with(costs: Costs, now: Sequence[float]) -> tuple[int, float]:
    """Return the row that lowers the costs `now` of the problems most, and the total with it."""
    totals = [math.fsum(map(min, now, row)) for row in costs]
    least = min(totals)
    return totals.index(least), least


def _served(costs: Costs, rows: Sequence[int]) -> list[float]:
    """Return what each problem costs with `rows`."""
    return [min((costs[row][column] for row in rows), default=math.inf) for column in range(len(costs[0]))]


def _total(costs: Costs, rows: Sequence[int]) -> float:
    return math.fsum(_served(costs, rows))


def _least(costs: Costs, count: int, start: Sequence[int] | None, below: float = math.inf) -> tuple[list[int], bool]:
    """Return the rows, `count` at most, of the least total cost `below` a limit, and whether that is certain.

    `start`: rows to improve upon; they are returned where nothing is better. Without them the rows may be empty.
    """
    best, least = list(start or ()), min(below, _total(costs, start) if start else math.inf)
    work, size = 0, len(costs) * len(costs[0])

    def extend(chosen: list[int], now: Sequence[float], candidates: Sequence[int]) -> None:
        nonlocal best, least, work
        work += size
        if work > WORK:
            return
        total = math.fsum(now)
        if chosen and total < least:
            best, least = list(chosen), total
        left = count - len(chosen)
        gains = {row: math.fsum(max(0.0, n - c) for n, c in zip(now, costs[row], strict=True)) for row in candidates}
        order = sorted((row for row in candidates if gains[row] > 0), key=lambda row: (-gains[row], row))
        for place, row in enumerate(order if left else ()):
            if total - math.fsum(gains[other] for other in order[place : place + left]) >= least:
                return
            extend([*chosen, row], list(map(min, now, costs[row])), order[place + 1 :])

    worst = [max(column) + 1 for column in zip(*costs, strict=True)]
    extend([], worst, range(len(costs)))
    return best, work <= WORK


def _cover(matrix: RegretMatrix, weights: Sequence[float], rows: Sequence[int], exact: bool) -> Cover:
    serves = [serving(matrix, column, rows) for column in range(len(matrix.problems))]
    regret = [None if row is None else matrix.regret[row][column] for column, row in enumerate(serves)]
    return Cover(
        configs=tuple(dict(matrix.configs[row]) for row in rows),
        rows=tuple(rows),
        serves=tuple(serves),
        regret=tuple(regret),
        mean_regret=weighted_mean(regret, weights) or 0.0,
        exact=exact,
    )


def serving(matrix: RegretMatrix, column: int, rows: Sequence[int]) -> int | None:
    """Return which of `rows` is the fastest on a problem; None where none was measured."""
    known = [(regret, row) for row in rows if (regret := matrix.regret[row][column]) is not None]
    return min(known)[1] if known else None


def weighted_mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return the weighted mean of the known values; None where none is known."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return math.fsum(v * w for v, w in known) / math.fsum(w for _, w in known) if known else None

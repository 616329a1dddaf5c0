"""Which axes mattered: the share of the log latency's variance that each axis explains by itself.

The log latencies get an additive model: a level for each value of each axis, by least squares. An axis explains the
covariance of its levels with the latencies (Li and others, Global Sensitivity Analysis for Systems with Independent
and/or Correlated Inputs, J. Phys. Chem. A 114, 2010). If every value meets every other equally often, these are the
main effects of a functional analysis of variance. Source: Hutter, Hoos and Leyton-Brown, An Efficient Approach for
Assessing Hyperparameter Importance, ICML 2014. The share that as many levels would explain of pure noise is
subtracted. So all axes together explain the adjusted R² (Ezekiel, 1929).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from atune.journal.result import Result
from atune.model.candidate import Config

LEAST = 20
"""With fewer candidates, there is no answer. There must also be twice as many as the model has levels to choose."""
TOLERANCE = 1e-9
"""Of the least squares, relative to where they began."""
WORTH = 0.05
"""Share from which a line of text names an axis."""
NAMED = 5
"""Axes that a line of text names at most."""


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    """What the axes explain of the variance of the log of the latency, as shares of it."""

    shares: dict[str, float]
    """By axis, the largest first; axes that had a single value are left out."""
    unexplained: float
    """What no axis explains by itself: combinations of axes, and noise."""
    candidates: int
    """How many latencies this rests on."""

    def describe(self) -> str:
        """Return it as a line of text, such as ``block_M 61 %, num_stages 22 %; …``; empty where no axis stands out."""
        named = [(name, share) for name, share in self.shares.items() if share >= WORTH][:NAMED]
        basis = f"by {self.candidates:,} candidates"
        if not named:
            return ""
        text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in named)
        left = max(0.0, 1.0 - sum(share for _, share in named))
        return f"{text}; combinations, other axes and noise {100 * left:.0f} % ({basis})"


def axis_importance(result: Result) -> Importance | None:
    """Return which axes mattered, by first timings, a duplicate's by its original's. None for too few measurements."""
    known = {m.index: m.timing.latency_ms for m in result.measurements}
    credited = [(r.config, r.index if r.same_as is None else r.same_as) for r in result.records]
    return importance_of([(config, known[index]) for config, index in credited if index in known])


def importance_of(points: Sequence[tuple[Config, float]]) -> Importance | None:
    """Return what each axis explains of `points`, configurations with their latency in ms. None for too few of them."""
    points = [(config, ms) for config, ms in points if ms > 0 and math.isfinite(ms)]
    axes, rows, n_levels = _levels([config for config, _ in points])
    free = n_levels - len(axes)
    if not axes or len(points) < max(LEAST, 2 * (free + 1)):
        return None
    logs = [math.log(ms) for _, ms in points]
    mean = math.fsum(logs) / len(logs)
    values = [log - mean for log in logs]
    total = math.fsum(value * value for value in values)
    if total <= 1e-18 * len(values):
        return Importance(shares=dict.fromkeys(axes, 0.0), unexplained=0.0, candidates=len(points))
    levels = _least_squares(rows, values, n_levels)
    left = [value - sum(levels[level] for level in row) for row, value in zip(rows, values, strict=True)]
    noise = math.fsum(value * value for value in left) / (len(points) - free - 1)
    shares = {}
    for number, name in enumerate(axes):
        shared = math.fsum(levels[row[number]] * value for row, value in zip(rows, values, strict=True))
        own = len({row[number] for row in rows}) - 1
        shares[name] = round(max(0.0, (shared - own * noise) / total), 4)
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    rest = round(max(0.0, 1.0 - sum(shares.values())), 4)
    return Importance(shares=ordered, unexplained=rest, candidates=len(points))


def _levels(configs: Sequence[Config]) -> tuple[list[str], list[tuple[int, ...]], int]:
    """Return the axes that vary, each configuration's level on each, and how many levels there are.

    A level is a number for one value of one axis; a name that a configuration lacks is a value like others.
    """
    names = dict.fromkeys(name for config in configs for name in config)
    texts = {name: [_text(config, name) for config in configs] for name in names}
    axes = [name for name in names if len(set(texts[name])) > 1]
    numbers: dict[tuple[str, bytes], int] = {}
    for name in axes:
        for text in dict.fromkeys(texts[name]):
            numbers[name, text] = len(numbers)
    rows = [tuple(numbers[name, texts[name][i]] for name in axes) for i in range(len(configs))]
    return axes, rows, len(numbers)


def _text(config: Config, name: str) -> bytes:
    return msgspec.json.encode(config[name], order="deterministic") if name in config else b""


def _least_squares(rows: Sequence[tuple[int, ...]], values: Sequence[float], n_levels: int) -> list[float]:
    """Return the levels whose sums come nearest to `values`; of several such the smallest, which axes share evenly.

    Conjugate gradients on the normal equations, from zero (Björck, Numerical Methods for Least Squares Problems, 7.4).
    """

    def gathered(of: Sequence[float]) -> list[float]:
        found = [0.0] * n_levels
        for row, value in zip(rows, of, strict=True):
            for level in row:
                found[level] += value
        return found

    levels, rest = [0.0] * n_levels, list(values)
    slope = gathered(rest)
    way, size = slope, sum(s * s for s in slope)
    enough = size * TOLERANCE**2
    for _ in range(2 * n_levels):
        if size <= enough:
            break
        along = [sum(way[level] for level in row) for row in rows]
        step = size / sum(a * a for a in along)
        levels = [level + step * w for level, w in zip(levels, way, strict=True)]
        rest = [r - step * a for r, a in zip(rest, along, strict=True)]
        slope = gathered(rest)
        before, size = size, sum(s * s for s in slope)
        way = [s + size / before * w for s, w in zip(slope, way, strict=True)]
    return levels

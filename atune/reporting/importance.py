"""Importance of axes: the share of the log latency's variance that each axis explains by itself.

An additive model with a level for each value of each axis is fitted to the log latencies by least squares. The variance
that an axis explains is the covariance of the axis's levels with the latencies (Li and others, Global Sensitivity
Analysis for Systems with Independent and/or Correlated Inputs, J. Phys. Chem. A 114, 2010). If every combination of
values occurs equally often, the shares are the main effects of a functional analysis of variance (Hutter, Hoos and
Leyton-Brown, An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014). An axis explains a part of pure
noise by chance. This part is subtracted, so the sum of all shares is the adjusted R² (Ezekiel, 1929).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from atune.journal.result import Result
from atune.model.candidate import Config, key_of

LEAST_POINTS = 20
"""The smallest number of candidates for a fit. A fit also needs two candidates for each free level of the model."""
SWEEPS, CONVERGED = 100, 1e-5
"""The fit ends after `SWEEPS` sweeps, or when no log latency changes by more than `CONVERGED`."""
WORTH = 0.05
"""The smallest share that an axis needs to be named in a line of text."""
NAMED = 5
"""The largest number of axes that a line of text names."""


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the log latency's variance that the axes explain."""

    shares: dict[str, float]
    """The share of each axis, sorted from the largest share to the smallest. An axis with one value is left out."""
    unexplained: float
    """The share that no axis explains by itself, because it is due to combinations of axes, or to noise."""
    candidates: int
    """Number of latencies from which the shares are computed."""

    def describe(self) -> str:
        """Return a line such as ``block_M 61 %, num_stages 22 %; …``. Return an empty string if no axis stands out."""
        named = [(name, share) for name, share in self.shares.items() if share >= WORTH][:NAMED]
        basis = f"from {self.candidates:,} candidates"
        if not named:
            return ""
        text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in named)
        left = max(0.0, 1.0 - sum(share for _, share in named))
        return f"{text}; combinations, other axes and noise {100 * left:.0f} % ({basis})"


def axis_importance(result: Result) -> Importance | None:
    """Compute the importance of axes from first timings. Duplicates are included. None if there are too few timings."""
    known = {m.index: m.timing.latency_ms for m in result.measurements}
    return importance_of([(r.config, known[r.credited]) for r in result.records if r.credited in known])


def importance_of(points: Sequence[tuple[Config, float]]) -> Importance | None:
    """Compute the importance of axes from pairs of a configuration and its latency in ms. None for too few pairs."""
    names = dict.fromkeys(name for config, _ in points for name in config)
    texts = {name: [_text(config, name) for config, _ in points] for name in names}
    levels = {name: len(set(values)) - 1 for name, values in texts.items() if len(set(values)) > 1}
    free = sum(levels.values())
    if not levels or len(points) < max(LEAST_POINTS, 2 * (free + 1)):
        return None
    logs = [math.log(ms) for _, ms in points]
    mean = math.fsum(logs) / len(logs)
    centred = [log - mean for log in logs]
    total = math.fsum(value * value for value in centred)
    if total <= 1e-18 * len(centred):
        return Importance(shares=dict.fromkeys(levels, 0.0), unexplained=0.0, candidates=len(points))
    effects, left = _additive({name: texts[name] for name in levels}, centred)
    noise = math.fsum(value * value for value in left) / (len(points) - free - 1)
    shares = {}
    for name, of_axis in effects.items():
        shared = math.fsum(effect * value for effect, value in zip(of_axis, centred, strict=True))
        shares[name] = round(max(0.0, (shared - levels[name] * noise) / total), 4)
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    rest = round(max(0.0, 1.0 - sum(shares.values())), 4)
    return Importance(shares=ordered, unexplained=rest, candidates=len(points))


def _text(config: Config, name: str) -> bytes:
    """Return the text of an axis's value. If the configuration lacks the axis, the text is empty."""
    return key_of(config[name]) if name in config else b""


def _additive(
    axes: Mapping[str, Sequence[bytes]], values: Sequence[float]
) -> tuple[dict[str, list[float]], list[float]]:
    """Return a level for each value of each axis, and the residuals. The sums of levels approximate `values`.

    The method is backfitting (Breiman and Friedman 1985): axis by axis, the levels become the means of what the
    other axes leave unexplained.
    """
    effects, left = {name: [0.0] * len(values) for name in axes}, list(values)
    for _ in range(SWEEPS):
        before = left
        for name, texts in axes.items():
            left = [rest + effect for rest, effect in zip(left, effects[name], strict=True)]
            members: dict[bytes, list[float]] = {}
            for text, rest in zip(texts, left, strict=True):
                members.setdefault(text, []).append(rest)
            means = {text: math.fsum(group) / len(group) for text, group in members.items()}
            effects[name] = [means[text] for text in texts]
            left = [rest - effect for rest, effect in zip(left, effects[name], strict=True)]
        if max(abs(old - new) for old, new in zip(before, left, strict=True)) < CONVERGED:
            break
    return effects, left

"""Draws that spread over a space's axes, so that a few candidates show the effect of each axis."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence

LOOKED_AT = 32
"""Of this many drawn candidates, the one with the least used values is taken."""


def spread(
    places: Sequence[tuple[int, ...]], left: Sequence[int], before: Collection[int], count: int, rng: random.Random
) -> list[int]:
    """Draw `count` of the candidates `left`, with values that were seldom drawn: neither here nor `before`.

    `places`: each candidate's position on each axis. An axis counts by the logarithm of how many values it has.
    """
    sizes = [len(set(values)) for values in zip(*places, strict=True)]
    used = [Counter(places[candidate][axis] for candidate in before) for axis in range(len(sizes))]
    chosen = dict[int, None]()
    while len(chosen) < min(count, len(left)):
        looked_at = [c for c in rng.sample(left, min(len(left), LOOKED_AT + len(chosen))) if c not in chosen]
        best = min(
            looked_at,
            key=lambda c: sum(used[axis][place] * math.log(sizes[axis]) for axis, place in enumerate(places[c])),
        )
        chosen[best] = None
        for axis, place in enumerate(places[best]):
            used[axis][place] += 1
    return list(chosen)

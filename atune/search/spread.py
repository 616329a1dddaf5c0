"""Draws that spread: any beginning of them has each value of each axis about equally often, each candidate once.

| function | draws from | knows |
|---|---|---|
| `spread_order` | a list of candidates | nothing |
| `spread_more` | what is left of a list | what was taken before, which counts as drawn |

The first draws each axis in rounds, as in a Latin hypercube (McKay, Beckman and Conover, Technometrics 1979). A
round has each value once, in a new order. After n draws, each of an axis' L values has occurred n/L times, rounded.
Rounds may fail, because constraints refuse the point or it was taken before. Then a few candidates are drawn plainly,
and the one with the rarest values is taken.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

SPREAD = 4096
"""How many draws are spread. Later ones are plain, because that many cover all axes anyway."""
TRIES = 48
"""If a drawn point is no candidate, the one with the rarest values of this many others replaces it."""
TRIES_MORE = 32
"""The same for `spread_more`, and one more for each that it has drawn."""


def rounds(length: int, seed: str) -> Iterator[int]:
    """Yield positions on an axis, each once a round, in an order that `seed` decides."""
    number = 0
    while True:
        order = list(range(length))
        random.Random(f"{seed} {number}").shuffle(order)
        yield from order
        number += 1


def points(lengths: Sequence[int], seed: int) -> Iterator[tuple[int, ...]]:
    """Yield points of a grid, as digits, without an end; some may come twice."""
    axes = [rounds(length, f"{seed} axis {axis}") for axis, length in enumerate(lengths)]
    while True:
        yield tuple(next(axis) for axis in axes)


def spread_order(places: Sequence[tuple[int, ...]], lengths: Sequence[int], seed: int) -> Iterator[int]:
    """Yield the position of each of `places`, which are digits, once: first spread ones, then the others shuffled.

    Where a drawn point is none of them, because constraints refuse it, one of `TRIES` drawn ones takes its place.
    """
    rng = random.Random(seed)
    left = list(range(len(places)))
    rng.shuffle(left)
    at = {digits: position for position, digits in enumerate(places)}
    seen, values = set[int](), _Values(places, lengths)
    for digits, _ in zip(points(lengths, seed), range(min(SPREAD, len(places) // 4)), strict=False):
        found = at.get(digits)
        if found is None or found in seen:
            drawn = [left[rng.randrange(len(left))] for _ in range(TRIES)]
            found = values.rarest(position for position in drawn if position not in seen)
        if found is not None:
            seen.add(found)
            values.take(found)
            yield found
    yield from (position for position in left if position not in seen)


def spread_more(
    places: Sequence[tuple[int, ...]], left: Sequence[int], before: Collection[int], count: int, rng: random.Random
) -> list[int]:
    """Draw `count` of the positions `left`, with values that are rare among those `before` and those drawn here.

    `places`: each position's digits. An axis counts by the logarithm of how many values occur on it.
    """
    values = _Values(places, [math.log(len(set(axis))) for axis in zip(*places, strict=True)])
    for position in before:
        values.take(position)
    chosen = dict[int, None]()
    while len(chosen) < min(count, len(left)):
        drawn = rng.sample(left, min(len(left), TRIES_MORE + len(chosen)))
        if (best := values.rarest(position for position in drawn if position not in chosen)) is not None:
            chosen[best] = None
            values.take(best)
    return list(chosen)


class _Values:
    """How often each value of each axis was taken. `weights`: how much an axis counts."""

    def __init__(self, places: Sequence[tuple[int, ...]], weights: Sequence[float]) -> None:
        self._places, self._weights = places, weights
        self._counts: list[Counter[int]] = [Counter() for _ in weights]

    def take(self, position: int) -> None:
        for count, digit in zip(self._counts, self._places[position], strict=True):
            count[digit] += 1

    def rarest(self, positions: Iterator[int]) -> int | None:
        """Return which of `positions` has the values that were taken least; None for none."""
        return min(positions, key=self._met, default=None)

    def _met(self, position: int) -> float:
        place = self._places[position]
        return sum(c[digit] * w for c, digit, w in zip(self._counts, place, self._weights, strict=True))

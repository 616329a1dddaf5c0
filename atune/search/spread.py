"""Draws that spread: any beginning of them has each value of each axis about equally often.

Each axis is drawn in rounds, as in a Latin hypercube (McKay, Beckman and Conover, Technometrics 1979): a round has each
value once, in a new order. After n draws, each of an axis' L values has occurred n/L times, rounded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from atune.model.grid import Grid
from atune.model.permutation import Permutation

SPREAD = 4096
"""How many draws are spread. Later ones are plain, because that many cover all axes anyway."""
TRIES = 48
"""If a drawn point is no candidate, the one with the rarest values of this many others replaces it."""


def rounds(length: int, seed: str) -> Iterator[int]:
    """Yield positions on an axis, each once a round, in an order that `seed` decides."""
    number = 0
    while True:
        order = Permutation(length, random.Random(f"{seed} {number}").getrandbits(63))
        yield from (order[position] for position in range(length))
        number += 1


def points(lengths: Sequence[int], seed: int) -> Iterator[tuple[int, ...]]:
    """Yield points of a grid, as digits, without an end; some may come twice."""
    axes = [rounds(length, f"{seed} axis {axis}") for axis, length in enumerate(lengths)]
    while True:
        yield tuple(next(axis) for axis in axes)


def spread_places(grid: Grid, seed: int) -> Iterator[int]:
    """Yield each place of a grid once: first spread ones, then the others as a permutation. Few are remembered."""
    early = dict[int, None]()
    for digits, _ in zip(points(grid.lengths, seed), range(min(SPREAD, grid.size // 4)), strict=False):
        if (place := grid.place(digits)) not in early:
            early[place] = None
            yield place
    order = Permutation(grid.size, seed)
    yield from (place for place in map(order.__getitem__, range(grid.size)) if place not in early)


def spread_order(places: Sequence[tuple[int, ...]], lengths: Sequence[int], seed: int) -> Iterator[int]:
    """Yield the position of each of `places`, which are digits, once: first spread ones, then the others shuffled.

    Where a drawn point is none of them, because constraints refuse it, one of `TRIES` drawn ones takes its place.
    """
    rng = random.Random(seed)
    left = list(range(len(places)))
    rng.shuffle(left)
    at = {digits: position for position, digits in enumerate(places)}
    seen, counts = set[int](), [[0] * length for length in lengths]
    for digits, _ in zip(points(lengths, seed), range(min(SPREAD, len(places) // 4)), strict=False):
        found = at.get(digits)
        if found is None or found in seen:
            found = _rarest([left[rng.randrange(len(left))] for _ in range(TRIES)], seen, places, counts)
        if found is not None:
            seen.add(found)
            for axis, digit in enumerate(places[found]):
                counts[axis][digit] += 1
            yield found
    yield from (position for position in left if position not in seen)


def _rarest(
    drawn: Sequence[int], seen: set[int], places: Sequence[tuple[int, ...]], counts: Sequence[Sequence[int]]
) -> int | None:
    """Return which of the `drawn` positions has the values that occurred least, as shares of an axis' rounds."""

    def met(position: int) -> float:
        return sum(count[digit] * len(count) for count, digit in zip(counts, places[position], strict=True))

    return min((position for position in drawn if position not in seen), key=met, default=None)

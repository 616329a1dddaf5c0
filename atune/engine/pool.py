"""The pool: candidates of a large space that a prior ranks, and from which learning strategies begin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from atune.engine.proposals import LookUp, looked_up
from atune.model.candidate import Candidate
from atune.model.grid import grid_of
from atune.model.permutation import Permutation
from atune.search.choosing import ORDERS
from atune.search.spread import spread_places
from atune.workload.workload import WorkloadSpec

POOL = 2048
"""How many candidates to draw."""
LEAST = 64
"""The least number of candidates to learn from."""
AT_ONCE = 512
DRAWS = 16 * POOL
"""How many places to try at most, because constraints may refuse nearly all."""


async def drawn_pool(spec: WorkloadSpec, strategy: str, seed: int, look_up: LookUp) -> dict[int, Candidate] | None:
    """Draw candidates by `seed`, spread over the axes. Returns them by place; empty if the strategy needs none.

    Returns None if constraints refuse nearly all places.
    """
    if spec.size is None or not pools(strategy):
        return {}
    pool, places = dict[int, Candidate](), islice(_places(spec, seed), DRAWS)
    while len(pool) < POOL and (some := list(islice(places, AT_ONCE))):
        pool.update(await looked_up(some, look_up))
    return dict(islice(pool.items(), POOL)) if len(pool) >= LEAST else None


def pools(strategy: str) -> bool:
    """Tell whether a strategy searches a pool of a large space."""
    return strategy not in ORDERS


def _places(spec: WorkloadSpec, seed: int) -> Iterator[int]:
    grid = grid_of(spec.axes)
    if grid is not None:
        return spread_places(grid, seed)
    order = Permutation(spec.total, seed)
    return map(order.__getitem__, range(spec.total))

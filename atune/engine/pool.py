"""Candidates of a space that is too large to list, from which strategies that learn begin."""

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
"""Candidates that are drawn."""
LEAST = 64
"""Candidates from which something can be learnt."""
AT_ONCE = 512
DRAWS = 16 * POOL
"""Places that are looked at for them, at most: constraints may refuse nearly all."""


async def drawn_pool(spec: WorkloadSpec, strategy: str, seed: int, look_up: LookUp) -> dict[int, Candidate] | None:
    """Draw candidates that are spread over the axes, by place, as `seed` decides; none where no strategy needs them.

    None where constraints refuse nearly all places.
    """
    if spec.size is None or strategy in ORDERS:
        return {}
    pool, places = dict[int, Candidate](), islice(_places(spec, seed), DRAWS)
    while len(pool) < POOL and (some := list(islice(places, AT_ONCE))):
        pool.update(await looked_up(some, look_up))
    return dict(islice(pool.items(), POOL)) if len(pool) >= LEAST else None


def _places(spec: WorkloadSpec, seed: int) -> Iterator[int]:
    grid = grid_of(spec.axes)
    if grid is not None:
        return spread_places(grid, seed)
    order = Permutation(spec.total, seed)
    return map(order.__getitem__, range(spec.total))

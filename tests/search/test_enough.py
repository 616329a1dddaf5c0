"""When enough is tried: once a whole batch brought nothing that is 2 % faster."""

from __future__ import annotations

import pytest

from atune.engine.strategy import Enough, FixedOrder, Guarded
from atune.model.settings import AUTO_BATCH, AUTO_GAIN_PERCENT

BETTER = 1 - AUTO_GAIN_PERCENT / 100
"""Share of the best time that something must take less of to count as better."""


def tried(latencies: list[float | None]) -> int:
    """Return after how many candidates, of which each takes as long as `latencies` says, enough is tried."""
    enough, told = Enough(), 0
    guarded = Guarded(FixedOrder("given", range(len(latencies))), range(len(latencies)), enough=enough)
    while not enough.reached:
        batch: list[int] = []
        while not guarded.full(len(batch), workers=16) and (index := guarded.ask()) is not None:
            batch.append(index)
        if not batch:
            break
        for index in reversed(batch):
            guarded.tell(index, latencies[index])
            guarded.tell(index, latencies[index])  # an outcome that comes again ends no batch
        told += len(batch)
    assert guarded.ask() is None
    return told


@pytest.mark.parametrize(
    ("later", "batches"),
    [
        ([1.0] * 40, 2),
        ([1.0] * 7 + [BETTER * 0.999] + [1.0] * 32, 3),
        ([1.0] * 7 + [BETTER * 1.001] + [1.0] * 32, 2),
        ([0.9**n for n in range(40)], 6),  # up to the end
        ([None] * 40, 2),
    ],
    ids=["nothing better", "2 % better", "less than 2 % better", "ever better", "failures"],
)
def test_it_goes_on_while_a_batch_brings_2_percent(later: list[float | None], batches: int) -> None:
    assert tried([1.0] * AUTO_BATCH + later) == batches * AUTO_BATCH


def test_where_nothing_works_it_is_never_enough() -> None:
    assert tried([None] * 40) == 40

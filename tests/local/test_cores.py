"""The cores of runs that take place on one machine at once."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import anyio
import pytest

from atune.frontends.tuner import tune
from atune.journal.reader import replay
from atune.workers.compile_worker import COMPILE_NICE
from atune.workers.resources import usable_cores

pytestmark = pytest.mark.anyio
FILE = Path(__file__).parents[1] / "core_kernels.py"


async def test_compile_workers_of_two_runs_share_all_cores_and_give_way_to_what_is_measured(tmp_path: Path) -> None:
    """All kernels are timed on one core. By niceness alone the compile workers leave it to them."""
    journals = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    async with anyio.create_task_group() as tasks:
        for journal in journals:
            tasks.start_soon(partial(tune, str(FILE), target="c", cached=False, journal=journal))
    cores, nice = sorted(os.sched_getaffinity(0)), os.nice(0)
    everywhere = f"lowered on {' '.join(map(str, cores))} nice {min(nice + COMPILE_NICE, 19)}"
    for journal in journals:
        [record] = replay(journal).records
        assert record.printed.splitlines() == [everywhere, f"measured on {usable_cores()[-1]} nice {nice}"]

"""Registers that a block waits for with setmaxnreg, read off its source."""

from __future__ import annotations

from pathlib import Path

import msgspec
from stage_runs import session_of

from atune.engine.prior import why_never
from atune.model.device import DeviceLimits
from atune.stages.codegen import Blob
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef


def test_a_product_that_never_returns_is_pruned_once_it_is_lowered(tmp_path: Path) -> None:
    """On an H200 it hung with an occupancy of two blocks, and took 0.4 s the first time with one."""
    with session_of(FileRef(str(Path(__file__).parents[2] / "work_kernels.py"), "CROWDED"), tmp_path) as candidates:
        lowered = [lower(candidate) for candidate in candidates]
    sources = [msgspec.msgpack.decode(each.blob, type=Blob).source for each in lowered]
    assert all(f"__launch_bounds__(256, {blocks})" in source for blocks, source in enumerate(sources, 1))
    one, two = (each.facts for each in lowered)
    assert (one.threads, one.lacking_registers) == (256, 0) and why_never(one, DeviceLimits()) == ""
    assert two.lacking_registers == 128 * (240 + 24 - 256)
    reason = why_never(two, DeviceLimits())
    assert reason.startswith("setmaxnreg: a block waits for 1024 registers more")

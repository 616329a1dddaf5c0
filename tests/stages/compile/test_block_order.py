"""Kernels that differ only in the order of their blocks are lowered once in a row, and have the code of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from stage_runs import session_of

from atune.model.artifact import Lowered
from atune.stages import lowering, tilelang
from atune.stages.codegen import Blob
from atune.workload.pickling import FileRef

KERNELS = str(Path(__file__).parents[2] / "work_kernels.py")


def facts_of(one: Lowered) -> Lowered:
    """Return a lowered kernel without its seconds, and with its source in place of its trees."""
    blob = msgspec.msgpack.decode(one.blob, type=Blob)
    return msgspec.structs.replace(one, seconds=0.0, blob=blob.source.encode())


def test_another_order_of_blocks_is_not_lowered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowers, count = tilelang.lower_to_host_device_ir, list[int]()

    def counted(*arguments: Any) -> Any:
        count.append(1)
        return lowers(*arguments)

    monkeypatch.setattr(tilelang, "lower_to_host_device_ir", counted, raising=False)
    with session_of(FileRef(KERNELS, "ORDERS"), tmp_path) as candidates:
        in_a_row, alone = list[Lowered](), list[Lowered]()
        for candidate in candidates:
            in_a_row.append(lowering.lower(candidate))
        lowered = len(count)
        for candidate in candidates:
            lowering._last.clear()
            alone.append(lowering.lower(candidate))
    stages = {candidate.config["num_stages"] for candidate in candidates}
    assert [*map(facts_of, in_a_row)] == [*map(facts_of, alone)] and len({one.code_key for one in alone}) == len(
        candidates
    )
    assert lowered == len(stages) and len(count) - lowered == len(candidates)


def test_an_order_in_another_place_is_lowered(tmp_path: Path) -> None:
    with session_of(FileRef(KERNELS, "PLACES"), tmp_path) as candidates:
        in_a_row = [lowering.lower(candidate) for candidate in candidates]
        lowering._last.clear()
        assert facts_of(in_a_row[1]) == facts_of(lowering.lower(candidates[1]))

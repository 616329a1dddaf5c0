"""A block's work, as lowering finds it: counted by hand, and unknown where only a call or a thread decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest
from stage_runs import session_of

from atune.engine.prior import exceeded_limit
from atune.model.artifact import Access, BlockWork, Gemm, StaticFacts
from atune.model.device import DeviceLimits
from atune.stages.codegen import Blob
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef

KERNELS = Path(__file__).parents[2] / "work_kernels.py"
FLOAT32, FLOAT16 = 4, 2


Lowering = Callable[[str], list[StaticFacts]]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowering:
    """The facts of a workload's candidates, each lowered once."""

    @cache
    def facts(name: str) -> list[StaticFacts]:
        with session_of(FileRef(str(KERNELS), name), tmp_path_factory.mktemp("run")) as candidates:
            return [lower(candidate).facts for candidate in candidates]

    return facts


def work(facts: list[StaticFacts]) -> list[BlockWork]:
    found = [one.work for one in facts if one.work is not None]
    assert len(found) == len(facts)
    return found


def test_a_product_has_the_work_that_is_counted_by_hand(lowered: Lowering) -> None:
    one = lowered("PRODUCT")[0]
    assert one.work is not None and one.grid == (3, 4, 1)
    assert one.work.gemms == (Gemm(m=64, n=128, k=32, calls=16.0, dtype="float16"),)
    assert one.work.tensor_flops * 12 == 2 * 256 * 384 * 512  # of all blocks: tiles divide the problem
    a, b = one.work.reads
    assert a == Access(n_bytes=64 * 512 * FLOAT16, axes="y", steps=16.0, tensor_bytes=256 * 512 * FLOAT16)
    assert b == Access(n_bytes=512 * 128 * FLOAT16, axes="x", steps=16.0, tensor_bytes=512 * 384 * FLOAT16)
    assert one.work.writes == (Access(n_bytes=64 * 128 * FLOAT32, axes="xy", tensor_bytes=256 * 384 * FLOAT32),)
    assert one.work.read_bytes == 512 * (64 + 128) * FLOAT16 and one.work.write_bytes == 64 * 128 * FLOAT32
    assert one.work.shared_bytes == one.work.read_bytes
    assert one.work.fragment_registers == 64 * 128 // 128 == one.accumulators
    assert one.work.steps == 16 and one.work.threads == 128
    assert one.work.tensor_bytes == (256 * 512 + 512 * 384) * FLOAT16 + 256 * 384 * FLOAT32


def test_stages_and_block_orders_differ(lowered: Lowering) -> None:
    plain, ordered, staged, both = work(lowered("PRODUCT"))
    assert (plain.stages, staged.stages) == (0, 3)
    assert (plain.block_order, ordered.block_order) == ("", "rasterization2DRow 4")
    assert msgspec.structs.replace(both, stages=0, block_order="") == plain


def test_a_kernel_that_moves_has_its_bytes_and_their_width(lowered: Lowering) -> None:
    narrow, wide = work(lowered("MOVED"))
    x, w = wide.reads
    assert x == Access(n_bytes=4 * 384 * FLOAT32, axes="x", width=4 * FLOAT32, tensor_bytes=256 * 384 * FLOAT32)
    assert w == Access(n_bytes=384 * FLOAT32, axes="", width=4 * FLOAT32, tensor_bytes=384 * FLOAT32), (
        "the rows of a block share it"
    )
    assert wide.writes == (
        Access(n_bytes=4 * 384 * FLOAT16, axes="x", width=4 * FLOAT16, tensor_bytes=256 * 384 * FLOAT16),
    )
    assert narrow.reads[0].width == 2 * FLOAT32
    assert wide.gemms == () and wide.tensor_flops == 0 and wide.stages == 0
    assert wide.scalar_ops >= 2 * 4 * 384 and wide.special_ops == 0


def test_columns_of_a_tile_cost_the_turns_of_the_banks(lowered: Lowering) -> None:
    tile, word = 64 * 64 * FLOAT16, 2  # what each element takes of a bank, in elements
    costs = [one.shared_bytes / tile - 1 for one in work(lowered("TURNED"))]  # rows are moved without a conflict
    assert costs == [32 * word, 1 * word, 4 * word]  # rows 32, 33 and 36 words apart


def test_a_grouped_product_is_read_though_a_tensor_says_where_groups_end(lowered: Lowering) -> None:
    (one,) = work(lowered("GROUPED"))
    assert [gemm.calls for gemm in one.gemms] == [512 / 64]
    x, w = (access for access in one.reads if access.tensor_bytes != 2 * 4)
    assert (x.axes, w.axes) == ("x", "xy"), "the group depends on the block"
    assert one.write_bytes == 64 * 64 * FLOAT16, "whole tiles"
    (thirds,) = work(lowered("THIRDS"))
    assert [access.uneven for access in thirds.reads if access.steps == 8] == [False, True]


def test_fragments_take_registers_as_long_as_they_are_needed_and_threads_wait_for_each_other(lowered: Lowering) -> None:
    found = work(lowered("SUMMED"))
    assert [one.fragment_registers for one in found] == [8, 4, 1]  # the row, and its squares or the scaled row
    assert [one.exchanges for one in found] == [5, 6, 7]  # 128 values are shared by 32, 64 and 128 threads


def test_loops_that_depend_on_the_block_count_with_their_average(lowered: Lowering) -> None:
    all_write, half_write = work(lowered("TRIANGLE"))
    tiles = sum(range(1, 9)) / 8
    assert all_write.read_bytes == tiles * 128 * FLOAT32 and all_write.reads[0].steps == tiles
    assert all_write.write_bytes == 128 * FLOAT32
    assert half_write.write_bytes == 128 * FLOAT32 / 2


def test_where_a_call_decides_how_many_blocks_there_are_one_block_is_known(lowered: Lowering) -> None:
    facts = lowered("ANY_ROWS")[0]
    assert facts.grid == () and facts.work is not None
    assert facts.work.read_bytes == facts.work.write_bytes == 64 * 384 * FLOAT32
    assert facts.work.tensor_bytes is None


@pytest.mark.parametrize("name", ["ANY_LENGTH", "BY_THREAD", "BY_VALUE"])
def test_work_that_a_call_a_thread_or_a_value_decides_is_not_known(name: str, lowered: Lowering) -> None:
    facts = lowered(name)[0]
    assert facts.work is None and facts.threads == 128


def test_a_kernel_that_is_not_understood_is_lowered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("atune.stages.work.region", lambda node: node.no_such_field)
    with session_of(FileRef(str(KERNELS), "ANY_ROWS"), tmp_path) as candidates:
        facts = lower(candidates[0]).facts
    assert facts.work is None and facts.threads == 128


def test_a_product_that_never_returns_is_pruned_once_it_is_lowered(tmp_path: Path) -> None:
    """On an H200 it hung with an occupancy of two blocks, and took 0.4 s the first time with one."""
    with session_of(FileRef(str(KERNELS), "CROWDED"), tmp_path) as candidates:
        lowered = [lower(candidate) for candidate in candidates]
    sources = [msgspec.msgpack.decode(each.blob, type=Blob).source for each in lowered]
    assert all(f"__launch_bounds__(256, {blocks})" in source for blocks, source in enumerate(sources, 1))
    one, two = (each.facts for each in lowered)
    assert (one.threads, one.lacking_registers) == (256, 0) and exceeded_limit(one, DeviceLimits()) == ""
    assert two.lacking_registers == 128 * (240 + 24 - 256)
    reason = exceeded_limit(two, DeviceLimits())
    assert reason.startswith("setmaxnreg: a block would wait forever for 1024 registers")

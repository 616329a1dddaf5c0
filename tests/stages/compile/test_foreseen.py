"""What is foreseen of a kernel from its elaboration is what lowering finds."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from stage_runs import session_of

from atune.engine.prior import can_run, divisions, grouped, split
from atune.model.artifact import Gemm, StaticFacts
from atune.model.device import Target, figures_of
from atune.stages.codegen import backend_context
from atune.stages.facts import foreseen
from atune.stages.frontend import elaborated
from atune.stages.lowering import lower
from atune.stages.session import workload
from atune.workload.pickling import FileRef

TESTS = Path(__file__).parents[2]
GEMM = TESTS.parent / "examples" / "gemm.py"
SPACES = TESTS.parent / "bench" / "spaces"


def both(ref: FileRef, folder: Path, chosen: slice) -> list[tuple[StaticFacts, StaticFacts]]:
    """Return, of some candidates, what is foreseen and what lowering finds, without the source's length."""
    found = []
    with session_of(ref, folder) as candidates:
        work = workload()
        for candidate in candidates[chosen]:
            function = elaborated(work.kernel, work.arguments, candidate.config, backend_context().target)
            after = lower(candidate).facts
            found.append(
                (foreseen(function, "sm_90a"), msgspec.structs.replace(after, source_bytes=None, layouts=None))
            )
    return found


@pytest.mark.parametrize("name", ["PRODUCT", "MOVED", "TRIANGLE", "BY_VALUE", "GUARDED"])
def test_what_is_foreseen_of_small_kernels_is_what_lowering_finds(name: str, tmp_path: Path) -> None:
    for guess, after in both(FileRef(str(TESTS / "work_kernels.py"), name), tmp_path, slice(None)):
        if guess.accumulators == 0:  # it has no fragments; what its loops are lowered to may hold something
            after = msgspec.structs.replace(after, accumulators=0)
        assert guess == after


@pytest.mark.parametrize(
    ("file", "name", "chosen"),
    [
        (GEMM, "WORKLOAD", slice(0, None, 94)),
        (SPACES / "gemms.py", "UNALIGNED", slice(3, None, 430)),
        (SPACES / "attentions.py", "CAUSAL", slice(5, None, 115)),
    ],
)
def test_what_is_foreseen_of_products_and_attention_is_what_lowering_finds(
    file: Path, name: str, chosen: slice, tmp_path: Path
) -> None:
    """Stages and the buffers that share memory, producers where loads are in bulk, fragments of several types."""
    found = both(FileRef(str(file), name), tmp_path, chosen)
    assert found
    for guess, after in found:
        assert guess == after


def test_without_warp_specialisation_there_are_no_producers(tmp_path: Path) -> None:
    with session_of(FileRef(str(GEMM), "WORKLOAD"), tmp_path, Target("cuda", "sm_80")) as candidates:
        staged = next(one for one in candidates if one.config["num_stages"] == 3)
        work = workload()
        function = elaborated(work.kernel, work.arguments, staged.config, backend_context().target)
        after = lower(staged).facts
    assert foreseen(function, "sm_80").threads == after.threads == staged.config["threads"]
    assert foreseen(function, "sm_90a").threads == staged.config["threads"] + 128


def test_what_is_not_understood_has_no_facts() -> None:
    assert foreseen(object(), "sm_90a") == StaticFacts()


@pytest.mark.skipif(version("tilelang") == "0.1.14", reason="the rule is that of tilelang 0.1.15")
@pytest.mark.parametrize("threads", [64, 128, 192, 256, 384])
def test_warps_divide_products_as_tilelang_has_them_do(threads: int) -> None:
    from atune.stages.tilelang import tvm

    target, figures = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}), figures_of(None, "sm_90a")
    assert figures is not None
    for m, n, policy in itertools.product((16, 64, 96, 128, 192), (8, 24, 96, 128, 160), (0, 1, 2)):
        gemm = Gemm(m=m, n=n, k=64, calls=1.0, dtype="bfloat16", policy=policy)
        by_group = grouped(gemm, threads, figures)
        node = tvm.ir.make_node("tl.GemmWarpPolicy", policy_type=policy, m_warp=0, n_warp=0)
        try:
            rows, columns = node.compute_warp_partition(m, n, threads, target, f"cuda.{'wg' if by_group else ''}mma")
        except tvm.error.InternalError:
            assert divisions(gemm, threads, figures) == []
            continue
        found = (rows // 4 if by_group else rows, columns)
        assert found == split(gemm, threads, figures) if policy else found in divisions(gemm, threads, figures)


def test_products_in_a_chain_fail_to_lower_where_warps_share_rows_or_groups_have_several_tiles(tmp_path: Path) -> None:
    figures = figures_of(None, "sm_90a")
    assert figures is not None
    found = {}
    with session_of(FileRef(str(TESTS / "work_kernels.py"), "CHAINED"), tmp_path) as candidates:
        work = workload()
        for one in candidates:
            function = elaborated(work.kernel, work.arguments, one.config, backend_context().target)
            runs = can_run(foreseen(function, "sm_90a"), figures)
            found[one.config["block_M"], one.config["threads"]] = runs
            with nullcontext() if runs else pytest.raises(Exception, match="Layout infer conflict"):
                lower(one)
    one_group, two_groups = {64: True, 128: True, 256: True}, {64: False, 128: True, 256: False}
    of_both = ((128, one_group), (256, two_groups))
    assert found == {(rows, threads): runs for threads, of in of_both for rows, runs in of.items()}

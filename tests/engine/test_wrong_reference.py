"""A run in which the default and the first candidates all differ from the reference ends, and says where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tilelang.language as T
from fake_runs import finish

from atune.errors import NoWinner
from atune.frontends.api.resume import resume
from atune.frontends.api.tuner import tune
from atune.journal.reader import replay
from atune.model.artifact import ALIKE
from atune.model.candidate import BASELINE
from atune.model.space import Space
from atune.testing import FakeMachine, Script
from atune.workload.workload import Workload

pytestmark = pytest.mark.anyio
TOTAL, DEVICES = 60, 2
MANY = range(BASELINE, TOTAL)


def machine(default: Any = 0, **fails: Any) -> FakeMachine:
    """Return a machine on which all give wrong outputs, but for what `fails` has: an index, or None for none."""
    wrong = dict.fromkeys(MANY, "mismatch") | {int(name[1:]): kind for name, kind in fails.items()}
    script = Script(fails={index: kind for index, kind in wrong.items() if kind})
    return FakeMachine(TOTAL, script, default=default, devices=DEVICES)


async def test_a_wrong_reference_ends_the_run_and_resuming_tries_the_others(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    with pytest.raises(NoWinner) as caught:
        await tune(machine=machine(), journal=journal)
    told = str(caught.value).splitlines()
    assert "look at the reference first" in told[2] and f"atune resume {journal}" in told[3], "before the example"
    for result in (caught.value.result, replay(journal)):
        assert result.reason == "mismatched" and ALIKE <= result.failed < ALIKE + DEVICES
    with pytest.raises(NoWinner) as caught:
        await resume(journal, machine=machine())
    assert (caught.value.result.failed, caught.value.result.reason) == (TOTAL, "exhausted")


async def test_a_part_that_was_cut_short_counts(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    with pytest.raises(NoWinner):
        await tune(machine=machine(), journal=whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[: len(lines) // 2]))
    before = replay(part).failed
    with pytest.raises(NoWinner) as caught:
        await resume(part, machine=machine())
    assert 0 < before < ALIKE <= caught.value.result.failed < ALIKE + DEVICES


@pytest.mark.parametrize(
    ("fake", "failed"),
    [
        (machine(default={"x": 1000}), ALIKE),
        (machine(default=None), TOTAL),
        (machine(c0="compile"), TOTAL),
        (machine(c5="launch"), TOTAL),
        (machine(c5="compile", c6="lower"), ALIKE + 2),
        (machine(c5=None), TOTAL - 1),
    ],
    ids=["of a baseline", "no default", "the default did not run", "one failed otherwise", "some never ran", "one ran"],
)
async def test_only_where_the_default_and_all_that_ran_differ(fake: FakeMachine, failed: int) -> None:
    try:
        result: Any = (await finish(fake)).result
    except NoWinner as error:
        result = error.result
    assert failed <= result.failed < (failed + DEVICES if failed < TOTAL - 1 else TOTAL + 1)
    assert (result.reason == "mismatched") == (failed < TOTAL - 1)


def doubled(n: int, rows: int = 4, columns: int = 4) -> Any:
    """B = 2 A, of n × n."""

    @T.prim_func
    def main(A: T.Tensor((n, n), "float32"), B: T.Tensor((n, n), "float32")):
        with T.Kernel(n // columns, n // rows) as (bx, by):
            for i, j in T.grid(rows, columns):
                B[by * rows + i, bx * columns + j] = A[by * rows + i, bx * columns + j] * 2

    return main


async def test_a_transposed_reference_ends_a_run_on_the_cpu() -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 24]
    space = Space(rows=sizes, columns=sizes)
    workload = Workload(doubled, space, arguments={"n": 24}, reference=lambda A: 2 * A.T)
    with pytest.raises(NoWinner, match=r"gave wrong outputs: output 0: .* elements differ") as caught:
        await tune(workload, target="c")
    assert caught.value.result.reason == "mismatched" and caught.value.result.failed == ALIKE

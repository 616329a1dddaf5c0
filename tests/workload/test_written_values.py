"""A kernel gets the values that the user wrote, on every door; keys and journals have their plain form."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tilelang
import torch
import value_kernels as kernels
from value_kernels import FACTORS, Order, Tile

import atune
from atune.compat.tilelang import autotune
from atune.errors import SpaceError
from atune.model.candidate import written_like
from atune.model.settings import BenchmarkSettings

FEW = BenchmarkSettings(n_warmup=1, n_repeat=2, n_final=1, n_final_rounds=2)
ONES = torch.ones(128)


def factor_of(kernel: Any) -> float:
    out = torch.full((128,), 7.0)
    kernel(ONES, out)
    return out[0].item()


def same(one: float, other: float) -> bool:
    return one == other and math.copysign(1, one) == math.copysign(1, other)


@pytest.mark.parametrize("kind", FACTORS)
def test_the_kernel_gets_what_was_written(kind: str, tmp_path: Path) -> None:
    """Compiled alone, under the decorator and in the drop-in; axes, lists and functions alike."""
    kernel, axis, values, factors = FACTORS[kind]
    jit = tilelang.jit(kernel)
    for made in (kernel, jit):
        for space in ([{axis: value} for value in values], lambda: [{axis: value} for value in values]):
            found = atune.compile_all(made, space, arguments={"N": 128}, out_idx=[], target="c")
            assert [same(factor_of(one), factor) for one, factor in zip(found, factors, strict=True)] == [True, True]
    for value, factor in zip(values, factors, strict=True):
        tuned = atune.autotune(jit, space={axis: [value]}, default={axis: value}, target="c", cache=tmp_path)
        assert same(factor_of(tuned(128)), factor)
        config = tuned.best_config(128)[axis]
        assert (type(config), config) == (type(value), value) or kind == "dtype"
        dropped = autotune(configs=[{axis: value}])(tilelang.jit(kernel, target="c"))
        assert same(factor_of(dropped(128)), factor)


def test_arguments_are_what_was_written_too(tmp_path: Path) -> None:
    """One that has the same plain form is another call: with another kernel, in memory and in the cache."""
    for cache in (tmp_path, tmp_path, False):
        tuned = atune.autotune(tilelang.jit(kernels.by_argument), space={"block": [64]}, target="c", cache=cache)
        dropped = autotune(configs=[{"block": 64}])(tilelang.jit(kernels.by_argument, target="c"))
        for call in (tuned, dropped):
            assert [factor_of(call(128, order)) for order in (1, Order.BACKWARD, 1, True, Order.FORWARD)] == [
                2, 3, 2, 2, 2,
            ]  # fmt: skip
    assert len(atune.tunings()) >= 3 and all(
        "order" in one.key for one in atune.tunings() if one.kernel == "by_argument"
    )


def test_zeros_of_either_sign_are_calls_of_their_own() -> None:
    for made in (kernels.by_zero, tilelang.jit(kernels.by_zero)):
        tuned = atune.autotune(made, space=[{}], target="c", cache=False)
        assert all(same(factor_of(tuned(128, value)), value) for value in (0.0, -0.0, 0.0))
    work = atune.Workload(kernels.by_zero, [{}], arguments={"N": 128, "value": 0.0})
    assert str(work.at({"value": -0.0}).arguments["value"]) == "-0.0" and work.at({"value": 0.0}) is work


def test_a_journal_has_the_plain_form_and_is_resumed_with_what_was_written(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    result = atune.run(kernels.ORDERS, target="c", budget=1, benchmark=FEW, journal=journal, progress=False)
    assert '"config":{"order":0}' in journal.read_text() and "FORWARD" not in journal.read_text()
    resumed = atune.run_resume(journal, kernels.ORDERS, budget=2, progress=False)
    assert result.measured == 1 and [one.status for one in resumed.records] == ["measured", "measured"]


@pytest.mark.parametrize("name", ["BACKWARD", "COMPUTED", "ARGUMENT"])
def test_a_file_s_workload_and_its_bundle_have_what_was_written(name: str, tmp_path: Path) -> None:
    result = atune.run(f"{kernels.__file__}:{name}", target="c", benchmark=FEW, progress=False)
    assert factor_of(result.kernel) == 3
    result.save_bundle(tmp_path / "bundle")
    assert factor_of(atune.bundle.load(tmp_path / "bundle")) == 3


CACHED = """
import sys, torch, tilelang, atune, value_kernels as kernels
tuned = atune.autotune(tilelang.jit(kernels.by_order), space={"order": [kernels.Order.BACKWARD]}, target="c",
                       default={"order": kernels.Order.BACKWARD}, cache=sys.argv[1], on_miss=sys.argv[2])
out = torch.zeros(128)
tuned(128)(torch.ones(128), out)
print(out[0].item(), atune.tunings()[0].source, tuned.best_config(128)["order"] is kernels.Order.BACKWARD)
"""


def test_a_winner_from_the_cache_is_what_was_written(tmp_path: Path) -> None:
    """In another program, with the library that was measured, and without it."""
    for on_miss, source in (("tune", "tuned"), ("error", "cache"), ("error", "cache")):
        command = [sys.executable, "-c", CACHED, str(tmp_path), on_miss]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(kernels.__file__).parent, check=True)
        assert done.stdout.split() == ["3.0", source, "True"]
        for library in tmp_path.parent.rglob("*.so") if source == "cache" else ():
            library.unlink()


class Other(enum.IntEnum):
    FIRST = 0


@pytest.mark.parametrize(
    "values", [[Order.FORWARD, 0], [Order.FORWARD, Other.FIRST], [Tile(1, 2), (1, 2)], [[1], (1,)]]
)
def test_what_has_one_plain_form_is_refused_when_the_space_is_made(values: list[Any]) -> None:
    for make in (lambda: atune.Space(order=values), lambda: atune.Space([{"order": value} for value in values])):
        with pytest.raises(SpaceError, match=r"Space: .* are both .* in a journal"):
            make()


def test_a_list_of_configurations_is_copied() -> None:
    inner, configs = [4, 8], [{"tile": [4, 8]}]
    configs[0]["tile"] = inner
    spaces = atune.Space(configs), atune.Space(tile=[inner])
    inner.append(1)
    configs.append({"tile": [1]})
    for space in spaces:
        assert list(space.points({}).walk()) == [{"tile": (4, 8)}] and [*space.points({}).given()] == [{"tile": [4, 8]}]


def test_another_problem_is_written_like_the_first() -> None:
    """A journal and a set have plain values; the kernel gets lists, named tuples and members all the same."""
    own = {"shape": [4, 64], "tile": Tile(4, 8), "order": Order.FORWARD, "n": 3}
    found = written_like(own, {"shape": (8, 64), "tile": (8, 4), "order": 1, "n": 5}, {})
    assert found == {"shape": [8, 64], "tile": Tile(8, 4), "order": Order.BACKWARD, "n": 5}
    assert [type(value) for value in found.values()] == [type(value) for value in own.values()]
    assert written_like(own, {**own, "shape": (1, 2)}, {"shape": [1, 2]})["shape"] == [1, 2]

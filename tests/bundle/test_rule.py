"""A bundle's dispatch rule: what it serves, and where it ends."""

from __future__ import annotations

import itertools
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import TWO, entry, write

from atune.bundle import DamagedBundle, OutsideProblems, WrongArguments, load
from atune.bundle.arguments import distance
from atune.model import problem as tuned

NEAREST = {"others": {}, "sizes": {"n": [64, 1024]}, "root": {"problems": [0, 1]}}
TREE = {**NEAREST, "root": {"size": "n", "most": 900.0, "small": {"problems": [0]}, "large": {"problems": [1]}}}


def runs(found: Any, n: int, **named: Any) -> str:
    return {2.0: "twice", 10.0: "tenfold"}[float(found(torch.ones(n), **named)[0])]


@pytest.mark.parametrize(
    ("rule", "n", "kernel"),
    [
        (NEAREST, 65, "twice"), (NEAREST, 256, "twice"), (NEAREST, 257, "tenfold"),
        (TREE, 900, "twice"), (TREE, 901, "tenfold"),
    ],
)  # fmt: skip
def test_between_the_problems_the_rule_picks_without_a_warning(rule: Any, n: int, kernel: str, tmp_path: Path) -> None:
    found = load(write(tmp_path, rule=[rule]))
    with warnings.catch_warnings(action="error"):
        assert runs(found, n) == runs(found, n) == kernel
    used = {"n": 64 if kernel == "twice" else 1024}
    assert found.misses() == [{"shapes": [[n]], "problem": {"n": n}, "used": used, "by": "rule", "count": 2}]


def test_beyond_the_problems_on_miss_decides(tmp_path: Path) -> None:
    write(tmp_path, rule=[TREE])
    found = load(tmp_path)
    for n in (63, 1025):
        with pytest.raises(OutsideProblems, match=rf"no problem has n={n}; .*, and the call is outside of its rule$"):
            found(torch.ones(n))
    found = load(tmp_path, on_miss="default")
    with pytest.warns(RuntimeWarning, match="the kernel of n=64 runs"):
        assert runs(found, 1025) == "twice"
    assert runs(found, 950) == "tenfold" and [miss["by"] for miss in found.misses()] == ["default", "rule"]


def test_a_rule_is_for_problems_that_are_otherwise_equal(tmp_path: Path) -> None:
    problems = [entry("twice", {"n": n, "far": False}) for n in (64, 1024)]
    problems += [entry("tenfold", {"n": n, "far": True}) for n in (64, 1024)]
    rule = {"others": {"far": True}, "sizes": {"n": [64, 1024]}, "root": {"problems": [2, 3]}}
    found = load(write(tmp_path, problems, rule=[rule]))
    assert runs(found, 100, far=True) == "tenfold"
    with pytest.raises(OutsideProblems, match="no problem has n=100, far=False"):
        found(torch.ones(100), far=False)


@pytest.mark.parametrize("on_miss", ["error", "nearest", "default"])
def test_between_the_problems_too_what_else_tells_them_apart_must_be_named(on_miss: Any, tmp_path: Path) -> None:
    """Else a kernel of another `far` would run, and return other values."""
    problems = [
        entry(symbol, {"n": n, "far": symbol == "tenfold"}) for symbol in ("twice", "tenfold") for n in (64, 1024)
    ]
    roots = {False: [0, 1], True: [2, 3]}
    rules = [{**NEAREST, "others": {"far": far}, "root": {"problems": root}} for far, root in roots.items()]
    found = load(write(tmp_path, problems, rule=rules), on_miss=on_miss)
    for n in (100, 2000):
        with pytest.raises(WrongArguments, match="4 problems take these tensors: give far=False or far=True, by name"):
            found(torch.ones(n))
    assert runs(found, 100, far=True) == "tenfold" and [miss["count"] for miss in found.misses()] == [1]
    if on_miss != "error":  # nor does another `far` run beyond them
        with pytest.warns(RuntimeWarning, match=r"the kernel of n=\d+, far=True runs"):
            assert runs(found, 2000, far=True) == "tenfold"


def test_a_size_that_is_text_is_outside_of_the_rule(tmp_path: Path) -> None:
    problems = [entry("twice", {"n": 64, "groups": groups}) for groups in (2, 8)]
    rule = {"others": {}, "sizes": {"n": [64, 64], "groups": [2, 8]}, "root": {"problems": [0, 1]}}
    with pytest.raises(OutsideProblems, match="no problem has n=64, groups=4"):
        load(write(tmp_path, problems, rule=[rule]))(torch.ones(64), groups="4")


def test_a_rule_chooses_among_kernels_that_take_the_call(tmp_path: Path) -> None:
    """Of two widths, each with symbolic rows."""
    problems = []
    for symbol, width in (("twice", 4), ("tenfold", 8)):
        rows = {"dtype": "float32", "shape": ["n", width], "strides": None}
        params = {"params": [rows, rows], "calls": [0, 1, "n"]}
        problems += [entry(symbol, {"n": n, "width": width}, **params) for n in (64, 1024)]
    roots = ([0, 1], [2, 3])
    found = load(write(tmp_path, problems, rule=[{**NEAREST, "root": {"problems": root}} for root in roots]))
    for width, by in ((4, 2.0), (8, 10.0)):
        assert float(found(torch.ones(100, width))[0, 0]) == by
    with pytest.raises(OutsideProblems, match=r"no kernel takes float32 \[100, 5\] here; the bundle .* fixed sizes$"):
        found(torch.ones(100, 5))
    assert [miss["problem"] for miss in found.misses()] == [
        {"n": 100, "width": 4}, {"n": 100, "width": 8}, {"n": 100, "width": 5},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        "nearest", [{}], [{**NEAREST, "sizes": {"n": 64}}], [{**NEAREST, "root": {"problems": [2]}}],
        [{**TREE, "sizes": {}}], [{**TREE, "root": {**TREE["root"], "small": None}}],
    ],
)  # fmt: skip
def test_a_rule_that_is_none_is_refused(rule: Any, tmp_path: Path) -> None:
    with pytest.raises(DamagedBundle, match="is no bundle's manifest"):
        load(write(tmp_path, rule=rule))


def test_ties_do_not_depend_on_the_order_of_problems(tmp_path: Path) -> None:
    for name, order in (("a", TWO), ("b", TWO[::-1])):
        found = load(write(tmp_path / name, order, rule=[NEAREST]))
        assert runs(found, 256) == "twice"


def test_distances_are_those_that_the_rule_was_tested_with() -> None:
    draw = random.Random(3)
    problems = [{"M": draw.randrange(1, 10**4), "N": draw.choice([8, 16, 2.5])} for _ in range(200)]
    for one, other in itertools.pairwise(problems):
        assert distance(one, other) == tuned.distance(one, other)
    assert distance({"M": 1, "causal": True}, {"M": 1, "causal": False}) == float("inf")
    assert distance({"M": 1, "N": 7}, {"M": 1}) == 0


@pytest.mark.parametrize("on_miss", ["error", "nearest", "default"])
def test_where_the_space_asks_for_a_size_the_tuned_sizes_are_served_alone(on_miss: Any, tmp_path: Path) -> None:
    """A bundle holds no functions, so that nothing says which of its kernels another size may use."""
    why = "where= takes n, and a bundle holds no functions: it serves the tuned sizes alone"
    write(tmp_path, rule=[NEAREST], asks=["n"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = load(tmp_path, on_miss=on_miss)
    said = [f"on_miss={on_miss!r} of {tmp_path} does nothing: {why}"] if on_miss != "error" else []
    assert [str(one.message) for one in warned] == said and all(one.filename == __file__ for one in warned)
    assert runs(found, 64) == "twice" and runs(found, 1024) == "tenfold"
    for n in (63, 65, 256, 2000):
        with pytest.raises(OutsideProblems, match=rf"no problem has n={n}; .*; {re.escape(why)}$"):
            found(torch.ones(n))

"""A bundle's dispatch rules: that they are those of `atune.sets.dispatch_rule`, and pick the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from bundles import VECTOR, entry, write
from synthetic import matrix_of, random_regret

from atune.bundle import load
from atune.bundle.arguments import nearest
from atune.model.candidate import thaw
from atune.reporting.sets.bundle_rule import rules
from atune.reporting.sets.dispatch import dispatch_rule


def entries(regret: Any, problems: Any, **fields: Any) -> list[dict[str, Any]]:
    """Return problems of a manifest, each with a winner of its own."""
    return [
        entry("twice", problem, config={"block": i}, weight=1.0, regret=[row[i] for row in regret], **fields)
        for i, problem in enumerate(problems)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_what_a_bundle_picks_is_what_the_rule_picks(seed: int, tmp_path: Path) -> None:
    """The same configuration as `atune.sets.dispatch_rule`, for each size between the problems."""
    draw = random.Random(seed)
    sizes = sorted(draw.sample(range(1, 4000), 9))
    regret: Any = random_regret(seed, 9, 9, missing=0.1)
    half = draw.random() < 0.5
    for row, column in ((r, c) for r in range(9) for c in range(9)):
        regret[row][column] = 0.0 if row == column else max(0.01, regret[row][column] or 0.5)
        if half and row != column:  # two regions, for a tree
            regret[row][column] = 0.02 if (row < 4) == (column < 4) and row in (1, 7) else 0.9
    problems = [{"n": n} for n in sizes]
    rule = dispatch_rule(matrix_of(regret, problems))
    written = rules("toy", entries(regret, problems))
    assert [(one["kind"], one["regret"], one["worst_regret"]) for one in written] == [
        ("tree" if hasattr(rule, "trees") else "nearest", rule.regret, rule.worst_regret)
    ]
    found = load(write(tmp_path, entries(regret, problems), rule=written))
    for n in range(sizes[0], sizes[-1], 37):
        near = found._rules[0].serving({"n": n})
        place = nearest({i: problems[i] for i in near}, {"n": n})
        picked = rule.pick({"n": n})
        assert place is not None and picked is not None and thaw({"block": place}) == rule.configs[picked]


def test_kernels_of_fixed_sizes_and_rules_that_nothing_tests_are_left_out() -> None:
    regret = [[0.0, 0.1], [0.2, 0.0]]
    fixed = entries(regret, [{"n": 64}, {"n": 1024}])
    for one in fixed:
        one["params"] = [{**VECTOR, "shape": [one["problem"]["n"]]}] * 2
    assert rules("toy", fixed) == []
    [rule] = rules("toy", entries(regret, [{"n": 64}, {"n": 1024}]))
    assert (rule["regret"], rule["worst_regret"], rule["tested"]) == (pytest.approx(0.15), 0.2, 2)
    assert rules("toy", entries([[0.0, None], [None, 0.0]], [{"n": 64}, {"n": 1024}])) == []

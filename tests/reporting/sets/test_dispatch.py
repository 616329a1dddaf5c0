"""Rules for problems that were never tuned: what they choose, and the regret that they state."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from synthetic import matrix_of, random_regret

from atune import Space
from atune.errors import SpaceError, UsageError
from atune.reporting.sets import dispatch
from atune.sets import AnyRule, NearestRule, RegretMatrix, TreeRule, dispatch_rule

Regret = Sequence[Sequence[float | None]]
Problems = Sequence[dict[str, Any]]


def sizes_of(problem: dict[str, Any]) -> dict[str, float]:
    return {name: problem[name] for name in ("K", "M") if name in problem}


def others_of(problem: dict[str, Any]) -> list[Any]:
    return [(name, str(value)) for name, value in problem.items() if name not in ("K", "M")]


def cost_of(regret: Regret, row: int, columns: Sequence[int], weights: Sequence[float]) -> tuple[int, float]:
    values = [(weights[column], regret[row][column]) for column in columns]
    return sum(r is None for _, r in values), round(sum(w * r for w, r in values if r is not None), 9)


def best_row(regret: Regret, columns: Sequence[int], weights: Sequence[float]) -> tuple[tuple[int, float], int]:
    return min((cost_of(regret, row, columns, weights), row) for row in range(len(regret)))


def naive_nearest(regret: Regret, problems: Problems, weights: Sequence[float], known: list[int], new: int) -> int:
    def apart(column: int) -> tuple[float, list[float]]:
        one, other = sizes_of(problems[column]), sizes_of(problems[new])
        return round(sum(abs(math.log(one[n] / other[n], 2)) for n in one), 9), list(one.values())

    return best_row(regret, [min(known, key=apart)], [1.0] * len(problems))[1]


def naive_tree(
    regret: Regret, problems: Problems, weights: Sequence[float], known: list[int], new: int, depth: int = 3
) -> int:
    """Follow the tree down to the leaf of `new` without ever making it."""
    cost, row = best_row(regret, known, weights)
    found = []
    for name in sizes_of(problems[new]) if depth else ():
        for one, other in itertools.pairwise(sorted({problems[column][name] for column in known})):
            halves = [[c for c in known if (problems[c][name] > one) == large] for large in (False, True)]
            costs = [best_row(regret, half, weights)[0] for half in halves]
            total = costs[0][0] + costs[1][0], round(costs[0][1] + costs[1][1], 9)
            found.append((total, name, math.sqrt(one * other), halves))
    if not found or min(found)[0] >= cost:
        return row
    _, name, most, halves = min(found)
    return naive_tree(regret, problems, weights, halves[problems[new][name] > most], new, depth - 1)


def brute_force(
    pick: Callable[..., int], regret: Regret, problems: Problems, weights: Sequence[float], parts: int = 64
) -> tuple[int, float | None, list[float]]:
    """Return (unmeasured, weighted mean, all) of the regret on each problem that is left out."""
    found, unmeasured = [], 0
    for new in range(len(problems)):
        others = [c for c in range(len(problems)) if c % parts != new % parts]
        known = [c for c in others if others_of(problems[c]) == others_of(problems[new])]
        if known:
            value = regret[pick(regret, problems, weights, known, new)][new]
            unmeasured += value is None
            found += [] if value is None else [(value, weights[new])]
    mean = sum(v * w for v, w in found) / sum(w for _, w in found) if found else None
    return unmeasured, mean, [value for value, _ in found]


def random_problems(draw: random.Random) -> list[dict[str, Any]]:
    grid = itertools.product([1, 2, 8, 16, 64], [128, 256, 1024], ["half", "bfloat16"], [True, False])
    chosen = draw.sample(list(grid), draw.randint(2, 14))
    return [{"M": m, "K": k, "dtype": dtype, "causal": causal} for m, k, dtype, causal in chosen]


@pytest.mark.parametrize("seed", range(40))
def test_the_stated_regret_is_that_of_brute_force(seed: int) -> None:
    """Also which rule is chosen. Penalties for what is unknown order costs as (unknown, regret) does."""
    draw = random.Random(seed)
    problems = random_problems(draw)
    regret = random_regret(seed, draw.randint(2, 5), len(problems), missing=draw.choice((0.0, 0.1)))
    weights = [1.0] * len(problems) if seed % 2 else [draw.choice((0.9, 1.0, 1.1)) for _ in problems]
    nearest, tree = (brute_force(pick, regret, problems, weights) for pick in (naive_nearest, naive_tree))
    rule = dispatch_rule(matrix_of(regret, problems), weights)
    better = NearestRule if (nearest[0], nearest[1] or 0.0) <= (tree[0], tree[1] or 0.0) else TreeRule
    unmeasured, mean, values = nearest if better is NearestRule else tree
    assert type(rule) is better
    assert (rule.unmeasured, rule.tested) == (unmeasured, len(values))
    assert rule.regret == (None if mean is None else pytest.approx(mean, abs=1e-9))
    assert rule.worst_regret == max(values, default=None)


def test_of_many_problems_several_are_left_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PARTS", 3)
    problems: Problems = [{"M": 2**i} for i in range(10)]
    for seed in range(10):
        regret = random_regret(seed, 4, 10, missing=0.0)
        rule = dispatch.dispatch_rule(matrix_of(regret, problems))
        found = [brute_force(pick, regret, problems, [1.0] * 10, 3)[1] for pick in (naive_nearest, naive_tree)]
        assert rule.regret == pytest.approx(min(mean for mean in found if mean is not None), abs=1e-9)
        assert rule.tested == 10


def matrix_by(latency_ms: Callable[[int, dict[str, Any]], float], problems: Problems, rows: int) -> RegretMatrix:
    """Return the matrix of configurations ``block=0, 1, …`` with these latencies."""
    table = [[latency_ms(row, problem) for problem in problems] for row in range(rows)]
    best = [min(column) for column in zip(*table, strict=True)]
    return matrix_of([[ms / b - 1 for ms, b in zip(row, best, strict=True)] for row in table], problems)


def smooth(row: int, problem: dict[str, Any]) -> float:
    """Each configuration is the best at its own product of sizes."""
    return 1.0 + 0.05 * abs(math.log2(problem["M"] * problem["K"]) - 4 * row)


def stepped(row: int, problem: dict[str, Any]) -> float:
    """One configuration for few rows, another for many, whatever K is; the third is a little worse everywhere."""
    return 1.1 if row == 2 else 1.0 + 0.5 * ((problem["M"] <= 48) == (row == 1))


GRID = [{"M": m, "K": k} for m in (1, 4, 16, 32, 64, 256, 1024) for k in (64, 4096)]


@pytest.mark.parametrize("latency_ms", [smooth, stepped])
def test_a_rule_holds_on_problems_left_out(latency_ms: Callable[[int, dict[str, Any]], float]) -> None:
    """On 200 new problems among the tuned ones, mean and worst regret are what the rule states, or nearly."""
    rule = dispatch_rule(matrix_by(latency_ms, GRID, 6 if latency_ms is smooth else 3))
    assert rule.regret is not None and rule.worst_regret is not None and rule.tested == len(GRID)
    draw, found = random.Random(1), []
    for _ in range(200):
        new = {"M": round(2 ** draw.uniform(0, 10)), "K": round(2 ** draw.uniform(6, 12))}
        picked = rule.pick(new)
        assert picked is not None
        best = min(latency_ms(row, new) for row in range(6 if latency_ms is smooth else 3))
        found.append(latency_ms(rule.configs[picked]["block"], new) / best - 1)
    assert sum(found) / len(found) <= rule.regret + 0.01
    assert sum(value > rule.worst_regret + 1e-9 for value in found) <= 0.05 * len(found)


def test_a_tree_is_chosen_where_one_size_decides() -> None:
    matrix = matrix_by(stepped, [{"M": m, "K": k} for m in (32, 64) for k in (64, 512, 8192)], 3)
    rule = dispatch_rule(matrix)
    assert rule.regret == 0.0 and {config["block"] for config in rule.configs} == {0, 1}
    assert [rule.configs[rule.pick({"M": m, "K": 9}) or 0]["block"] for m in (1, 45, 46, 9999)] == [0, 0, 1, 1]


def test_a_rule_is_plain_data() -> None:
    problems = [{"M": m, "dtype": dtype} for m in (1, 64, 1024) for dtype in ("half", "float")]
    for seed in range(6):
        rule = dispatch_rule(matrix_of(random_regret(seed, 4, 6, missing=0), problems))
        again: AnyRule = msgspec.json.decode(msgspec.json.encode(rule), type=AnyRule)
        assert again == rule and [again.pick(p) for p in problems] == [rule.pick(p) for p in problems]


def test_what_is_no_size_must_be_equal() -> None:
    problems = [
        {"M": 8, "dtype": "half", "causal": True, "window": 0},
        {"M": 64, "dtype": "half", "causal": False, "window": 0},
    ]
    rule = dispatch_rule(matrix_of([[0.0, 1.0], [1.0, 0.0]], problems))
    assert rule.sizes == ("M",) and (rule.tested, rule.regret) == (0, None)  # each is alone with its flags
    for change, picked in (
        ({}, 0),
        ({"M": 4096}, 0),
        ({"causal": False}, 1),
        ({"causal": 1}, None),
        ({"dtype": "float"}, None),
        ({"window": 1}, None),
        ({"M": 0}, None),
        ({"M": "8"}, None),
        ({"N": 8}, None),
    ):
        assert rule.pick({**problems[0], **change}) == picked, change


def test_a_problem_that_lacks_a_size_is_refused() -> None:
    problems = [{"M": 8, "N": 8}, {"M": 64, "N": 8}]
    rule = dispatch_rule(matrix_of([[0.0, 1.0], [1.0, 0.0]], problems))
    with pytest.raises(UsageError, match="a rule over M, N was asked for M=8: give N too"):
        rule.pick({"M": 8})


def test_ties_break_the_same_way_in_any_order() -> None:
    """32 is as near to 16 as to 64: the smaller size counts, whatever came first."""
    regret = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    for order in itertools.permutations(range(3)):
        problems = [[{"M": 16, "K": 4}, {"M": 64, "K": 4}, {"M": 64, "K": 64}][i] for i in order]
        rule = dispatch_rule(matrix_of([[row[i] for i in order] for row in regret], problems))
        assert isinstance(rule, NearestRule)
        assert rule.pick({"M": 32, "K": 4}) == 0 and rule.pick({"M": 128, "K": 64}) == 0


def test_one_problem_has_a_rule_without_a_regret() -> None:
    rule = dispatch_rule(matrix_of([[0.0], [0.5]], [{}]))
    assert (rule.pick({}), rule.configs, rule.regret, rule.worst_regret) == (0, ({"block": 0},), None, None)


THREE = [{"M": 64}, {"M": 256}, {"M": 1024}]
SPACES = {
    "where": Space(block=[0, 1, 2], where=lambda M, block: M % (16 << 2 * block) == 0),
    "several": Space(block=[0, 1, 2], where=[lambda block: block < 3, lambda M, block: M % (16 << 2 * block) == 0]),
    "unlisted winners": Space(block=[7], where=lambda M, block: M % (16 << 2 * block) == 0),
    "any argument": Space(block=[0, 1, 2], where=lambda **values: values["M"] % (16 << 2 * values["block"]) == 0),
    "computed axis": Space(block=lambda M: [block for block in (0, 1, 2) if M % (16 << 2 * block) == 0] or [7]),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_rule_asks_the_space_for_sizes_never_tuned(space: Space) -> None:
    """The winner of each problem is its own block, of 16, 64 and 256 rows."""
    assert space.asks(["M", "K"]) == (("M", "K") if space is SPACES["any argument"] else ("M",))
    matrix = matrix_of([[0.0, 0.2, 0.2], [0.2, 0.0, 0.2], [0.2, 0.2, 0.0]], THREE)
    rule = dispatch_rule(msgspec.structs.replace(matrix, asks=("M",)))
    again = msgspec.json.decode(msgspec.json.encode(rule.over(space)), type=AnyRule)  # type: ignore[arg-type]
    assert isinstance(rule, NearestRule) and again == rule
    wanted = {64: 0, 1024: 2, 2048: 2, 960: 1, 128: 0, 1040: 0, 1000: None}
    assert {M: rule.pick({"M": M}) for M in wanted} == wanted
    assert again.pick({"M": 1024}) == 2
    with pytest.raises(UsageError, match=r"M=960 was never tuned, and where= takes M: give .* rule\.over\(space\)"):
        again.pick({"M": 960})
    assert again.over(space).pick({"M": 960}) == 1
    with pytest.raises(SpaceError, match="raised"):
        again.over(Space(block=[0], where=lambda M: 1 // 0)).pick({"M": 960})


def test_a_constraint_on_what_must_be_equal_anyway_asks_for_no_size() -> None:
    matrix = matrix_of([[0.0, 0.2], [0.2, 0.0]], [{"M": 64, "dtype": "half"}, {"M": 256, "dtype": "half"}])
    rule = dispatch_rule(msgspec.structs.replace(matrix, asks=("dtype",)))
    assert rule.asks == () and rule.pick({"M": 65, "dtype": "half"}) == 0

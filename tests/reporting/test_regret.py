"""The regret matrix of several problems, the configurations that cover them, and the rule for other problems."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from event_streams import write
from synthetic import key, matrix_of, run_of, stream_of

from atune import Space
from atune.errors import SpaceError, UsageError
from atune.sets import RegretMatrix, cover, dispatch_rule, regret_matrix

FIRSTS = {0: (2.0,), 1: (1.0,), 2: (1.1,), 3: (9.0,), 4: ()}
FINAL = {1: (1.2, 1.2), 2: (1.5, 1.5)}
"""A run in which 1 wins. In the final, all is slower than by first timing."""


def by_key(matrix: RegretMatrix) -> dict[str, tuple[float | None, ...]]:
    return {key(config["block"]): row for config, row in zip(matrix.configs, matrix.regret, strict=True)}


def test_the_matrix_compares_like_with_like() -> None:
    """Finalists by the final, others by first timing; a problem's failure and what it did not try are unknown."""
    small, large = run_of({"M": 1}, FIRSTS, FINAL), run_of({"M": 2}, {0: (3.0,), 2: (6.0,), 1: ()})
    matrix = regret_matrix([small, large])
    assert [config["block"] for config in matrix.configs] == sorted((0, 1, 2), key=key)
    assert by_key(matrix) == {
        key(0): (pytest.approx(1.0), 0.0),
        key(1): (0.0, None),
        key(2): (pytest.approx(0.25), pytest.approx(1.0)),
    }
    assert [matrix.configs[row] for row in matrix.winners] == [{"block": 1}, {"block": 0}]
    assert matrix.problems == ({"M": 1}, {"M": 2})


def test_a_finalist_that_ties_with_the_winner_counts_as_one() -> None:
    """0 is the winner although 1 was a little faster: they tie, and 2 does not."""
    latencies = {0: (1.02,), 1: (1.0,), 2: (1.53,)}
    matrix = regret_matrix([run_of({"M": 1}, latencies, latencies, ties=(1,))])
    assert by_key(matrix) == {key(0): (0.0,), key(1): (0.0,), key(2): (pytest.approx(0.5),)}
    assert [matrix.configs[row] for row in matrix.winners] == [{"block": 0}]


def test_results_come_from_journals_and_folders_too(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"{number}.jsonl", stream_of({"M": number, "shape": (number, 2)}, FIRSTS, FINAL).events)
    assert regret_matrix(tmp_path) == regret_matrix([str(tmp_path / "1.jsonl"), tmp_path / "2.jsonl"])
    assert regret_matrix(tmp_path).problems[1] == {"M": 2, "shape": (2, 2)}


def test_a_problem_without_a_winner_is_left_out() -> None:
    assert regret_matrix([run_of({"M": 1}, FIRSTS), run_of({"M": 2}, {0: ()})]).problems == ({"M": 1},)
    with pytest.raises(UsageError, match="no result has a winner"):
        regret_matrix([run_of({"M": 2}, {0: ()})])


def test_what_is_no_set_of_problems_is_refused(tmp_path: Path) -> None:
    one = run_of({"M": 1}, FIRSTS)
    with pytest.raises(UsageError, match="results for two kernels, 'toy' and 'other'"):
        regret_matrix([one, run_of({"M": 2}, FIRSTS, workload="other")])
    with pytest.raises(UsageError, match="two results are for the problem M=1"):
        regret_matrix([one, one])
    with pytest.raises(UsageError, match="has no journals"):
        regret_matrix(tmp_path)


def test_a_cover_says_who_serves_what() -> None:
    matrix = matrix_of([[0.0, 0.02, 0.5], [0.4, 0.0, 0.5], [None, 0.3, 0.0]])
    found = cover(matrix)
    assert found.configs == ({"block": 0}, {"block": 2}) and found.serves == (0, 0, 1)
    assert found.regret == (0.0, 0.02, 0.0) and len(cover(matrix, 0.01).configs) == 3
    assert cover(matrix, 0.5).configs == ({"block": 0},)
    assert cover(matrix_of([[0.0, 0.0, None], [0.9, 0.9, 0.0]]), 1.0).configs == ({"block": 1},), (
        "it was measured everywhere"
    )
    with pytest.raises(UsageError, match="must be zero or more"):
        cover(matrix, -0.01)


def test_a_rule_gives_the_winner_of_the_nearest_and_its_regret_is_that_of_each_problem_left_out() -> None:
    """Of two that are equally near, the smaller one counts."""
    problems = [{"M": size, "K": 64} for size in (8, 4, 2, 1)]  # each has a winner of its own
    regret: list[list[float | None]] = [
        [0.0, 0.9, 0.9, 0.9],
        [0.3, 0.0, 0.9, 0.9],
        [0.9, 0.1, 0.0, 0.6],
        [0.9, 0.9, 0.2, 0.0],
    ]
    rule = dispatch_rule(matrix_of(regret, problems))
    assert [rule.pick({"M": size, "K": 64}) for size in (9, 5, 2, 1)] == [0, 1, 2, 3]
    assert (rule.tested, rule.unmeasured, rule.worst_regret) == (4, 0, 0.6)
    assert rule.regret == pytest.approx((0.3 + 0.1 + 0.2 + 0.6) / 4)
    regret[3][2] = None
    rule = dispatch_rule(matrix_of(regret, problems))
    assert (rule.tested, rule.unmeasured, rule.regret) == (3, 1, pytest.approx((0.3 + 0.1 + 0.6) / 3))
    rule = dispatch_rule(matrix_of([[0.0, 1.0], [1.0, 0.0]], [{"M": 64, "K": 64}, {"M": 1, "K": 256}]))
    assert [rule.pick({"M": size, "K": 256}) for size in (32, 4)] == [0, 1]


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
    with pytest.raises(UsageError, match="the rule needs M, but got dtype='half': also give M"):
        rule.pick({"dtype": "half"})


THREE = [{"M": 64}, {"M": 256}, {"M": 1024}]
SPACES = {
    "where": Space(block=[0, 1, 2], where=lambda M, block: M % (16 << 2 * block) == 0),
    "unlisted winners": Space(block=[7], where=lambda M, block: M % (16 << 2 * block) == 0),
    "any argument": Space(block=[0, 1, 2], where=lambda **values: values["M"] % (16 << 2 * values["block"]) == 0),
    "computed axis": Space(block=lambda M: [block for block in (0, 1, 2) if M % (16 << 2 * block) == 0] or [7]),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_rule_asks_the_space_for_sizes_never_tuned(space: Space) -> None:
    """The winner of each problem is its own block, of 16, 64 and 256 rows."""
    assert space.asks(["M", "K"]) == (("M", "K") if space is SPACES["any argument"] else ("M",))
    matrix = matrix_of([[0.0, 0.2, 0.2], [0.2, 0.0, 0.2], [0.2, 0.2, 0.0]], THREE)
    matrix = msgspec.structs.replace(matrix, asks=("M",))
    rule, alone = dispatch_rule(matrix, space=space), dispatch_rule(matrix)
    wanted = {64: 0, 1024: 2, 2048: 2, 960: 1, 128: 0, 1040: 0, 1000: None}
    assert {M: rule.pick({"M": M}) for M in wanted} == wanted
    assert alone.pick({"M": 1024}) == 2
    with pytest.raises(UsageError, match=r"M=960 was never tuned, and where= takes M: pass the space"):
        alone.pick({"M": 960})
    with pytest.raises(SpaceError, match="raised"):
        dispatch_rule(matrix, space=Space(block=[0], where=lambda M: 1 // 0)).pick({"M": 960})


def test_of_tied_configurations_the_rule_takes_what_serves_the_most_problems() -> None:
    """The first wins at 32 and 64, where the second is tied; at 60 it is 66 % slower."""
    problems, tied = [{"M": 32}, {"M": 60}, {"M": 64}], [[0.0, 0.66, 0.0], [0.0, 0.0, 0.0], [0.0, 0.01, 0.3]]
    matrix = msgspec.structs.replace(matrix_of(tied, problems), winners=(0, 1, 0))
    rule = dispatch_rule(matrix)
    assert rule.configs == ({"block": 1},) and (rule.regret, rule.worst_regret) == (0.0, 0.0)
    assert [rule.pick({"M": size}) for size in (1, 48, 61, 99)] == [0] * 4
    often = msgspec.structs.replace(matrix_of([[0.0, 0.9, 0.0], [0.0, 0.0, 0.9]], problems), winners=(0, 1, 0))
    assert dispatch_rule(often).pick({"M": 32}) == 0, "of those that serve equally many, the winner"

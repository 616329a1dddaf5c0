"""The regret matrix of several problems, and the few configurations that cover them."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
from event_streams import write
from synthetic import key, matrix_of, random_regret, run_of, stream_of

from atune.errors import UsageError
from atune.reporting.sets import cover as covering
from atune.sets import RegretMatrix, cover, regret_matrix

FIRSTS = {0: (2.0,), 1: (1.0,), 2: (1.1,), 3: (9.0,), 4: ()}
FINAL = {1: (1.2, 1.2), 2: (1.5, 1.5), 3: (9.0, 9.0)}
"""A run in which 1 wins, and 3 is in the final as the slowest. In the final, all is slower than by first timing."""


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
    assert matrix.kernel == "toy" and matrix.problems == ({"M": 1}, {"M": 2})


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
    with pytest.raises(UsageError, match="different kernels, 'toy' and 'other'"):
        regret_matrix([one, run_of({"M": 2}, FIRSTS, workload="other")])
    with pytest.raises(UsageError, match="the problem M=1 comes twice"):
        regret_matrix([one, one])
    with pytest.raises(UsageError, match="has no journals"):
        regret_matrix(tmp_path)


def brute_force(matrix: RegretMatrix, weights: list[float], count: int) -> tuple[float, float]:
    """Return the least (weight without a measurement, weighted regret) of all choices of `count` rows."""
    found = []
    for rows in itertools.combinations(range(len(matrix.configs)), count):
        columns = [[r for row in rows if (r := matrix.regret[row][i]) is not None] for i in range(len(matrix.problems))]
        unknown = math.fsum(w for w, column in zip(weights, columns, strict=True) if not column)
        regret = math.fsum(w * min(column) for w, column in zip(weights, columns, strict=True) if column)
        found.append((unknown, regret))
    return min(found)


def served(matrix: RegretMatrix, weights: list[float], regret: tuple[float | None, ...]) -> tuple[float, float]:
    pairs = list(zip(weights, regret, strict=True))
    return math.fsum(w for w, r in pairs if r is None), math.fsum(w * r for w, r in pairs if r is not None)


@pytest.mark.parametrize("seed", range(40))
def test_a_cover_equals_that_of_brute_force(seed: int) -> None:
    draw = random.Random(seed)
    matrix = matrix_of(random_regret(seed, draw.randint(2, 8), draw.randint(1, 9)))
    weights = [draw.choice((0.5, 1.0, 1.0, 3.0)) for _ in matrix.problems]
    for count in range(1, 5):
        found = cover(matrix, weights, configs=count)
        assert found.exact and len(found.rows) <= count
        assert served(matrix, weights, found.regret) == pytest.approx(
            min(brute_force(matrix, weights, k) for k in range(1, min(count, len(matrix.configs)) + 1))
        )
    for limit in (0.0, 0.03, 0.2):
        found = cover(matrix, weights, max_regret=limit)
        assert found.exact and all(r is not None and r <= limit for r in found.regret)
        within = matrix_of([[r if r is not None and r <= limit else None for r in row] for row in matrix.regret])
        fewest = next(k for k in range(1, 10) if brute_force(within, weights, k)[0] == 0)
        assert len(found.configs) == fewest
        assert served(matrix, weights, found.regret) == pytest.approx(brute_force(within, weights, fewest))


def test_a_cover_says_who_serves_what() -> None:
    matrix = matrix_of([[0.0, 0.02, 0.5], [0.4, 0.0, 0.5], [None, 0.3, 0.0]])
    found = cover(matrix)
    assert found.configs == ({"block": 0}, {"block": 2}) and found.serves == (0, 0, 2)
    assert found.regret == (0.0, 0.02, 0.0) and found.mean_regret == pytest.approx(0.02 / 3)
    assert cover(matrix, max_regret=0.01).rows == (0, 1, 2)
    assert cover(matrix, configs=1).rows == (0,)
    assert cover(matrix, [1, 1, 9], configs=2).rows == (0, 2)


def test_what_was_not_measured_counts_more_than_any_regret() -> None:
    assert cover(matrix_of([[0.0, 0.0, None], [0.9, 0.9, 0.0]]), configs=1).rows == (1,)


def test_a_choice_too_long_to_search_is_good_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_of(random_regret(7, 30, 40, missing=0.5))
    exact = cover(matrix, configs=4)
    monkeypatch.setattr(covering, "WORK", 0)
    quick, fewest = cover(matrix, configs=4), cover(matrix, max_regret=0.1)
    assert exact.exact and not quick.exact and not fewest.exact
    assert exact.mean_regret <= quick.mean_regret <= 1.1 * exact.mean_regret
    assert all(r is not None and r <= 0.1 for r in fewest.regret)


def test_wrong_limits_and_weights_are_refused() -> None:
    matrix = matrix_of([[0.0, 0.5], [0.5, 0.0]])
    for options, said in (
        ({"configs": 2, "max_regret": 0.1}, "not both"),
        ({"configs": 0}, "must be 1 or more"),
        ({"weights": [1.0]}, "1 weights for 2 problems"),
        ({"weights": [1.0, 0.0]}, "above zero"),
    ):
        with pytest.raises(UsageError, match=said):
            cover(matrix, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no configuration is within -1\.00% on the problem M=1"):
        cover(matrix, max_regret=-0.01)

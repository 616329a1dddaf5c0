"""When a further gain is unlikely: a pure fold over what was told."""

from __future__ import annotations

import random

import pytest

from atune.errors import UsageError
from atune.search import until
from atune.search.until import IN_A_ROW, STEP, Until

CONFIGS = {i: {"x": i % 12, "y": i // 12} for i in range(144)}


def latency(index: int) -> float:
    config = CONFIGS[index]
    return 1.0 + 0.2 * abs(config["x"] - 5) + 0.3 * abs(config["y"] - 7)


def play(order: list[int], told: Until) -> int | None:
    """Tell in that order; return how many were told when it was reached."""
    for count, index in enumerate(order, 1):
        told.tell(index, latency(index))
        if told.due and told.reached():
            return count
    return None


def test_a_search_that_met_the_best_ends_early_and_one_that_did_not_goes_on() -> None:
    order = random.Random(1).sample(range(144), 144)
    best = min(CONFIGS, key=latency)
    found = [best, *[index for index in order if index != best]]
    ended = play(found, Until(CONFIGS, 0.02))
    assert ended is not None and ended < 144 // 2
    worse = [index for index in order if latency(index) > 1.8]
    assert play(worse[: ended + STEP], Until(CONFIGS, 0.02)) is None


def test_what_goes_on_decides_as_the_uninterrupted_one() -> None:
    best = min(CONFIGS, key=latency)
    order = [best, *[index for index in random.Random(1).sample(range(144), 144) if index != best]]
    ended = play(order, Until(CONFIGS, 0.02))
    assert ended is not None
    for cut in (ended - 1, ended - STEP, 5):
        again = Until(CONFIGS, 0.02)
        assert not again.catch_up((index, latency(index)) for index in order[:cut])
        assert play(order[cut:], again) == ended - cut


def test_one_look_alone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = iter([0.01, 0.5, *[0.01] * IN_A_ROW])
    monkeypatch.setattr(Until, "chance", lambda self: next(chances))
    assert play(list(range(60)), Until(CONFIGS, 0.02)) == until.FIRST + (1 + IN_A_ROW) * STEP


def test_in_a_large_space_the_first_look_waits_for_a_share_of_it() -> None:
    told = Until({i: {"x": i} for i in range(2000)}, 0.02)
    looks = []
    for index in range(100):
        told.tell(index, 1.0)
        if told.due:
            looks.append(index + 1)
    assert looks == [64, 72, 80, 88, 96]


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "available", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'atune\[search\]'"):
        Until(CONFIGS, 0.02)

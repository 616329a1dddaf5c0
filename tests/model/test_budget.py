"""Budgets: candidates, a share of the space, or time."""

from __future__ import annotations

import pytest

from atune.model.settings import Budget


@pytest.mark.parametrize(("text", "total", "most"), [("10%", 288, 29), ("10%", 5, 1), ("0.1%", 80, 1), ("100%", 7, 7)])
def test_a_share_is_rounded_up(text: str, total: int, most: int) -> None:
    assert Budget.parse(text).most(total) == most


def test_a_text_may_have_several_limits() -> None:
    assert Budget.parse("40, 2m") == Budget(candidates=40, seconds=120)
    assert Budget.parse("10%,90s") == Budget(percent=10, seconds=90)


@pytest.mark.parametrize(("total", "most"), [(8, 16), (160, 16), (288, 29), (2508, 251)])
def test_auto_is_a_tenth_at_most_and_sixteen_at_least(total: int, most: int) -> None:
    assert Budget.parse("auto") == Budget(auto=True) and Budget(auto=True).limited
    assert Budget.parse("auto").most(total) == most and Budget.parse("auto,5").most(total) == 5
    assert Budget.parse("auto,90s").used_up(90)


def test_the_smaller_limit_counts() -> None:
    assert Budget(candidates=5, percent=50).most(8) == 4 and Budget(candidates=5, percent=50).most(80) == 5
    assert Budget(seconds=3).most(8) is None and Budget(seconds=3).limited and not Budget().limited

"""A space counted: how many candidates, which constraint refuses the others, and never more work than allowed."""

from __future__ import annotations

from typing import Any

import pytest

from atune.errors import SpaceError
from atune.model.space import Space
from atune.workload.workload import Refusals, Workload, constraint_text, survey


def kernel(N: int, block: int = 1, stages: int = 1) -> int:
    return N


def fits(block: int, N: int) -> bool:
    return block <= N


def counted(space: Any, **limits: Any) -> Any:
    return survey(Workload(kernel, space, arguments={"N": 64}), **limits)


def test_points_are_counted_by_the_first_constraint_that_refuses_them() -> None:
    space = Space(block=[16, 32, 64, 128], stages=[1, 2, 3], where=[fits, lambda block, stages: block * stages < 128])
    found = counted(space)
    assert (found.points, found.looked_at, found.candidates, found.exact) == (12, 12, 7, True)
    assert found.refusals == (
        Refusals(f"fits (test_space_survey.py, line {fits.__code__.co_firstlineno})", 3),
        Refusals("lambda block, stages: block * stages < 128", 2),
    )


def test_a_huge_space_is_estimated_from_points_drawn_evenly() -> None:
    """The first points in order would all be refused."""
    asked = 0

    def large_enough(block: int) -> bool:
        nonlocal asked
        asked += 1
        return block >= 512

    found = counted(Space(block=list(range(1024)), stages=list(range(1 << 20)), where=large_enough), most=2000)
    assert found.points == 1 << 30 and asked == found.looked_at == 2000 and not found.exact
    assert 0.45 < found.candidates / found.points < 0.55


def test_what_does_not_fit_the_kernel_is_named() -> None:
    with pytest.raises(SpaceError, match="the kernel takes no argument 'width'"):
        counted(Space(width=[1, 2]))
    with pytest.raises(SpaceError, match="needs M; available:"):
        counted(Space(block=[1], where=lambda M: M))


def test_constraints_without_source_have_a_text() -> None:
    typed: dict[str, Any] = {}
    exec("where = lambda block: block > 1", typed)
    assert constraint_text(typed["where"]) == "lambda block (line 1)"
    assert constraint_text(max) == "max"

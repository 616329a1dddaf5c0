"""Points of a space: counted, read at a place, drawn and walked without being enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from atune.errors import SpaceError
from atune.model.candidate import BASELINE
from atune.model.space import Points, Space
from atune.workload import workload
from atune.workload.workload import Workload, describe


def keywords(N: int = 1, **config: Any) -> None: ...


def digits(count: int, **options: Any) -> Space:
    return Space({f"d{i}": list(range(10)) for i in range(count)}, **options)


def odd_sum(d0: int, d1: int, N: int = 0) -> bool:
    return bool((d0 + d1 + N) % 2)


def spaces() -> list[Points]:
    """Small ones of each kind, with a constraint and without."""
    listed = [{"d0": a, "d1": b} for a, b in itertools.product((3, 1, 2), (7, 8, 9, 4)) if (a, b) != (1, 8)]
    axes = {"d0": [1, True, 1.0, "1"], "d1": [(1, 2), None, 5]}
    return [
        Space(axes).points({}),
        Space(d0=range(5), d1=[4, 2, 0], where=odd_sum).points({"N": 2}),
        Space(listed).points({}),
        Space(listed, where=odd_sum).points({}),
    ]


@pytest.mark.parametrize("points", spaces())
def test_every_way_to_read_a_space_tells_the_same(points: Points) -> None:
    walked = list(points.walk())
    assert walked == [points.plain(place) for place in range(points.size) if points.admits(points.raw(place))]
    places = [points.place(config) for config in walked]
    assert None not in places and [points.plain(place or 0) for place in places] == walked
    assert sorted(points.drawn(3)) == list(range(points.size)) and list(points.drawn(3)) == list(points.drawn(3))


def test_a_billion_points_are_read_at_a_place_and_found_again() -> None:
    points = digits(9, where=odd_sum).points({"N": 0})
    assert points.size == 10**9
    assert points.plain(123_456_789) == {f"d{i}": i + 1 for i in range(9)}
    assert points.place({f"d{i}": i + 1 for i in reversed(range(9))}) == 123_456_789
    refused = points.place({f"d{i}": 1 for i in range(9)})
    assert refused == 111_111_111 and not points.admits(points.raw(refused))
    assert points.place({"d0": 1}) is None and points.place({f"d{i}": 10 for i in range(9)}) is None
    drawn = list(itertools.islice(points.drawn(7), 2000))
    assert drawn == list(itertools.islice(points.drawn(7), 2000)) != list(itertools.islice(points.drawn(8), 2000))


def test_an_endless_generator_is_refused() -> None:
    with pytest.raises(SpaceError, match="the generator yields more than 100,000 configs; give axes and constraints"):
        Space({"a": i} for i in itertools.count())


def test_the_first_of_a_space_are_had_without_the_others() -> None:
    asked: list[int] = []
    space = Space(d0=range(10**6), where=lambda d0: asked.append(d0) or d0 > 3)
    assert list(itertools.islice(space.points({}).walk(), 3)) == [{"d0": 4}, {"d0": 5}, {"d0": 6}] and len(asked) < 10


@pytest.fixture
def small_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "LARGE", 500)


@pytest.mark.usefixtures("small_draw")
def test_of_a_large_space_the_seed_draws() -> None:
    space = digits(9, where=lambda d0, d1: d0 <= d1)
    spec, same, other = (describe(Workload(keywords, space), seed=seed) for seed in (1, 1, 2))
    assert (len(spec.configs), spec.points) == (500, 10**9) and all(c["d0"] <= c["d1"] for c in spec.configs)
    assert spec.configs == same.configs and spec.space == same.space != other.space
    for name in space.axes:
        counts = [sum(config[name] == value for config in spec.configs) for value in range(10)]
        assert sum(counts) == 500 and (name in ("d0", "d1") or min(counts) > 15)
    assert "the space has 1,000,000,000 points, so the run searches 500 candidates" in spec.remarks[0]


@pytest.mark.usefixtures("small_draw")
def test_the_default_of_a_large_space_is_drawn_first() -> None:
    def kernel(d0: int = 4, d1: int = 0, d2: int = 7) -> None: ...

    spec = describe(Workload(kernel, digits(3)))
    assert spec.default == 0 and spec.configs[0] == {"d0": 4, "d1": 0, "d2": 7}
    outside = describe(Workload(kernel, digits(3, where=lambda d0: d0 != 4)))
    assert outside.default == BASELINE and outside.baseline == spec.configs[0]
    chosen = {f"d{i}": 9 for i in range(3)}
    assert describe(Workload(kernel, digits(3), default=chosen)).configs[0] == chosen
    assert describe(Workload(kernel, digits(3), default={**chosen, "d0": 10})).baseline == {**chosen, "d0": 10}

"""Points of a space: counted, read at a place, drawn and walked without being enumerated."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atune.errors import SpaceError, WorkloadError
from atune.model.permutation import Permutation
from atune.model.points import Points
from atune.model.space import LARGE, Space
from atune.workload.listing import MOST_LISTED, Candidates
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
    walked = dict(points.walk())
    assert walked == {p: c for p in range(points.size) if (c := points.at(p)) is not None}
    assert [points.place(config) for config in walked.values()] == list(walked)
    for seed in (0, 1):
        assert sorted(points.sample(seed)) == list(walked)
    assert list(points.sample(3)) == list(points.sample(3))


def test_a_billion_points_are_read_at_a_place_and_found_again() -> None:
    points = digits(9, where=odd_sum).points({"N": 0})
    assert points.size == 10**9
    assert points.at(123_456_789) == {f"d{i}": i + 1 for i in range(9)}
    assert points.place({f"d{i}": i + 1 for i in reversed(range(9))}) == 123_456_789
    assert points.at(113_456_789) is None and points.place({f"d{i}": 1 for i in range(9)}) is None
    assert points.place({"d0": 1}) is None and points.place({f"d{i}": 10 for i in range(9)}) is None


def test_a_sample_of_a_billion_points_repeats_none_and_is_spread() -> None:
    points = digits(9, where=odd_sum).points({"N": 0})
    drawn = list(itertools.islice(points.sample(7), 2000))
    assert len(set(drawn)) == 2000 and drawn == list(itertools.islice(points.sample(7), 2000))
    assert drawn != list(itertools.islice(points.sample(8), 2000))
    for digit in range(9):
        counts = [sum(place // 10**digit % 10 == value for place in drawn) for value in range(10)]
        assert min(counts) > 120 and max(counts) < 290  # 200, give or take six standard deviations


@pytest.mark.parametrize("size", [1, 2, 3, 10, 63, 64, 65, 1000])
def test_a_permutation_has_each_number_once(size: int) -> None:
    assert sorted(Permutation(size, 5)) == list(range(size))


def test_a_permutation_stays_as_it_is() -> None:
    """Journals of large spaces are resumed by it: it must never change."""
    shuffled = Permutation(10**9, 3)
    assert [shuffled[i] for i in (0, 1, 2, 10**9 - 1)] == PERMUTED
    assert [shuffled[i] for i in (0, 1)] != [Permutation(10**9, 4)[i] for i in (0, 1)]
    with pytest.raises(IndexError):
        shuffled[10**9]


PERMUTED = [168757262, 598688501, 446614864, 881463856]


def test_neighbours_are_the_nearest_admitted_along_each_axis() -> None:
    points = Space(a=[1, 2, 4, 8], b=["x", "y", "z"], where=lambda a, b: (a, b) not in ((2, "x"), (8, "x"))).points({})

    def around(a: int, b: str) -> list[tuple[Any, ...]]:
        place = points.place({"a": a, "b": b})
        assert place is not None
        found = [points.at(near) for near in points.neighbours(place)]
        return [tuple(config.values()) for config in found if config is not None]

    assert around(4, "x") == [(1, "x"), (4, "y")]  # over the refused (2, x), and none beyond (8, x)
    assert around(2, "y") == [(1, "y"), (4, "y"), (2, "z")]
    assert around(4, "y") == [(2, "y"), (8, "y"), (4, "x"), (4, "z")]


def test_neighbours_in_a_list_go_by_the_values_that_occur() -> None:
    points = Space([{"a": 1, "b": 1}, {"a": 4, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 3}, {"c": 0}]).points({})
    assert points.axes == {"a": (1, 4, 2), "b": (1, 3), "c": (0,)}
    assert [list(points.neighbours(place)) for place in range(5)] == [[1], [0, 2], [1, 3], [2], []]


def test_true_one_and_one_point_nought_are_three_values() -> None:
    points = Space(a=[1, True, 1.0]).points({})
    assert [points.place({"a": value}) for value in (1, True, 1.0)] == [0, 1, 2]


def test_a_constraints_signature_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    signature = inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda function: (read.append(function), signature(function))[1])
    assert len(digits(3, where=[odd_sum, lambda d2: d2]).configs({})) == 450
    assert len(read) == 2


@pytest.mark.parametrize("count", [19, 1000])
def test_more_points_than_a_journal_can_number_are_refused(count: int) -> None:
    with pytest.raises(SpaceError, match=r"axes \(10 × 10 × .* have more than 2\*\*63 points"):
        digits(count).points({})


def asked(limit: int) -> tuple[Callable[..., bool], list[int]]:
    """A constraint that fails once it was asked more than `limit` times."""
    calls = [0]

    def where(d0: int) -> bool:
        calls[0] += 1
        assert calls[0] <= limit, "the space is enumerated"
        return d0 > 3

    return where, calls


def test_a_large_space_is_described_without_being_enumerated() -> None:
    where, calls = asked(1)
    spec = describe(Workload(keywords, digits(9, where=where)))
    assert (spec.configs, spec.size, spec.total, spec.default) == ((), 10**9, 10**9, None) and calls == [0]
    same, other = (describe(Workload(keywords, digits(n))).space for n in (9, 8))
    assert spec.space == same != other


def test_up_to_the_limit_a_space_is_listed() -> None:
    spec = describe(Workload(keywords, Space(a=range(LARGE))))
    assert len(spec.configs) == LARGE and spec.size is None
    assert describe(Workload(keywords, Space(a=range(LARGE + 1)))).size == LARGE + 1
    whole = describe(Workload(keywords, Space(a=range(LARGE + 1))), whole=True)
    assert len(whole.configs) == LARGE + 1 and whole.size is None


def test_a_space_that_is_far_too_large_is_not_listed_whole() -> None:
    with pytest.raises(SpaceError, match=f"1,000,000,000 points, and no more than {MOST_LISTED:,} are listed: give"):
        describe(Workload(keywords, digits(9)), whole=True)


def test_the_default_of_a_large_space_is_found_by_its_place() -> None:
    def kernel(d0: int = 4, d1: int = 0, d2: int = 0, d3: int = 0, d4: int = 0, d5: int = 7) -> None: ...

    assert describe(Workload(kernel, digits(6))).default == 400_007
    assert describe(Workload(kernel, digits(6, where=lambda d0: d0 != 4))).default is None
    chosen = {f"d{i}": 9 for i in range(6)}
    assert describe(Workload(kernel, digits(6), default=chosen)).default == 999_999
    with pytest.raises(WorkloadError, match="is not in the space"):
        describe(Workload(kernel, digits(6), default={**chosen, "d0": 10}))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (digits(9), "the kernel takes no argument 'd0'; it takes d9"),
        (Space({**digits(8).axes, "d8": [1, 2, 1]}), "axis 'd8' has 1 twice; give each value once"),
    ],
)
def test_mistakes_in_a_large_space_are_named_at_once(space: Space, message: str) -> None:
    kernel = keywords if "twice" in message else lambda d9=0: None
    with pytest.raises(SpaceError) as caught:
        describe(Workload(kernel, space))
    assert message in str(caught.value)


def endless(read: list[int]) -> Iterator[dict[str, int]]:
    for i in itertools.count():
        read.append(i)
        yield {"a": i}


def test_an_endless_generator_is_read_as_far_as_the_limit() -> None:
    read: list[int] = []
    space = Space(endless(read))
    assert not read  # not when it is made
    assert pickle.loads(pickle.dumps(space)).points({}).size == LARGE and len(read) == LARGE + 1
    spec = describe(Workload(keywords, space))
    assert len(spec.configs) == LARGE and len(read) == LARGE + 1
    assert "gives more than 100,000 configurations: those after them are left out" in spec.remarks[0]


def test_a_function_that_gives_an_endless_generator_is_read_as_far_as_the_limit() -> None:
    read: list[int] = []
    spec = describe(Workload(keywords, Space(lambda: endless(read))))
    assert len(spec.configs) == LARGE and len(spec.remarks) == 1 and len(read) == LARGE + 1


def test_the_first_of_a_space_are_had_without_the_others() -> None:
    where, _ = asked(10)
    assert list(itertools.islice(Space(d0=range(10**6), where=where).walk({}), 3)) == [{"d0": 4}, {"d0": 5}, {"d0": 6}]


def test_candidates_of_a_long_list_are_looked_up() -> None:
    configs = [{"a": i} for i in range(LARGE + 5)]
    candidates = Candidates(Workload(keywords, Space(configs, where=lambda a: a != 2)))
    assert candidates.large and candidates.at(2) is None
    found = candidates.at(LARGE + 4)
    assert found is not None and (found.index, found.config) == (LARGE + 4, {"a": LARGE + 4})

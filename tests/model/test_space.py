"""The space: order, axes, constraints, generators, callables of the problem, and one clear message for each mistake."""

from __future__ import annotations

import functools
import linecache
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write

from atune import layout
from atune.errors import SpaceError
from atune.journal.reader import replay
from atune.model.candidate import MAX_INT, MAX_NESTING, MIN_INT, config_key, normalise
from atune.model.space import Space
from atune.workload.workload import Workload, candidates_of, describe


def configs(space: Space, **arguments: Any) -> list[dict[str, Any]]:
    return list(space.points(arguments).walk())


def test_axes_may_be_given_as_a_dict_and_as_ranges() -> None:
    assert configs(Space({"where": [1, 2], "self": (3,)})) == [{"where": 1, "self": 3}, {"where": 2, "self": 3}]
    assert configs(Space(a=range(3))) == [{"a": 0}, {"a": 1}, {"a": 2}]


def test_constraints_see_axes_and_arguments_by_name() -> None:
    space = Space(a=[1, 2, 3], b=[1, 2], where=[lambda a, b: a <= b, lambda a, N: a * 2 <= N])
    assert configs(space, N=2) == [{"a": 1, "b": 1}, {"a": 1, "b": 2}]
    assert len(configs(Space(a=[1, 2], where=lambda **all: all["a"] == all["N"]), N=2)) == 1
    assert len(configs(Space(a=[1, 2], where=lambda a, missing=5: a < missing))) == 2


def test_a_generator_is_read_once_and_sent_by_its_values() -> None:
    reads: list[int] = []

    def generate() -> Iterator[dict[str, int]]:
        for i in range(3):
            reads.append(i)
            yield {"a": i}

    space = Space(generate())
    assert configs(space) == configs(space) == [{"a": 0}, {"a": 1}, {"a": 2}] and reads == [0, 1, 2]
    assert configs(pickle.loads(pickle.dumps(space))) == configs(space)


def test_callables_of_the_problem() -> None:
    assert configs(Space(lambda N: ({"a": i} for i in range(N))), N=2) == [{"a": 0}, {"a": 1}]
    assert configs(Space(a=lambda N: [i for i in (1, 2, 4) if i <= N], b=[0]), N=2) == [
        {"a": 1, "b": 0},
        {"a": 2, "b": 0},
    ]


def test_keys_depend_on_names_and_values_alone() -> None:
    assert config_key({"a": 1, "b": (2, 3)}) == config_key({"b": [2, 3], "a": 1})
    assert len({config_key(c) for c in ({"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"a": None}, {"b": 1})}) == 6


def test_keys_stay_as_they_are() -> None:
    """Journals of older versions are resumed by these keys: they must never change."""
    assert config_key({"block_M": 64, "swizzle": True, "policy": "full", "warp": (2, 4)}) == "b69e90576cf18eb6"


def boom(a: int) -> bool:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space(), "Space is empty: give axes, such as"),
        (lambda: Space([]), "Space is empty: it has no configuration"),
        (lambda: Space(a=[]), "Space is empty: axis 'a' has no values"),
        (lambda: Space([{"a": 1}], a=[1]), "a list of configs or axes, not both"),
        (lambda: Space(a=5), "axis 'a' is 5; an axis is a list of values, such as a="),
        (lambda: Space(a=frozenset({"b"})), "axis 'a' is frozenset({'b'}); an axis is a list"),
        (lambda: Space(lambda: {("a", 1)}), "configs must be a list or another series of dicts, got {('a', 1)}"),  # type: ignore[arg-type, return-value]
        (lambda: Space(a=[1], where="a > 5"), "a constraint must be callable, got 'a > 5'"),  # type: ignore[arg-type]
        (lambda: Space(a=lambda Q: [Q]), "axis 'a' needs Q; available: nothing"),
        (lambda: layout.fragments("compiler"), "'compiler' cannot be a layout's name"),
        (lambda: layout.fragments("two words"), "'two words' cannot be a layout's name"),
        (lambda: layout.fragments("rows", "rows"), "'rows' cannot be a layout's name"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        candidates_of(Workload(lambda **config: None, make()))
    assert message in str(caught.value).partition("\n")[0]


@pytest.mark.parametrize(
    ("space", "told", "line"),
    [
        (Space(alpha=[1], where=[lambda: True, lambda beta: beta]), "needs beta; available: N, alpha", None),
        (Space(alpha=[1], where=lambda alhpa: alhpa), "available: N, alpha (did you mean 'alpha'?)", None),
        (Space(a=[1], where=boom), "constraint on {'a': 1} raised ZeroDivisionError", "def boom(a: int) -> bool:"),
        (Space(a=lambda N: [N / 0]), "axis 'a' raised ZeroDivisionError", None),  # type: ignore[arg-type, return-value]
        (Space(lambda M: [{"a": M}]), "configs needs M; available: N", None),
    ],
)
def test_a_function_that_fails_is_named_by_its_line(space: Space, told: str, line: str | None) -> None:
    with pytest.raises(SpaceError) as caught:
        list(space.points({"N": 5}).walk())
    message, place, source = str(caught.value).split("\n")
    number = int(place.partition(" line ")[2].partition(",")[0])
    assert told in message and place.startswith(f'  File "{__file__}", line ')
    assert source.strip() == linecache.getline(__file__, number).strip() and (line or told[:20]) in source


def yields(a: int) -> Iterator[bool]:
    yield a > 5


async def waits(a: int) -> bool:
    return a > 5


def first(answer: Any, a: int) -> Any:
    return answer


@pytest.mark.parametrize(
    "where", [yields, waits, *(functools.partial(first, one) for one in (None, 1, "no", [], print))]
)
def test_a_constraint_that_answers_neither_true_nor_false_is_named_by_its_line(where: Any) -> None:
    for space in (Space(a=[1], where=where), Space([{"a": 1}], where=[lambda a: True, where])):
        with pytest.raises(SpaceError) as caught:
            list(space.points({}).walk())
        message, place, _ = str(caught.value).split("\n")
        assert re.fullmatch(
            r"Space: constraint on {'a': 1} returned (None|.*, an? \S+), but must return True or False", message
        )
        assert re.fullmatch(rf'  File "{__file__}", line \d+, in \w+', place)


def test_a_constraint_may_answer_one_boolean_of_numpy_or_torch() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    kinds = [bool, np.bool_, lambda yes: np.array([[yes]]), torch.tensor, lambda yes: torch.tensor([yes])]
    for kind in kinds:
        assert configs(Space(a=[1, 2, 3], where=lambda a, kind=kind: kind(a != 2))) == [{"a": 1}, {"a": 3}]
    for wrong in (np.array([True, False]), np.int64(1), torch.tensor([True, True]), torch.tensor(1)):
        with pytest.raises(SpaceError, match=r"constraint on {'a': 1} "):
            list(Space(a=[1], where=functools.partial(first, wrong)).points({}).walk())


@pytest.mark.parametrize("value", [object(), 1j, b"x", {1: 2}, {1, 2}, print])
def test_values_that_are_no_data_are_named(value: Any) -> None:
    with pytest.raises(SpaceError, match=f"here: .*{type(value).__name__}.*values must be None, bool, int"):
        normalise(value, "here")


class Int(int): ...


class Float(float): ...


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def kernel(block: Any = None) -> None: ...


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def kinds(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(kinds, value))
    return {kinds(k): kinds(v) for k, v in value.items()} if isinstance(value, dict) else (type(value), value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Int(3), 3), (Text("x"), "x"), (Float(1.5), 1.5), ([Float(0.5)], (0.5,)), ({Text("k"): Int(1)}, {"k": 1}),
        (True, True),
    ],
)  # fmt: skip
def test_subclasses_of_plain_values_are_the_plain_values(given: Any, kept: Any) -> None:
    spec = describe(Workload(kernel, Space(block=[given]), arguments={}))
    assert kinds(spec.configs[0]) == kinds({"block": kept})
    assert config_key(spec.configs[0]) == config_key({"block": kept})


def test_numpy_scalars_are_the_plain_values() -> None:
    np = pytest.importorskip("numpy")
    given = [np.int64(16), np.float64(1.5), np.float32(0.5), np.bool_(True), np.str_("x"), np.array(7)]
    assert kinds(normalise(given, "here")) == kinds((16, 1.5, 0.5, True, "x", 7))
    found = describe(Workload(kernel, Space(block=np.linspace(0.0, 1.0, 3)))).configs
    assert [kinds(config) for config in found] == [kinds({"block": value}) for value in (0.0, 0.5, 1.0)]
    for value in (np.array([1, 2]), np.dtype("float32"), np.complex128(1j), np.longdouble(1), np.datetime64("2026")):
        with pytest.raises(SpaceError, match="values must be None, bool, int"):
            normalise(value, "here")


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "an integer of 65 bits, but a journal stores 64"),
        (1 << 10**6, "an integer of 1000001 bits"),
        (Float("nan"), "a journal cannot store nan; make it a parameter's default, or use a string"),
        (-math.inf, "a journal cannot store -inf; make it a parameter's default, or use a string"),
        ("\ud800", r"'\ud800' has a surrogate"),
        (nested(MAX_NESTING + 1), f"nested deeper than {MAX_NESTING}"),
        (nested(100_000), f"nested deeper than {MAX_NESTING}"),
        (cyclic(), f"nested deeper than {MAX_NESTING}"),
        (Mute(), "<Mute> is a Mute; values must be None"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_what_a_journal_does_not_hold_is_refused_at_construction(value: Any, message: str) -> None:
    for make in (
        lambda: Space(block=[value]),
        lambda: Space([{"block": 1}, {"block": value}]),
        lambda: Workload(kernel, [{}], arguments={"block": value}),
        lambda: candidates_of(Workload(kernel, Space(block=lambda: [value]))),
        lambda: candidates_of(Workload(kernel, Space({"block": v} for v in (1, value)))),
    ):
        with pytest.raises(SpaceError) as caught:
            make()
        text = str(caught.value)
        assert message in text and "block" in text and "\n" not in text and len(text) < 500
        text.encode()


def test_what_is_accepted_is_read_back_from_a_journal(tmp_path: Path) -> None:
    """Also at the limits: the largest integers, and the deepest nesting."""
    for value in (MIN_INT, MAX_INT, nested(MAX_NESTING), {"a": nested(MAX_NESTING - 1)}, "\0\u2028é\U0001f600"):
        [config] = describe(Workload(kernel, [{"block": value}])).configs
        path = tmp_path / "j"
        path.unlink(missing_ok=True)
        write(path, Stream(total=1).candidate(0, 1.0, **config).finished().events)
        assert replay(path).best_config == config

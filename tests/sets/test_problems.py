"""Sets of problems: from sizes, lists, functions and files; and a workload for another problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from set_kernels import FREE, SCALE

import atune
from atune import Problems
from atune.errors import UnknownArgument, UsageError, WorkloadError
from atune.frontends.problems import parse_sizes
from atune.model.candidate import Problem

PAIRS = [{"M": 1, "N": 8}, {"M": 2, "N": 8}]


def arguments(problems: Problems) -> list[dict[str, Any]]:
    return [one.arguments for one in problems]


def test_sizes_give_every_combination_in_order_also_beside_a_list() -> None:
    found = arguments(Problems(M=[1, 2], N=8, dtype=("float16", "float32")))
    assert found == [{"M": m, "N": 8, "dtype": d} for m in (1, 2) for d in ("float16", "float32")]
    assert arguments(Problems(PAIRS, K=[3, 4])) == [{**pair, "K": k} for pair in PAIRS for k in (3, 4)]


def test_some_problems_of_a_set_make_another_one_and_each_is_there_once() -> None:
    problems = Problems([PAIRS[0], PAIRS[1], {**PAIRS[0], "M": np.int64(1)}])
    assert arguments(problems) == PAIRS
    assert list(Problems(problems[:1], K=np.int64(3))) == [Problem({**PAIRS[0], "K": 3})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '[{"M": 1, "N": 8}, {"M": 2, "N": 8}]'),
        ("a.jsonl", '{"M": 1, "N": 8}\n\n{"M": 2, "N": 8}\n'),
        ("a.csv", "M,N\n1,8\n2,8\n"),
        ("a.csv", "\ufeffM, N\n1, 8\n2, 8\n"),
    ],
)
def test_a_file_lists_problems(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    problems = Problems(tmp_path / name)
    assert arguments(problems) == PAIRS
    assert type(problems[0].arguments["M"]) is int


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Problems(), "the set is empty"),
        (lambda: Problems({"M": [1]}), "give a list of dictionaries"),
        (lambda: Problems([{"M": 1}, {"N": 1}]), "Problems, entry 2 has no 'M', but entry 1 has it"),
        (lambda: Problems(M=[object()]), "M"),
        (lambda: Problems("/nowhere.json"), "problems /nowhere.json: No such file or directory: give a .json"),
        (lambda: Problems(PAIRS, N=9), "each problem of the list or file has N, and N=… is given for all of them"),
        (lambda: Problems(M=[1, "x"]), "Problems, entry 2: M must be a number, got the text 'x'"),
        (lambda: Problems(M=["1", 2]), "Problems, entry 1: M must be a number, got the text '1'"),
        (lambda: parse_sizes(["M"]), "--arg 'M': give a name and its values"),
        (lambda: parse_sizes(["M=1", "M=2"]), "M is given twice"),
        (lambda: parse_sizes(["M=32,x"]), "--arg 'M=32,x', entry 2: M must be a number, got the text 'x'"),
    ],
)  # fmt: skip
def test_wrong_problems_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(").replace("+", r"\+")):
        make()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[{}]", "a.json, entry 1: each problem is a dictionary of arguments"),
        ("a.json", " ", "a.json: the file lists no problems: add one"),
        ("a.yaml", "- M: 1", "a.yaml: Expecting .*: give a .json, .jsonl or .csv file"),
        ("a.jsonl", '{"M": 1}\n\n{"M": 2\n', r"a.jsonl: .* line 2 column"),
        ("a.csv", "M,N\n", "a.csv: the file lists no problems"),
        *(
            ("a.csv", f"M,N\n1,8\n{row}\n", f"a.csv, entry 2 must have a value for each column, but has {has}")
            for row, has in (("2,", "none for N"), ("2,8,1", "more"))
        ),
        ("a.csv", "M;N\n1;8\n", "a.csv, entry 1: 'M;N' cannot be the name of an argument; a table has commas"),
        ("a.csv", "M,N\n1,8\nx,8\n", "a.csv, entry 2: M must be a number, got the text 'x'"),
        ("a.json", '[{"M": 1}, {"M": NaN}]', "a.json, entry 2: M: a journal cannot store nan"),
    ],
)
def test_a_file_of_something_else_is_refused_with_the_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        Problems(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('[{"M": 32.0}, {"M": 64}]', [32, 64]),
        ('[{"M": 0.5}, {"M": 2.0}]', [0.5, 2.0]),
        ('[{"M": true}, {"M": -1.0}]', [True, -1]),
    ],
)
def test_numbers_of_a_file_are_whole_where_all_of_an_argument_are(text: str, values: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    found = [problem.arguments["M"] for problem in Problems(tmp_path / "a.json")]
    assert [*map(repr, found)] == [*map(repr, values)]
    assert repr(Problems([{"M": 1.0}])[0].arguments["M"]) == "1.0", "a program's numbers stay as they are"


def test_sizes_of_the_command_line_are_numbers_or_text() -> None:
    found = parse_sizes(["M=1, 2", "N=0.5", "dtype= float16", "causal=true"])
    assert found == {"M": [1, 2], "N": [0.5], "dtype": ["float16"], "causal": [True]}


def test_a_workload_for_another_problem_keeps_all_else() -> None:
    other = SCALE.at({"n": 512})
    assert (other.arguments, other.flops, SCALE.arguments, SCALE.flops) == ({"n": 512}, 512, {"n": 256}, 256)
    assert SCALE.at({"n": 256}) is SCALE and other.kernel is SCALE.kernel and other.space is SCALE.space
    with pytest.raises(UnknownArgument, match="takes no argument 'm'"):
        SCALE.at({"m": 1})


@pytest.mark.parametrize("value", [None, "256"])
def test_an_untyped_argument_is_a_number_where_the_workload_has_one(value: Any) -> None:
    for work in (FREE, FREE.at({"n": 512})):
        with pytest.raises(WorkloadError, match=rf"argument 'n' must be a number, got {value!r}$"):
            work.at({"n": value})
    optional = atune.Workload(lambda n, window=None, block=1: n, [{"block": 1}], arguments={"n": 1, "window": 8})
    assert optional.at({"window": None}).arguments == {"n": 1, "window": None}


def test_a_problem_s_values_are_plain() -> None:
    """A set keeps no others: a kernel would get an enumeration's number for its member."""
    from value_kernels import Order, Tile

    for value, plain in ((Order.BACKWARD, "1"), (Tile(1, 2), r"\(1, 2\)"), ([Order.FORWARD], r"\(0,\)")):
        with pytest.raises(
            UsageError, match=rf"Problems, entry 1: order=.* the values in a set must be plain .* give {plain}"
        ):
            list(Problems([{"order": value}]))
    assert list(Problems([{"shape": [1, 2]}])) == [Problem({"shape": (1, 2)})]

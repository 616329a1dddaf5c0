"""The comparison of two sets of journals: ratios with their intervals, what else differs, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import write
from synthetic import run_of, stream_of

from atune.errors import UsageError
from atune.frontends.cli.main import main
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem
from atune.model.candidate import Problem
from atune.sets import compare

EVEN = [0.99, 0.995, 1.0, 1.005, 1.01] * 6
"""Samples of a quiet machine, ms."""


def scaled(factor: float) -> list[float]:
    return [factor * sample for sample in EVEN]


def tuned(problem: dict[str, Any], winner: int, factor: float = 1.0, **more: Any) -> Result:
    """Return a run that block=`winner` wins in `factor` ms."""
    return run_of(problem, {winner: (1.0,), 9: (5.0,)}, {winner: scaled(factor), 9: scaled(5)}, **more)


@pytest.mark.parametrize(("factor", "slower"), [(1.029, False), (1.031, True), (0.5, False)])
def test_it_is_slower_where_the_whole_interval_is_above_the_limit(factor: float, slower: bool) -> None:
    """The interval reaches 1 % to either side of the ratio, and the limit is 2 %."""
    found = compare(tuned({"M": 1}, 1), tuned({"M": 1}, 1, factor))
    assert [one.slower for one in found.problems] == [slower] and len(found.slower) == slower


def test_a_winner_that_is_gone_is_slower_and_a_new_one_is_not() -> None:
    none = run_of({"M": 1}, {1: ()})
    lost, new = compare(tuned({"M": 1}, 1), none), compare(none, tuned({"M": 1}, 1))
    assert len(lost.slower) == 1 and lost.slower[0].ratio is None and not new.slower
    assert str(lost).splitlines()[1].split() == ["toy", "M=1", "1", "none", "slower", "none", "(was", "block=1)"]


def test_problems_are_matched_by_kernel_and_arguments(tmp_path: Path) -> None:
    """Also where one is from a file, in which tuples are lists; of two runs of a problem the later counts."""
    for name, factor in (("first", 9.0), ("second", 1.0)):
        stream = stream_of({"shape": (8, 2)}, {1: scaled(factor)})
        stream.events = [msgspec.structs.replace(e, time=e.time + (name == "second")) for e in stream.events]
        write(tmp_path / f"{'b' if name == 'first' else 'a'}.jsonl", stream.events)
    (tmp_path / "begun.jsonl").touch()
    after = [tuned({"shape": (8, 2)}, 1, 1.1), tuned({"shape": (8, 3)}, 1), tuned({"shape": (8, 2)}, 2, workload="b")]
    rows = [TunedProblem(Problem({"n": n}), result) for n, result in enumerate([*after, None])]
    found = compare(tmp_path, rows)
    [one] = found.problems
    assert one.ratio is not None and one.ratio[1] == pytest.approx(1.1)
    assert (found.only_before, found.only_after) == (0, 2) and "0 only before, 2 only after" in str(found)
    with pytest.raises(UsageError, match=r"is in both sets:\n  before: toy shape=.*8, 2.\n  after: b shape="):
        compare(tmp_path, after[2])
    many = [tuned({"M": m}, 1) for m in range(99)]
    with pytest.raises(UsageError, match=r"before: toy M=0; toy M=1; .*…\n  after: toy M=99$"):
        compare(many, tuned({"M": 99}, 1))
    with pytest.raises(UsageError, match="fail_over must be zero or more"):
        compare(after, after, fail_over=-0.1)


def test_what_else_differs_is_one_line() -> None:
    before = [tuned({"M": m}, 1, versions={"tilelang": "0.1.14", "torch": "2.11"}, kernel="a" * 64) for m in (1, 2)]
    after = [
        tuned({"M": 1}, 2, 1.2, versions={"tilelang": "0.1.15", "torch": "2.11"}, kernel="a" * 64),
        tuned({"M": 2}, 1, versions={"tilelang": "0.1.15", "torch": "2.11"}, kernel="b" * 64),
    ]
    table, *more = str(compare(before, after)).split("\n\n")
    assert [line.split() for line in table.splitlines()] == [
        ["problem", "before", "ms", "after", "ms", "ratio", "(95", "%)", "winner"],
        ["toy", "M=1", "1", "1.2", "1.200", "(1.188–1.212)", "slower", "block=2", "(was", "block=1)"],
        ["toy", "M=2", "1", "1", "1.000", "(0.990–1.010)", "block=1"],
    ]
    changed = f"tilelang 0.1.14 → 0.1.15, kernel {'a' * 12} → {'b' * 12}"
    assert more == [f"problems   1 of 2 slower by more than 2 %\nchanged    {changed}"]


def test_the_exit_status_is_1_where_something_is_slower(tmp_path: Path, capsys: Any) -> None:
    for name, factor in (("before", 1.0), ("after", 1.1)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.jsonl", stream_of({"M": 1}, {1: scaled(factor)}).events)
    before, after = str(tmp_path / "before"), str(tmp_path / "after" / "a.jsonl")
    assert main(["compare", before, after]) == 1 and "slower" in capsys.readouterr().out
    assert main(["compare", before, after, "--fail-over", "10%"]) == 0
    assert main(["compare", after, before]) == 0
    capsys.readouterr()
    assert main(["compare", before, after, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["slower"], found["fail_over"], found["problems"][0]["slower"]) == (1, 0.02, True)
    assert main(["compare", before, after, "--fail-over", "0.02"]) == 2
    assert "must be a percentage of zero or more, such as 2%, got '0.02'" in capsys.readouterr().err

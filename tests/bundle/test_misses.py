"""Calls that no problem fits: what a bundle tells of them, to a file or a function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import TWO, entry, write
from processes import environment

from atune import Problems
from atune.bundle import BundleError, OutsideProblems, load, misses
from atune.bundle.misses import Misses, MissFile

CALLS = """
import sys, warnings
import torch
from atune.bundle import load
warnings.simplefilter("error")
found = load(sys.argv[1], misses=sys.argv[2])
for n in (100, 200, 300):
    for _ in range(4):
        found(torch.ones(n))
"""
RULE = {"others": {}, "sizes": {"n": [64, 1024]}, "root": {"problems": [0, 1]}}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_function_hears_of_the_first_the_second_and_the_fourth_call(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    found = load(write(tmp_path), misses=heard.append)
    for _ in range(9):
        with pytest.raises(OutsideProblems):
            found(torch.ones(65))
    found(torch.ones(64))
    assert [(one["count"], one["weight"]) for one in heard] == [(1, 1), (2, 1), (4, 2), (8, 4)]
    assert heard[0] == {"shapes": [[65]], "problem": {"n": 65}, "used": None, "by": "error", "count": 1, "weight": 1}


def test_a_listener_that_raises_does_not_end_a_call(tmp_path: Path) -> None:
    def broken(miss: Any) -> None:
        raise OSError("the disk is full")

    found = load(write(tmp_path, rule=[RULE]), misses=broken)
    with pytest.warns(RuntimeWarning, match="a miss could not be told: OSError: the disk is full"):
        assert float(found(torch.ones(100))[0]) == 2


def test_calls_that_could_not_be_told_are_told_with_the_next() -> None:
    heard: list[int] = []

    def busy_at_first(miss: dict[str, Any]) -> None:
        if miss["count"] <= 2:
            raise TimeoutError("the file is locked by another process")
        heard.append(miss["weight"])

    counted = Misses(busy_at_first)
    entry = counted.entry(misses.Miss([[1]], {"n": 1}, None, "error"))
    with pytest.warns(RuntimeWarning, match="could not be told"):
        for _ in range(9):
            counted.count(entry)
    assert heard == [4, 4]


def test_dimensions_that_are_no_arguments_are_not_written(tmp_path: Path) -> None:
    """Such as a batch's, or a stride, that the kernel takes as they come."""
    rows_of = {"dtype": "float32", "shape": ["m", "n"], "strides": ["stride", 1]}
    params = [rows_of, {"dtype": "float32", "shape": ["m", 2], "strides": None}]
    sums = [entry("sums", {"n": n}, params=params, outputs=[1], calls=[0, "stride", 1, "m", "n"]) for n in (4, 8)]
    path = tmp_path / "misses.jsonl"
    with pytest.raises(OutsideProblems):
        load(write(tmp_path / "b", sums), misses=path)(torch.ones(3, 6))
    assert rows(path) == [{"n": 6, "weight": 1}]


def test_empty_tensors_are_counted_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "misses.jsonl"
    found = load(write(tmp_path / "b"), misses=path)
    with pytest.raises(OutsideProblems):
        found(torch.ones(0))
    assert found.misses()[0]["problem"] == {"n": 0} and rows(path) == []


def test_two_processes_append_to_one_file_that_a_set_reads(tmp_path: Path) -> None:
    write(tmp_path / "b", rule=[RULE])
    path = tmp_path / "misses.jsonl"
    command = [sys.executable, "-c", CALLS, str(tmp_path / "b"), str(path)]
    started = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for one in started:
        assert one.communicate()[1] == "" and one.returncode == 0
    assert len(rows(path)) == 2 * 3 * 3
    found = Problems(path)
    assert {one.arguments["n"]: one.weight for one in found} == {100: 8, 200: 8, 300: 8}


def test_a_full_file_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MOST_BYTES", 30)
    path = tmp_path / "misses.jsonl"
    file = MissFile(path, ["n"])
    file({"shapes": [[7]], "problem": {"n": 7}, "weight": 1})
    with pytest.raises(OSError, match="is full: tune its problems, and remove it"):
        file({"shapes": [[8]], "problem": {"n": 8}, "weight": 1})
    assert rows(path) == [{"n": 7, "weight": 1}]
    path.unlink()
    file({"shapes": [[8]], "problem": {"n": 8}, "weight": 1})
    assert rows(path) == [{"n": 8, "weight": 1}]


def test_different_misses_are_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MOST_MISSES", 2)
    counted = Misses(None)
    for n in (1, 2, 3, 4, 1):
        counted.count(counted.entry(misses.Miss([[n]], {"n": n}, None, "error")))
    assert [(one["problem"], one["count"]) for one in counted()] == [({"n": 1}, 2), ({"n": 2}, 1), ({}, 2)]


def test_the_problem_of_kernels_of_fixed_sizes_is_told_by_the_shapes(tmp_path: Path) -> None:
    """M and K are told; N is K here as in the bundle, or must be named."""
    problems = []
    for m, n, k in ((64, 16, 16), (128, 32, 32)):
        shapes = [[m, k], [k, n], [m, n]]
        params = [{"dtype": "float32", "shape": shape, "strides": None} for shape in shapes]
        problems.append(entry("twice", {"M": m, "N": n, "K": k, "split": 2}, params=params, outputs=[2]))
    path = tmp_path / "misses.jsonl"
    found = load(write(tmp_path / "b", problems), misses=path)
    with pytest.raises(OutsideProblems), pytest.warns(RuntimeWarning, match="name K, M, N, split in the call"):
        found(torch.ones(32, 8), torch.ones(8, 8))
    with pytest.raises(OutsideProblems):
        found(torch.ones(32, 8), torch.ones(8, 8), N=8, K=8)
    assert rows(path) == [{"K": 8, "M": 32, "N": 8, "split": 2, "weight": 1}]
    assert found.misses()[0]["problem"] == {"M": 32, "split": 2}
    one = load(write(tmp_path / "one", problems[:1]), misses=path)
    with pytest.raises(OutsideProblems):
        one(torch.ones(32, 16), torch.ones(16, 16))
    assert one.misses()[0]["problem"] == {"M": 32, "N": 16, "K": 16, "split": 2}


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    write(tmp_path / "b", TWO)
    with pytest.raises(OSError, match="Is a directory"):
        load(tmp_path / "b", misses=tmp_path)
    with pytest.raises(BundleError, match="misses must be a file or a function, got 3"):
        load(tmp_path / "b", misses=3)  # type: ignore[arg-type]

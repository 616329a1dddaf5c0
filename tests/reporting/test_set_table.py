"""What a set's runs found: its page, and what a browser finds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import write
from reporting.test_page import parts_of, without_script
from reporting.test_page_in_browser import in_browser, opened
from synthetic import stream_of

from atune.errors import UsageError
from atune.frontends.cli.main import main
from atune.frontends.tune_set import read_set
from atune.journal.set_folder import open_set_folder
from atune.model.candidate import Problem
from atune.reporting.set_table import set_report


def made(folder: Path, runs: list[tuple[dict[str, Any], dict[int, list[float]]]], **header: Any) -> Path:
    """Write a set: for each problem the samples in ms of configurations ``block=index``; none if one failed."""
    paths, lock = open_set_folder(folder, [Problem(arguments) for arguments, _ in runs])
    lock.close()
    for path, (arguments, latencies) in zip(paths, runs, strict=True):
        if latencies:
            write(path, stream_of(arguments, latencies, **header).events)
    return folder


def cells(page: str) -> list[list[Any]]:
    """Return the rows of the table."""
    return [row["cells"] for row in parts_of(page)["all"]["rows"]]


THREE = [
    ({"M": 1, "N": 8}, {0: [1.0], 1: [2.0], 2: []}),
    ({"M": 2, "N": 8}, {0: [1.5], 1: [1.0], 2: []}),
    ({"M": 4, "N": 8}, {2: [3.0], 1: []}),
]


def test_the_table_names_each_problem_with_its_winner_or_why_it_has_none(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", [*THREE, ({"M": 8, "N": 8}, {1: []}), ({"M": 16, "N": 8}, {})])
    (folder / "0000.jsonl").unlink()
    write(folder / "0000.jsonl", stream_of(*THREE[0]).events[:-1])
    page = set_report(folder)
    table = parts_of(page)["all"]
    assert [column["title"] for column in table["columns"]] == [
        "problem", "latency ms", "× default", "× reference", "winner",
    ]  # fmt: skip
    assert cells(page) == [
        ["M=1, N=8", 1.0, None, None, "block=0 (so far)"],
        ["M=2, N=8", 1.0, None, None, "block=1"],
        ["M=4, N=8", 3.0, None, None, "block=2"],
        ["M=8, N=8", None, None, None, "no candidate worked: 1 gave wrong outputs: wrong"],
        ["M=16, N=8", None, None, None, "not begun"],
    ]
    assert [row["class"] for row in table["rows"]] == ["", "", "", "bad", ""]


def test_page_and_screen_say_the_same_of_cover_and_rule(tmp_path: Path) -> None:
    runs = [({"M": 2**k}, {0: [1.0 + k], 1: [1.0 + 5 * (k < 4)], 2: [9.0]}) for k in range(8)]
    folder = made(tmp_path / "s", runs)
    page, found = set_report(folder), read_set(folder)
    assert len(found.cover().configs) == 2
    few, rule, shown = found.cover(), found.rule(), str(found)
    worst, left = f"{100 * few.worst_regret:.2g} %", f"with each of {rule.tested} problems left out in turn"
    regret = "50 % slower on average, 400 % at worst"
    assert (rule.regret, rule.worst_regret) == (pytest.approx(0.5, abs=0.01), pytest.approx(4.0, abs=0.1))
    for text in (
        f"{len(few.configs)} configurations serve all problems, at most {worst} slower than the winners (chosen",
        f"other problems use the nearest problem's winner; {left}, that winner is {regret}",
        "8 of 8 have a winner",
    ):
        assert text in shown and text in without_script(page)
        assert any(text in item for item in parts_of(page)["list"]["items"])
    assert [row[0] for row in cells(page)] == [str(row.problem) for row in found]


def test_a_problem_that_failed_names_its_journal(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", [*THREE, ({"M": 8, "N": 8}, {1: []})])
    failed = "failed     M=8, N=8: no candidate worked: 1 gave wrong outputs: wrong; full output: atune show"
    assert f"{failed} {folder / '0003.jsonl'}" in str(read_set(folder)).splitlines()


@pytest.mark.parametrize(
    "runs", [THREE[:1], [({"M": 1}, {})], [({}, {0: [1.0]})], [({"M": 1}, {0: []}), ({"M": 2}, {0: []})]]
)
def test_a_set_of_one_and_one_without_a_winner_have_a_page(runs: Any, tmp_path: Path) -> None:
    page = set_report(made(tmp_path / "s", runs))
    assert len(cells(page)) == len(runs) and "winner of the nearest" not in page


@in_browser
def test_its_table_can_be_sorted_and_filtered(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(set_report(made(tmp_path / "s", THREE)))
    done = opened(tmp_path / "page.html", "--enable-logging=stderr")
    assert 'data-drawn="yes"' in done.stdout and 'id="filter"' in done.stdout, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr


def test_a_result_and_the_command_line_write_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = made(tmp_path / "gemm-1.5", THREE)
    read_set(folder).report(tmp_path / "page.html")
    assert main(["report", f"{folder}/"]) == 0
    assert capsys.readouterr().out == f"report     {tmp_path}/gemm-1.5.html\n"
    assert (tmp_path / "gemm-1.5.html").read_text() == (tmp_path / "page.html").read_text() == set_report(folder)
    monkeypatch.chdir(folder)
    assert main(["report", ".", "-o", "-"]) == 0 and "3 of 3 have a winner" in capsys.readouterr().out
    with pytest.raises(UsageError, match="is not the folder of a set"):
        set_report(tmp_path)

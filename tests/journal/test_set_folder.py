"""Folders of journals: a set's, listed by its ``set.json``, and others."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_streams import Stream, write

import atune.sets
from atune.errors import JournalError, UsageError
from atune.journal.set_folder import journals_in, open_set_folder, tuned_problems
from atune.model.candidate import Problem

PROBLEMS = [Problem({"M": size}) for size in (1, 2, 3)]


def finished(path: Path) -> None:
    write(path, Stream(total=1).candidate(0, 1.0).finished().events)


def test_both_readers_of_a_set_read_the_journals_that_it_lists_in_its_order(tmp_path: Path) -> None:
    paths, lock = open_set_folder(tmp_path, PROBLEMS[::-1])
    lock.close()
    (tmp_path / "stray.jsonl").write_text("no journal\n")
    finished(paths[2])
    finished(paths[0])
    assert journals_in(tmp_path) == [paths[0], paths[2]] == [tmp_path / "0000.jsonl", tmp_path / "0002.jsonl"]
    assert [row.error for row in tuned_problems(tmp_path)] == ["", "not begun", ""]
    (tmp_path / "set.json").unlink()
    with pytest.raises(JournalError, match="stray"):
        atune.sets.regret_matrix(tmp_path)


def test_a_run_keeps_others_out_of_its_set_until_it_has_ended(tmp_path: Path) -> None:
    _, lock = open_set_folder(tmp_path, PROBLEMS[:2])
    with pytest.raises(JournalError, match=r"another run is writing the journal .*lock: wait until it ends"):
        open_set_folder(tmp_path, PROBLEMS)
    lock.close()
    open_set_folder(tmp_path, PROBLEMS)[1].close()
    assert len(tuned_problems(tmp_path)) == 3 and [path.name for path in tmp_path.iterdir()] == ["set.json"]


def test_what_is_refused_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text("{}")
    with pytest.raises(UsageError, match="is not the folder of a set"):
        open_set_folder(tmp_path, PROBLEMS)
    (tmp_path / "set.json").unlink()
    open_set_folder(tmp_path, PROBLEMS)[1].close()


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="is not the folder of a set, and is not empty: give a new folder"):
        open_set_folder(tmp_path, PROBLEMS)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_where_nothing_has_begun_the_problems_are_replaced(tmp_path: Path) -> None:
    open_set_folder(tmp_path, [Problem({"m": 1})])[1].close()
    [path], lock = open_set_folder(tmp_path, [Problem({"M": 1})])
    lock.close()
    assert [str(row.problem) for row in tuned_problems(tmp_path)] == ["M=1"]
    finished(path)
    with pytest.raises(UsageError, match=f"journal {tmp_path}: m=1 and M=1 have different names of arguments"):
        open_set_folder(tmp_path, [Problem({"m": 1})])


@pytest.mark.parametrize("left", [b"", b'{"crc":"0123abcd","event":{"event":"run_star'])
def test_a_problem_whose_run_was_killed_in_its_first_line_is_not_begun(left: bytes, tmp_path: Path) -> None:
    """It begins anew, and the other problems can be read."""
    paths, lock = open_set_folder(tmp_path, PROBLEMS[:2])
    lock.close()
    finished(paths[0])
    paths[1].write_bytes(left)
    assert journals_in(tmp_path) == [paths[0]]
    assert [row.error for row in tuned_problems(tmp_path)] == ["", "not begun"]
    open_set_folder(tmp_path, PROBLEMS[:2])[1].close()
    assert paths[0].exists() and not paths[1].exists()

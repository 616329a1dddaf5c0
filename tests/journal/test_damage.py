"""Damage of every kind to a journal: a right result, a clean truncation or a clear error; never a wrong result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from event_streams import Stream, write

from atune.errors import JournalError
from atune.frontends.cli.main import main
from atune.journal import reader
from atune.journal.reader import ends, read, replay
from atune.reporting.export import table
from atune.reporting.summary import summary

STREAM = Stream(total=4, default=0).ready(3.0).candidate(0, 2.0, tile=(1, 2)).candidate(1, 1.0).candidate(2)
STREAM.proposed(3).lowered(3, "c1").aliased(3, 1)
EVENTS = STREAM.final({1: [1.0, 1.1], 0: [2.0, 2.2]}).finished().events
DATA = Path(__file__).parents[1] / "data"


def contents(path: Path) -> tuple[Any, ...]:
    """Return all that `replay` reads from a journal."""
    result = replay(path)
    return summary(result), result.records, result.final, table(result), result.speedup_over_default


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", EVENTS)


@pytest.fixture
def truths(tmp_path: Path, path: Path) -> list[tuple[Any, ...]]:
    """The contents of a journal of the first n events, for each n."""
    return [contents(write(path, EVENTS[:n])) for n in range(1, len(EVENTS) + 1) if not path.unlink()]


def test_cut_at_every_byte_it_has_the_contents_of_its_whole_lines(path: Path, truths: list[tuple[Any, ...]]) -> None:
    whole, events = path.read_bytes(), read(path)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        if lines:
            assert read(path) == events[:lines]
            if b"\n" in whole[cut - 2 : cut]:
                assert contents(path) == truths[lines - 1]
        else:
            with pytest.raises(JournalError, match="not a journal of atune"):
                replay(path)


@pytest.mark.parametrize("torn", [b"", b"\n", b'{"crc":"12', b"x" * 20_000, b"x" * 20_000 + b"\n"])
def test_the_last_event_is_that_of_the_last_whole_line(path: Path, torn: bytes) -> None:
    """As it is for who reads the whole journal, of any length."""
    lines, events = path.read_bytes().splitlines(keepends=True), read(path)
    for n in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:n]) + torn)
        assert ends(path) == (events[0], events[n - 1]) and read(path) == events[:n]


def test_a_journal_that_shrinks_while_its_ends_are_read_has_no_last_event(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody truncates it in place, as on NFS."""

    @contextmanager
    def shrinking(path: Path) -> Iterator[Any]:
        with path.open("rb") as file:
            first = file.readline()
            yield SimpleNamespace(seek=lambda *_: 100 * len(first), read=lambda _: b"", readline=lambda _: first)

    monkeypatch.setattr(reader, "regular_file", shrinking)
    assert ends(path) == (EVENTS[0], None)


def test_with_any_byte_flipped_it_tells_the_truth_or_refuses(path: Path, truths: list[tuple[Any, ...]]) -> None:
    """Only damage to the last line, or to the line feed before it, can pass for a torn tail."""
    whole = path.read_bytes()
    refused = 0
    last_two = whole[:-1].rfind(b"\n") - 1
    for at in range(len(whole)):
        for bit in (1 << at % 8,) if at % 7 else (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            try:
                assert contents(path) in truths[-3:] and at >= last_two, f"byte {at}, bit {bit}"
            except JournalError as error:
                refused += 1
                assert str(path) in str(error)
    assert refused > len(whole) * 1.5


def test_the_command_line_names_the_damaged_line_and_how_to_keep_those_before_it(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"x" + lines[5], *lines[6:]]))
    assert main(["replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert "line 6: damaged" in err and "save them as a journal with `head -n 5`" in " ".join(err.split())
    path.write_bytes(b"".join(lines[:5]))
    assert [record.index for record in replay(path).records] == [0]


def test_brackets_inside_texts_are_no_nesting(tmp_path: Path) -> None:
    text = '[{"\\' * 200
    path = write(tmp_path / "run.jsonl", Stream(total=1).proposed(0, a=text).events)
    assert replay(path).records[0].config == {"a": text}


def test_a_journal_whose_events_make_no_sense_is_folded_without_a_traceback(tmp_path: Path) -> None:
    """Checksums right, content odd: outcomes of unknown candidates, circles of duplicates."""
    stream = Stream(total=2, default=0)
    stream.measured(7, 1.0).aliased(7, 8).aliased(8, 7).aliased(7, 7).built(9).failed(9).proposed(-1).measured(-1, 0.0)
    stream.proposed(0).measured(0, 2.0).final({0: [2.0], -1: [0.0], 5: [1.0]}).finished()
    result = replay(write(tmp_path / "odd.jsonl", stream.events))
    assert table(result) and summary(result)
    _ = (result.speedup_over_default, result.best)


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("schema-*.jsonl")))
def test_stored_journals_are_read_for_good(name: str) -> None:
    """One of each schema that a release has written. From that release on these files are never written again."""
    result = replay(DATA / name)
    expected = json.loads((DATA / name).with_suffix(".json").read_text())
    found = json.loads(json.dumps(summary(result)))
    assert {key: found[key] for key in expected["summary"]} == expected["summary"]
    assert table(result).splitlines() == expected["table"]
    assert expected["kinds"] == sorted({type(event).__name__ for event in read(DATA / name)})


def test_resuming_at_the_command_line_says_what_it_would_run_before_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that this journal names is not there: nothing is run, and the journal stays as it was."""
    path = write(tmp_path / "j", EVENTS[:-1])
    before = path.read_bytes()
    assert main(["resume", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.index(f"resuming {path}, 4 of 4 candidates done") < err.index(
        "the journal's workload came from toy.py, which is gone: give workload= (--workload FILE.py:NAME)"
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_a_compressed_journal_is_named_so(suffix: str, tmp_path: Path) -> None:
    packed = tmp_path / f"run.jsonl.{suffix}"
    packed.write_bytes(bytes(range(256)))
    with pytest.raises(JournalError, match=r"line 1: the file is compressed: unpack it first$"):
        replay(packed)

"""`atune explain`: what is asked, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from event_streams import Stream

from atune.frontends.cli.main import main
from atune.frontends.cli.preview import parse_config
from atune.journal.writer import write_journal

ROOT = Path(__file__).parents[2]
WEIGHTED = str(ROOT / "tests" / "layout_kernels.py:WEIGHTED")
SCALE = str(ROOT / "tests" / "set_kernels.py:SCALE")
JOURNAL = str(ROOT / "tests" / "data" / "schema-1.jsonl")


def test_the_report_of_a_kernel_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", WEIGHTED, "--target", "sm_90a", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    facts, machine = printed["facts"], printed["machine"]
    assert machine["registers"] > 0 and machine["stack_bytes"] == 0
    assert (facts["threads"], facts["smem_bytes"]) == (128, 0) and printed["occupancy"]["blocks"] >= 1
    assert len(facts["layouts"]["fragments"]) == 3 and len(facts["layouts"]["loops"]) == 2


def test_a_configuration_that_does_not_lower_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", WEIGHTED, "--target", "sm_90a", "--config", "rows=no", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "1 of 1 configurations failed to compile:" in err and "for example, candidate 0: rows='no'" in err
    error = json.loads(out)["error"]
    assert error["kind"] == "CompileFailed" and error["where"]["file"] == WEIGHTED.partition(":")[0]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([WEIGHTED, "3"], "an INDEX needs a journal"),
        ([WEIGHTED, "--config", "128"], "--config '128': give each name once"),
        ([WEIGHTED, "--config", "a=1,a=2"], "--config 'a=1,a=2': give each name once"),
        ([WEIGHTED, "--config", "a=1), _(b=2"], "--config 'a=1), _(b=2': give each name once"),
        ([WEIGHTED, "--config", "a=1", "--config", "a=2", "--config", "a=3"], "give one, or give two"),
        ([JOURNAL, "--config", "a=1"], "give the candidate's INDEX"),
        ([WEIGHTED, "--arg", "N=1,2"], "--arg N: explain takes a single problem: give N a single value"),
        ([JOURNAL, "12345"], f"has no candidate 12345; to list its candidates: atune replay {JOURNAL} --table"),
    ],
)
def test_what_cannot_be_explained_is_said_before_anything_starts(
    arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == 2
    assert wrong in capsys.readouterr().err


def test_a_name_that_the_kernel_does_not_take_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", SCALE, "--target", "c", "--config", "blok=16"]) == 2
    assert "the kernel takes no argument 'blok'; it takes block (did you mean 'block'?)" in capsys.readouterr().err


def test_a_candidate_is_explained_for_the_problem_of_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which need not be the problem of the file: n is 256 there."""
    stream = Stream(total=1).ready().candidate(0, 1.0, block=16).finished()
    stream.events[0] = msgspec.structs.replace(stream.events[0], origin=SCALE, arguments={"n": 512})
    write_journal(str(tmp_path / "j.jsonl"), stream.events)  # type: ignore[arg-type]
    assert main(["explain", str(tmp_path / "j.jsonl"), "--target", "c", "--source"]) == 0
    assert "bx < 32" in capsys.readouterr().out


def test_a_failing_candidate_of_a_journal_keeps_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream(total=8).ready().candidate(7, 1.0, rows="no").finished()
    stream.events[0] = msgspec.structs.replace(stream.events[0], origin=WEIGHTED, arguments={})
    write_journal(str(tmp_path / "j.jsonl"), stream.events)  # type: ignore[arg-type]
    assert main(["explain", str(tmp_path / "j.jsonl"), "7", "--target", "sm_90a"]) == 1
    assert "for example, candidate 7: rows='no'" in capsys.readouterr().err


def test_a_configuration_is_read_from_text() -> None:
    config = {"tile": (64, 32), "order": "row-major", "swizzle": True, "k": -2}
    assert parse_config("tile=(64, 32), order=row-major,swizzle=True,k=-2") == config and parse_config("") == {}


def test_of_two_configurations_only_what_differs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", SCALE, "--target", "c", "--config", "block=16", "--config"]
    assert main([*command, "block=32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == ["--- A", "+++ B", "@@ -1,5 +1,5 @@", "-config     block=16", "+config     block=32"]
    assert [line[:1] for line in lines if "bx < " in line] == ["-", "+"]
    assert main([*command, "block=16"]) == 0
    assert capsys.readouterr().out == "the facts and the source are the same\n"

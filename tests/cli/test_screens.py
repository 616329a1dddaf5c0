"""What commands say on a screen: of any width, of a run that has not finished, and where nothing is measured."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream, write

from atune.frontends.cli.main import main, make_parser
from atune.frontends.cli.output import print_message
from atune.journal.events import BuildFailed, RunFinished
from atune.journal.result import Result
from atune.model.device import Target
from atune.reporting.summary import result_lines
from atune.reporting.text import COMMANDS, Line, fitted, plain

KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
BROKEN = """
import atune, tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1], target="c")
def kernel(block=1):
    raise ValueError("no such block")

WORKLOAD = atune.Workload(kernel, {"block": [1, 2]})
"""


def run_of(*parts: str) -> Stream:
    stream = Stream(total=2).ready(2.0).candidate(0, 1.0).candidate(1, 1.5)
    for part in parts:
        getattr(stream, part)()
    return stream


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", run_of("finished").events)


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, **environment: str) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in ({"TERM": "xterm", "NO_COLOR": "", "COLUMNS": str(columns)} | environment).items():
        monkeypatch.setenv(name, value)


def test_lines_are_broken_between_words_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "latency    0.1816 ms, 1.03 times slower than the reference (0.1758 ms)\njournal    /a/" + "long" * 20
    lines = [Line(line) for line in text.split("\n")]
    assert fitted(lines, sys.stdout) == text  # no terminal
    on_terminal(monkeypatch, 40)
    shown = fitted(lines, sys.stdout).splitlines()
    assert shown[:2] == ["latency    0.1816 ms, 1.03 times slower", "  than the reference (0.1758 ms)"]
    assert fitted([lines[0], Line("           2.88 times")], sys.stdout).endswith("\n  2.88 times")
    assert shown[-1] == "journal    /a/" + "long" * 20  # what is copied stays whole
    on_terminal(monkeypatch, 60)
    assert fitted(lines, sys.stdout).splitlines()[1] == "           (0.1758 ms)"


def test_commands_and_numbers_with_their_units_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 40)
    command = "             full output: atune show /a/journal/with/a/path.jsonl 17"
    shown = fitted([Line("winner     x=1"), Line(command)], sys.stdout).splitlines()
    assert shown[-1] == "    atune show /a/journal/with/a/path.jsonl 17"
    sentence = fitted([Line("error: atune cannot join the cluster at 10.0.0.1, which does not answer")], sys.stdout)
    assert sentence.splitlines()[0] == "error: atune cannot join the cluster at"

    counts = [Line("candidates 288: 243 measured, 45 failed; 9 s")]
    on_terminal(monkeypatch, 43)
    assert fitted(counts, sys.stdout).splitlines() == ["candidates 288: 243 measured, 45 failed;", "  9 s"]


def test_every_command_stays_whole() -> None:
    [subparsers] = [one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction)]
    assert set(COMMANDS.split("|")) == set(subparsers.choices)


def test_an_error_is_red_and_goes_on_below_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    on_terminal(monkeypatch, 40)
    print_message("no candidate worked: 16 failed, 272 not tried\n  16 failed to lower: there is no layout for it")
    print_message("interrupted", kind="")
    assert capsys.readouterr().err.splitlines() == [
        "\x1b[1;31matune: error: no candidate worked: 16\x1b[0m",
        "  \x1b[1;31mfailed, 272 not tried\x1b[0m",
        "  16 failed to lower: there is no layout",
        "    for it",
        "atune: interrupted",
    ]


def test_the_answer_comes_first_and_bold_where_a_terminal_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(total=3, default=1).ready(2.0).candidate(0, 1.0).candidate(1, 4.0).candidate(2)
    result = Result.from_events(stream.final({0: [1.0], 1: [4.0]}, [2.0]).finished().events, "j.jsonl")
    lines = result_lines(result)
    on_terminal(monkeypatch, 80)
    shown = fitted(lines, sys.stdout).splitlines()
    assert shown[0] == "\x1b[2mwinner     \x1b[0m\x1b[1;32mblock=0\x1b[0m"
    assert shown[1].startswith("\x1b[2mlatency    \x1b[0m\x1b[1m1 ms, ")
    counts = shown.index("candidates 3: 2 measured, 1 failed; 1 s")
    assert shown[counts + 1] == ""
    assert shown[counts + 2].startswith("\x1b[2mfailures   \x1b[0m\x1b[33m1 gave wrong outputs: wrong")
    assert shown[-2:] == ["\x1b[2mjournal    \x1b[0m\x1b[2mj.jsonl\x1b[0m", "next       atune report j.jsonl"]
    for without in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        on_terminal(monkeypatch, 120, **without)
        assert fitted(lines, sys.stdout) == plain(lines)
    assert "\x1b" not in plain(lines)


def failing(detail: str, target: str = "", reason: str = "exhausted", message: str = "no layout") -> str:
    """Return the summary of a run in which two candidates of three failed to lower, as `detail` shows."""
    stream = Stream(total=3)
    if target:
        stream.events[0] = msgspec.structs.replace(stream.events[0], target=Target("cuda", target))
    for index in range(2):
        stream.proposed(index).add(BuildFailed, index=index, kind="lower", message=message, detail=detail)
    events = stream.add(RunFinished, wall_s=1.0, reason=reason).events
    return plain(result_lines(Result.from_events(events, "j")))


def test_who_tunes_a_kernel_that_lowers_for_no_cpu_is_told_what_needs_no_gpu() -> None:
    command = "atune tune toy.py:WORKLOAD --compile-only --target sm_90a"
    assert command in failing("by tvm") and "resume" not in failing("by tvm")
    ended = failing("by tvm", reason="unlowered")
    assert "the run stopped after 2 identical failures; to try the other candidates: atune resume j" in ended
    own = failing('  File "mine.py", line 3, in kernel\n    raise')
    for other in (own, failing("by tvm", "sm_90a"), failing("by tvm", message="TypeError: the kernel returned None")):
        assert "--compile-only" not in other


@pytest.mark.parametrize(
    ("parts", "reported"),
    [
        (["finished"], None),
        (["interrupted"], "interrupted"),
        ([], "not yet: the run is still going, or it was killed"),
        (["interrupted", "resumed", "finished"], None),
    ],
)
def test_replay_says_how_a_run_ended_that_did_not_finish(
    parts: list[str], reported: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl", run_of(*parts).events)
    assert main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [line for line in lines if line.startswith("ended")]
    assert printed == ([] if reported is None else [f"ended      {reported}"])
    assert lines[-1] == f"next       atune {'report' if reported is None else 'resume'} {path}"


def test_a_folder_and_a_cache_folder_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert f"{tmp_path} is not the folder of a set: it has no set.json\n" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "file"))
    assert main(["tune", f"{KERNELS}:SCALED", "--target", "c", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"atune: error: cannot create the folder of the journal {tmp_path}/file/journals/")
    assert err.endswith(": a part of the path is a file: set ATUNE_CACHE_DIR to a folder that you may write\n")


def test_watch_of_a_killed_run_says_that_no_run_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def leave(message: str, kind: str) -> None:
        said.append(message)
        raise KeyboardInterrupt

    monkeypatch.setattr("atune.frontends.cli.runs.print_message", leave)
    assert main(["watch", str(write(tmp_path / "j", run_of().events))]) == 130
    assert said == ["no process on this machine is writing this journal; press Ctrl-C to leave"]


def test_a_report_goes_to_stdout_where_that_is_asked(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(journal), "-o", "-"]) == 0
    page = capfdbinary.readouterr().out
    assert page.startswith(b"<!") and page.rstrip().endswith(b"</html>")
    assert main(["export", str(journal), "--to", "csv", "-o", "-"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"index,key,status,")
    assert not (tmp_path / "-").exists()


def test_compile_only_of_kernels_that_all_fail_says_why_and_fails(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    command = ["tune", f"{tmp_path}/broken.py:WORKLOAD", "--compile-only", "--target", "sm_90a", "--workers", "1"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert out.startswith("compiled   0 of 2 candidates, 0 distinct, 2 failed; ")
    assert "target     cuda (sm_90a); nothing was measured" in out
    assert "failures   2 failed to lower: ValueError: no such block\n" in out and "candidate 0: block=1\n" in out
    assert 'broken.py", line 7, in kernel' in out
    assert main([*command, "--json"]) == 1
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert (failure["count"], failure["where"]["line"], failure["example"]["config"]) == (2, 7, {"block": 1})

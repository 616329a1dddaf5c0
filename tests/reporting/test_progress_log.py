"""Progress and log show events, and touch nothing of the program that uses them."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import time

import pytest
from event_streams import Stream
from processes import environment

from atune.journal.events import BenchmarkStarted, FinalStarted, RunResumed, Warned
from atune.model.settings import Budget
from atune.reporting.log import stream_logger
from atune.reporting.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_of(total: int, step_s: float = 0.1) -> Stream:
    stream = Stream(total=total, step_s=step_s).ready(1.0)
    for index in range(total):
        stream.candidate(index, *([2.0 - index / total] if index % 5 else []))
    return stream.finished()


def written(stream: Stream, out: io.StringIO, **options: object) -> str:
    with Progress(out, **options) as progress:  # type: ignore[arg-type]
        for event in stream.events:
            progress.on_event(event)
    return out.getvalue()


def shown(stream: Stream, **options: object) -> list[str]:
    return written(stream, io.StringIO(), **options).splitlines()


def test_elsewhere_than_on_a_terminal_a_line_comes_every_five_seconds_at_most() -> None:
    stream = run_of(100)  # 403 events in 40 s
    lines = shown(stream)
    assert 5 <= len(lines) <= 10
    assert lines[-1].startswith(
        "atune: [40 s] 100/100 compiled, 100/100 measured, 20 failed; best 1.01 ms (first timing): block=99"
    )
    assert lines[3].startswith("atune: [20 s, about 20 s left] ")
    assert all("\x1b" not in line for line in lines)


def test_what_nobody_asked_for_is_a_line_soon_then_one_a_minute_and_nothing_else() -> None:
    stream = run_of(100, step_s=0.5).add(Warned, message="the governor is powersave")  # 403 events in 200 s
    first, *later = shown(stream, seldom=True)
    assert re.match(r"atune: \[[56] s\] ", first)
    assert [line[:14] for line in later] == ["atune: [1 min ", "atune: [2 min ", "atune: [3 min "]
    assert len(shown(run_of(100), seldom=True)) == 1 and shown(run_of(10), seldom=True) == []


def test_totals_follow_the_budget_and_what_needs_no_measuring() -> None:
    stream = (
        Stream(total=288).candidate(0, 1.0).proposed(1).pruned(1).proposed(2).aliased(2, 0).proposed(3).build_failed(3)
    )
    assert (
        "1/10 compiled, 1/7 measured, 1 failed, 1 duplicate, 1 pruned;"
        in shown(stream, budget=Budget(candidates=10))[-1]
    )
    with Progress(io.StringIO(), budget=Budget(seconds=1.0)) as progress:
        for event in stream.events:
            progress.on_event(event)
        assert progress.left_s == 0.0


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_while_a_candidate_hangs_its_deadline_is_shown_and_no_time_left(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event comes meanwhile. Afterwards the time left is estimated again."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Stream(total=9, benchmark={"benchmark_timeout_s": 60}).candidate(0, 1.0).candidate(1, 1.0)
    for index in (2, 3):
        stream.add(BenchmarkStarted, index=index, device=f"gpu-{index}")
    out, later_s = kind(), iter([3.0, 20.0, 80.0])
    with Progress(out) as progress:
        for event in stream.events:
            progress.on_event(event)
        monkeypatch.setattr(time, "time", lambda: stream.events[-1].time + next(later_s))
        ticked = []
        for _ in range(3):
            before = len(out.getvalue())
            progress.tick()
            ticked.append(out.getvalue()[before:])
        assert ("left" in ticked[0]) is (kind is Terminal)  # elsewhere, 5 s have not passed
        assert "[21 s] " in ticked[1] and "0 failed; candidate 2 has run for 20 s of at most 1 min 00 s" in ticked[1]
        assert "candidate 2 has run for 1 min 00 s of at most 1 min 00 s" in ticked[2]
        stream.mono, stream.step_s = 90.0, 10.0
        for event in stream.measured(2, 1.0).measured(3, 1.0).events[-2:]:
            progress.on_event(event)
        assert "left" in out.getvalue()[before + len(ticked[2]) :]
    shown = len(out.getvalue())
    progress.tick()
    assert len(out.getvalue()) == shown


def test_what_failed_does_not_count_as_compiled() -> None:
    stream = Stream(total=3)
    for index in range(3):
        stream.proposed(index).build_failed(index)
    last = shown(stream.finished())[-1]
    assert " 0/3 compiled, 0/0 measured, 3 failed; nothing measured yet" in last
    assert "left" not in last  # though no event says that a candidate that fails to compile was lowered
    assert "2/2 measured, 2 failed; nothing works so far" in shown(Stream(total=2).candidate(0).candidate(1))[-1]


def test_totals_of_a_resumed_run_are_never_below_what_was_done_before() -> None:
    stream = Stream(total=288).candidate(0, 1.0).candidate(1, 1.5).candidate(2, 1.2).proposed(3).interrupted().resumed()
    assert "3/3 compiled, 3/3 measured" in shown(stream, budget=Budget(candidates=2))[-1]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_earlier_parts_count_and_are_not_shown(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = run_of(10).add(Warned, message="of before")
    now = 1.7e9 + stream.mono
    assert written(stream, kind(), since=now) == ""
    text = written(stream.add(RunResumed, part=1, versions={}), kind(), since=now)
    assert "10/10 measured" in text and "of before" not in text


@pytest.mark.parametrize(
    ("recorded", "total"),
    [({"candidates": 2, "seconds": None}, 2), ({"percent": 50.0}, 5), ({"percent": "x"}, 10)],
)
def test_a_run_that_is_watched_has_the_budget_of_its_header(recorded: object, total: int) -> None:
    stream = Stream(total=10, budget=recorded).candidate(0, 1.0)
    assert f"1/{total} compiled, 1/{total} measured" in shown(stream)[-1]
    assert "1/10 compiled" in shown(stream, budget=Budget())[-1]  # the present part's own


def screen(text: str) -> list[list[str]]:
    """Return what a terminal shows after each write of `text`, which writes over its last lines."""
    rows, seen = [""], []
    for piece in re.split(r"(\r\x1b\[K(?:\x1b\[A\x1b\[K)*)", text):
        if piece.startswith("\r"):
            seen.append([row for row in rows if row])
            del rows[len(rows) - piece.count("\x1b[K") :]
            rows.append("")
        else:
            first, *more = piece.split("\n")
            rows = [*rows[:-1], rows[-1] + first, *more]
    return [*seen, [row for row in rows if row]]


def on_terminal(stream: Stream, monkeypatch: pytest.MonkeyPatch, columns: int = 160) -> list[list[str]]:
    """Return what a terminal shows of `stream`, as rows; nothing is left at the end."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    *frames, after = screen(written(stream, Terminal()))
    assert not [row for row in after if not row.startswith("warning")]
    assert all(len(row) < columns for frame in frames for row in frame if not row.startswith("warning"))
    return [frame for frame in frames if frame]


def test_narrow_terminals_get_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(total=1080).ready(1.0)
    for index in range(23):
        stream.candidate(index, 2.0 - index / 100, block_M=64 * index, **{f"axis_{k}": k for k in range(20)})
    for columns in (40, 80):
        one, two = on_terminal(stream, monkeypatch, columns)[-1]
        assert "23/1080 compiled" in one and "best 1.79 ms" in f"{one} {two}" and two.endswith("…")


def test_the_final_and_warnings_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(total=2).ready().candidate(0, 1.0).candidate(1, 2.0)
    stream.add(FinalStarted, device="cpu", indices=(0, 1)).add(Warned, message="hot")
    warning, last = on_terminal(stream, monkeypatch)[-1]
    assert warning == "warning: hot" and "final of 2; best 1 ms" in last
    assert "final of" not in on_terminal(stream.final({0: [1.0], 1: [2.0]}), monkeypatch)[-1][-1]


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = written(run_of(3), Terminal())
    assert "\x1b" not in text and "3/3 compiled" in text


def test_the_log_for_people_is_short_and_has_no_samples() -> None:
    out = Terminal()
    Stream(total=2).candidate(0, 1.0, 1.1).final({0: [1.0]}).finished().logged(stream_logger(out))
    text = out.getvalue()
    assert "candidate_measured" in text and "latency_ms" in text and "samples_us" not in text


def test_the_log_configures_no_ones_logging() -> None:
    """In a process of its own: neither structlog's defaults nor the root logger change."""
    code = """
import io, logging
before = (list(logging.root.handlers), logging.root.level, logging.raiseExceptions)
from event_streams import Stream
from atune.reporting.log import stream_logger
import structlog
defaults = structlog.get_config()


class Terminal(io.StringIO):
    def isatty(self): return True
for stream in (io.StringIO(), Terminal()):
    Stream().candidate(0, 1.0).logged(stream_logger(stream))
assert not structlog.is_configured()
assert structlog.get_config() == defaults
assert (list(logging.root.handlers), logging.root.level, logging.raiseExceptions) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), timeout=30)
    assert not any("atune" in name for name in logging.root.manager.loggerDict)


def test_two_runs_at_once_do_not_mix_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with Progress(Terminal()):
        assert written(run_of(2), Terminal()) == ""
    assert "2/2 compiled" in written(run_of(2), Terminal())

"""Progress and log show events, and touch nothing of the program that uses them."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from event_streams import Stream

from atune.journal.events import FinalStarted, RunResumed, Warned
from atune.model.device import NO_GPU
from atune.model.settings import Budget
from atune.reporting.log import event_logger
from atune.reporting.progress import Progress, shortened


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
    assert "about 20 s left" in lines[3]
    assert all("\x1b" not in line for line in lines)


def test_an_interrupted_run_shows_how_far_it_came() -> None:
    lines = shown(Stream(total=9).candidate(0, 1.0).proposed(1))
    best = "best 1 ms (first timing): block=0"
    assert lines == [f"atune: [0 s] 1/9 compiled, 1/9 measured, 0 failed; {best}; tried 1 of 9, about 4 s left"]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_shown_of_a_run_that_never_started(
    stream: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = stream()
    with Progress(out):
        pass
    assert out.getvalue() == ""


def test_totals_follow_the_budget_and_what_needs_no_measuring() -> None:
    stream = (
        Stream(total=288).candidate(0, 1.0).proposed(1).pruned(1).proposed(2).aliased(2, 0).proposed(3).build_failed(3)
    )
    assert (
        "1/10 compiled, 1/7 measured, 1 failed, 1 duplicates, 1 pruned;"
        in shown(stream, budget=Budget(candidates=10))[-1]
    )
    with Progress(io.StringIO(), budget=Budget(seconds=1.0)) as progress:
        for event in stream.events:
            progress.on_event(event)
        assert progress.left_s == 0.0


def test_what_failed_does_not_count_as_compiled() -> None:
    stream = Stream(total=3)
    for index in range(3):
        stream.proposed(index).build_failed(index)
    assert " 0/3 compiled, 0/0 measured, 3 failed; nothing measured yet" in shown(stream.finished())[-1]


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
    assert "10/10" in text and "tried 10 of 10" in text and "of before" not in text


@pytest.mark.parametrize(
    ("recorded", "total"),
    [({"candidates": 2, "seconds": None}, 2), ({"percent": 50.0}, 5), ({"candidates": -1}, 10), ("x", 10)],
)
def test_a_run_that_is_watched_has_the_budget_of_its_header(recorded: object, total: int) -> None:
    stream = Stream(total=10, budget=recorded).candidate(0, 1.0)
    assert f"1/{total} compiled, 1/{total} measured" in shown(stream)[-1]
    assert "1/10 compiled" in shown(stream, budget=Budget())[-1]  # the present part's own


def test_warnings_are_shown_at_once() -> None:
    assert (
        shown(Stream().add(Warned, message="the governor is\npowersave"))[0]
        == "atune: warning: the governor is powersave"
    )


def test_a_program_is_told_once_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.reporting.progress._SAID", set())
    first, second = (shown(run_of(1).add(Warned, message=NO_GPU).add(Warned, message="other")) for _ in range(2))
    assert f"atune: warning: {NO_GPU}" in first and f"atune: warning: {NO_GPU}" not in second
    assert "atune: warning: other" in first and "atune: warning: other" in second


def test_on_a_terminal_bars_show_best_failures_and_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    before = sys.stdout, sys.stderr
    with Progress(out := Terminal()) as progress:
        for event in run_of(20).events:
            progress.on_event(event)
        assert (sys.stdout, sys.stderr) == before
    text = out.getvalue()
    assert "compiled" in text and "measured" in text and "20/20" in text
    assert "4 failed" in text and "best 1.05 ms (first timing): block=19" in text


def going_on(total: int = 1080) -> Stream:
    """Return a run that goes on, 23 of whose candidates are tried."""
    stream = Stream(total=total).ready(1.0)
    for index in range(23):
        stream.candidate(index, 2.0 - index / 100, block_M=64 * index, block_N=128, num_stages=3)
    return stream.proposed(23, block_M=1)


def test_forty_columns_hold_counts_and_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written(going_on(), Terminal())).replace("\r", "\n").splitlines()
    assert all(len(line) <= 40 for line in lines) and not any("…" in line for line in lines)
    last = " ".join(" ".join(lines[-6:]).split())
    assert "compiled" in last and "measured" in last and last.count("23/1080") == 2
    assert "best 1.78 ms (first timing): block_M=1408, block_N=128, num_stages=3; tried 23 of 1,080" in last


def bars(stream: Stream, monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> list[str]:
    """Return what a terminal with colours is sent of `stream`, a frame each, escapes included, until all is erased."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    *frames, after = re.split(r"\r?(?:\x1b\[1A|\x1b\[2K)+", written(stream, Terminal()))
    assert not re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", after).strip(), "the bars are erased at the end"
    return [frame for frame in frames if "compiled" in frame]


def test_the_final_has_a_bar_of_its_own_once_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(total=2).ready().candidate(0, 1.0).candidate(1, 2.0)
    assert " final " not in bars(stream, monkeypatch)[-1]
    stream.add(FinalStarted, device="cpu", indices=(0, 1))
    assert re.search(r" final .*0/2.*timed in turn", bars(stream, monkeypatch)[-1])
    last = bars(stream.final({0: [1.0], 1: [2.0]}).finished(), monkeypatch)[-1]
    assert re.search(r" final .*2/2", last) and "timed in turn" not in last
    old = Stream(total=2).ready().candidate(0, 1.0).candidate(1, 2.0).final({0: [1.0], 1: [2.0]})
    assert re.search(r" final .*2/2", bars(old, monkeypatch)[-1])  # a journal that has no event of its start


def test_a_run_in_which_all_fails_has_nothing_left_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that fails to compile was lowered by no event, so that half of its work seems to be left."""
    stream = Stream(total=2).ready()
    for index in range(2):
        stream.proposed(index).build_failed(index)
    assert "left" not in bars(stream.finished(), monkeypatch)[-1]


def test_a_long_configuration_takes_two_lines_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {f"axis_number_{k}": k for k in range(20)}
    last = bars(Stream(total=1).ready().candidate(0, 1.0, **config), monkeypatch, columns=60)[-1]
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)
    assert "best 1 ms (first timing): axis_number_0=0" in text and "axis_number_19=19" in text and "…" in text
    assert len(text.strip().splitlines()) <= 5
    assert shortened("abcdefghij", 10) == "abcdefghij" and shortened("abcdefghijk", 10) == "abcdef…ijk"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = written(run_of(3), Terminal())
    assert "\x1b" not in text and "3/3 compiled" in text


def test_a_stranger_s_markup_and_escapes_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Stream(total=1).candidate(0, 1.0, name="[bold]\x1b]0;evil\x07")
    assert "\x1b]0;evil" not in written(stream, Terminal())


def test_the_log_is_json_elsewhere_than_on_a_terminal() -> None:
    out = io.StringIO()
    log = event_logger(out)
    stream = Stream(total=2).candidate(0, 1.0, tile=(1, 2)).candidate(1).finished()
    for event in stream.events:
        log(event)
    entries = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [e["seq"] for e in entries] == list(range(len(stream.events)))
    assert entries[0]["event"] == "run_started" and entries[0]["time"].startswith("2023-11-14T")
    levels = {e["event"]: e["level"] for e in entries}
    assert levels["benchmark_failed"] == "warning" and levels["candidate_measured"] == "info"
    measured = next(e for e in entries if e["event"] == "candidate_measured")
    assert measured["timing"]["samples_us"] == [1000.0]


def test_the_log_for_people_is_short_and_has_no_samples() -> None:
    out = Terminal()
    log = event_logger(out)
    for event in Stream(total=2).candidate(0, 1.0, 1.1).final({0: [1.0]}).finished().events:
        log(event)
    text = out.getvalue()
    assert "candidate_measured" in text and "latency_ms" in text and "samples_us" not in text


def test_the_log_configures_no_ones_logging() -> None:
    """In a process of its own: neither structlog's defaults nor the root logger change."""
    code = """
import io, logging
before = (list(logging.root.handlers), logging.root.level, logging.raiseExceptions)
from event_streams import Stream
from atune.reporting.log import event_logger
import structlog
defaults = structlog.get_config()


class Terminal(io.StringIO):
    def isatty(self): return True
for stream in (io.StringIO(), Terminal()):
    log = event_logger(stream)
    for event in Stream().candidate(0, 1.0).events: log(event)
assert not structlog.is_configured()
assert structlog.get_config() == defaults
assert (list(logging.root.handlers), logging.root.level, logging.raiseExceptions) == before
"""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root.parent}"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=30)
    assert not any("atune" in name for name in logging.root.manager.loggerDict)


def test_bars_on_a_real_terminal_give_the_cursor_back() -> None:
    code = """
import time
from event_streams import Stream
from atune.reporting.progress import Progress
with Progress() as progress:
    for event in Stream(total=1).candidate(0, 1.0).finished().events: progress.on_event(event)
"""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root.parent}", "TERM": "xterm"}
    parent, child = pty.openpty()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=30, stderr=child)
    os.close(child)
    text = b""
    while True:
        try:
            text += os.read(parent, 65536)
        except OSError:
            break
    os.close(parent)
    assert b"compiled" in text and text.rfind(b"\x1b[?25h") > text.rfind(b"\x1b[?25l") >= 0

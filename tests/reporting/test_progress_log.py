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
from pathlib import Path

import pytest
from event_streams import Stream

from atune.journal.events import Warned
from atune.model.settings import Budget
from atune.reporting.log import event_logger
from atune.reporting.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_of(total: int, step_s: float = 0.1) -> Stream:
    stream = Stream(total=total, step_s=step_s).ready(1.0)
    for index in range(total):
        stream.candidate(index, *([2.0 - index / total] if index % 5 else []))
    return stream.finished()


def shown(stream: Stream, **options: object) -> list[str]:
    out = io.StringIO()
    with Progress(out, **options) as progress:  # type: ignore[arg-type]
        for event in stream.events:
            progress.on_event(event)
    return out.getvalue().splitlines()


def test_elsewhere_than_on_a_terminal_a_line_comes_every_five_seconds_at_most() -> None:
    stream = run_of(100)  # 403 events in 40 s
    lines = shown(stream)
    assert 5 <= len(lines) <= 10
    assert lines[-1].startswith("atune: [40 s] 100/100 compiled, 100/100 measured, 20 failed; best 1.01 ms: block=99")
    assert "about 20 s left" in lines[3]
    assert all("\x1b" not in line for line in lines)


def test_the_last_line_tells_whether_the_winner_is_proven() -> None:
    def last(stream: Stream) -> str:
        return shown(stream)[-1]

    def measured() -> Stream:
        return Stream(total=1).ready().candidate(0, 1.0)

    assert last(measured().proven(0).finished()).endswith("best 1 ms: block=0; winner proven plain")
    assert last(measured().finished()).endswith("; winner not proven plain")
    assert "proven" not in last(measured()) and "proven" not in last(measured().interrupted())
    assert "proven" not in last(Stream(total=1).ready().candidate(0).finished())


def test_the_log_tells_how_the_winner_was_proven() -> None:
    out = io.StringIO()
    event_logger(out, json=True)(Stream().proven(3, "replaced").events[-1])
    entry = json.loads(out.getvalue())
    assert (entry["event"], entry["level"], entry["index"], entry["how"]) == ("winner_proven", "info", 3, "replaced")


def test_a_short_run_shows_its_last_line_once() -> None:
    assert len(shown(run_of(3, step_s=0.001))) == 1


def test_an_interrupted_run_shows_how_far_it_came() -> None:
    lines = shown(Stream(total=9).candidate(0, 1.0).proposed(1))
    assert lines == ["atune: [0 s] 1/9 compiled, 1/9 measured, 0 failed; best 1 ms: block=0, about 4 s left"]


def test_nothing_is_shown_of_a_run_that_never_started() -> None:
    out = io.StringIO()
    with Progress(out):
        pass
    assert out.getvalue() == ""


def test_totals_follow_the_budget_and_what_needs_no_measuring() -> None:
    stream = (
        Stream(total=288).candidate(0, 1.0).proposed(1).pruned(1).proposed(2).aliased(2, 0).proposed(3).build_failed(3)
    )
    assert "4/10 compiled, 1/7 measured, 1 failed" in shown(stream, budget=Budget(candidates=10))[-1]
    with Progress(io.StringIO(), budget=Budget(seconds=1.0)) as progress:
        for event in stream.events:
            progress.on_event(event)
        assert progress.left_s == 0.0


def test_warnings_are_shown_at_once() -> None:
    assert (
        shown(Stream().add(Warned, message="the governor is\npowersave"))[0]
        == "atune: warning: the governor is powersave"
    )


def test_on_a_terminal_bars_show_best_failures_and_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    before = sys.stdout, sys.stderr
    out = Terminal()
    with Progress(out) as progress:
        for event in run_of(20).events:
            progress.on_event(event)
        assert (sys.stdout, sys.stderr) == before
    text = out.getvalue()
    assert "compiled" in text and "measured" in text and "20/20" in text
    assert "4 failed" in text and "best 1.05 ms: block=19" in text


def test_bars_keep_their_width_beside_a_long_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 80 columns: the best stands below the bars, and is cut where it is too long."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with Progress(out) as progress:
        for event in Stream(total=1).candidate(0, 1.0, **{f"an_axis_{i}": 128 for i in range(9)}).finished().events:
            progress.on_event(event)
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue()).splitlines()
    bars = [line for line in lines if "1/1" in line][-2:]
    assert [line.split()[0] for line in bars] == ["compiled", "measured"] and all(
        line.count("━") == 40 for line in bars
    )
    [best] = lines[lines.index(bars[1]) + 1 :]
    assert best.startswith("best 1 ms: an_axis_0=128") and len(best) == 80 and best.endswith("…")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with Progress(out) as progress:
        for event in run_of(3).events:
            progress.on_event(event)
    assert "\x1b" not in out.getvalue() and "3/3 compiled" in out.getvalue()


def test_a_stranger_s_markup_and_escapes_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress(out) as progress:
        for event in Stream(total=1).candidate(0, 1.0, name="[bold]\x1b]0;evil\x07").events:
            progress.on_event(event)
    assert "\x1b]0;evil" not in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (185.0, "3 min 05 s")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


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
for json in (True, False):
    log = event_logger(io.StringIO(), json=json)
    for event in Stream().candidate(0, 1.0).events: log(event)
assert not structlog.is_configured()
assert structlog.get_config() == defaults
assert (list(logging.root.handlers), logging.root.level, logging.raiseExceptions) == before
"""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root.parent}"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=30)
    assert not any("atune" in name for name in logging.root.manager.loggerDict)


def test_two_loggers_keep_their_own_streams_and_formats() -> None:
    one, two = io.StringIO(), io.StringIO()
    log_one, log_two = event_logger(one, json=True), event_logger(two, json=False)
    event = Stream().events[0]
    log_one(event)
    log_two(event)
    assert one.getvalue().startswith("{") and not two.getvalue().startswith("{")
    assert len(one.getvalue().splitlines()) == len(two.getvalue().splitlines()) == 1


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

"""Show a run's progress on stderr. A terminal has two lines that are updated; other streams get a line at intervals."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
import time
from contextlib import suppress
from typing import Self, TextIO

from atune.journal.events import Event, FinalOrdered, FinalStarted, RunFinished, RunInterrupted, RunStarted, Warned
from atune.journal.state import State, Status, header_in, recorded_budget
from atune.model.candidate import Config, describe_config, printable
from atune.model.settings import Budget
from atune.reporting.text import Output, shown


class Progress:
    """A context manager that shows a run's progress from the events that you pass to `on_event`.

    `stream`: the stream to write to (default: stderr). `budget`: the budget from which totals and the time left are
    computed (default: the budget in the run's header). `since`: a time in seconds since 1970. Events before this
    time are counted, but not shown. `seldom`: show a line after 5 s and then a line per minute.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        budget: Budget | None = None,
        since: float = 0.0,
        *,
        seldom: bool = False,
    ) -> None:
        self._out = Output(sys.stderr if stream is None else stream)
        self._interval_s, self._seldom = SELDOM_S if seldom else INTERVAL_S, seldom
        self._budget, self._as_recorded = budget or Budget(), budget is None
        self.state = State()
        self._since, self._begun = since, False
        self._mono = self._started_mono = self._event_time = 0.0
        self._shown_mono = min(0.0, INTERVAL_S - self._interval_s)
        self._shown = self._final = ""
        self._on_terminal, self._rows = False, 0

    def __enter__(self) -> Self:
        able = self._out.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._on_terminal = able and _ON_SCREEN.acquire(blocking=False)
        if able and not self._on_terminal:
            self._out = Output(None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_terminal:
            if self._rows:
                self._write("")  # the result follows and shows all of this
            _ON_SCREEN.release()
        elif self._begun and not self._seldom:
            self._show()
        self._begun = False

    def on_event(self, event: Event) -> None:
        """Take an event into account. If the interval has passed, also update the display."""
        self.state.apply(event)
        self._mono, self._event_time = event.mono, event.time
        if isinstance(event, RunStarted):
            self._started_mono = event.mono  # before this event, the time went into imports
            if self._as_recorded:
                self._budget = recorded_budget(event)
        if event.time < self._since:
            return
        self._begun = True
        if isinstance(event, Warned) and not self._seldom:
            self._write(f"warning: {printable(event.message)}", stays=True)
        if isinstance(event, FinalStarted | FinalOrdered):
            self._final = f"final of {len(event.indices)}" if isinstance(event, FinalStarted) else ""
        self._show_if_due(at_once=isinstance(event, SHOWN_AT_ONCE) and not self._seldom)

    def tick(self) -> None:
        """Update the display if the interval has passed without an event, for example because a candidate hangs."""
        if self._begun:
            now = time.time()
            self._mono, self._event_time = self._mono + max(0.0, now - self._event_time), now
            self._show_if_due()

    def _show_if_due(self, *, at_once: bool = False) -> None:
        # Not at every event: thousands may come per second.
        interval_s = 0.1 if self._on_terminal else self._interval_s
        if self._mono - self._shown_mono >= interval_s or at_once:
            self._shown_mono = self._mono
            self._show()

    @property
    def total(self) -> int:
        """The larger of two numbers: the candidates that the budget allows, and the candidates with an outcome."""
        allowed = self._budget.most(self.state.total) or self.state.total
        return min(self.state.total, max(allowed, self.state.settled))

    @property
    def measured(self) -> int:
        """Number of candidates whose measurement succeeded or failed."""
        return self.state.settled - self.state.counts["duplicate"] - self.state.unbuilt

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the run ends, if lowering takes half of the time. None if it is too early to tell."""
        ends: list[float] = []
        work = 2 * max(self.total, 1)
        done = min(self.state.lowered, self.total) + self.state.settled
        if self.state.finished is not None:
            return None
        if done >= work * 0.1:
            ends.append((self._mono - self._started_mono) / done * max(0, work - done))
        if self._budget.seconds is not None:
            ends.append(max(0.0, self._budget.seconds - self._mono))
        return min(ends, default=None)

    @property
    def best(self) -> str:
        """A text with the best configuration so far and its first timing. Empty until a candidate is measured."""
        if self.state.best is None:
            return ""
        index, latency_ms = self.state.best
        config: Config = self.state.entry(index).config
        return f"best {latency_ms:.4g} ms (first timing): {describe_config(config)}"

    @property
    def slow(self) -> str:
        """A text about the candidate that is being measured for the longest time. Empty if no candidate is slow."""
        begun = next(iter(self.state.measuring.values()), None)
        limit_s = header_in(self.state).settings.get("benchmark", {}).get("benchmark_timeout_s")
        if begun is None or self._mono - begun.mono < INTERVAL_S or not isinstance(limit_s, float | int):
            return ""
        took_s = min(self._mono - begun.mono, limit_s)
        return f"candidate {begun.index} has run for {duration(took_s)} of at most {duration(limit_s)}"

    def _show(self) -> None:
        state, counts = self.state, self.state.counts
        left = f", about {duration(self.left_s)} left" if self.left_s and not self.slow else ""
        done = [
            f"{state.built}/{self.total} compiled",
            f"{self.measured}/{max(self.measured, self.total - counts['duplicate'] - state.unbuilt)} measured",
            f"{counts['failed']} failed",
        ]
        done += [counted(counts[status], status) for status in _NOT_COMPILED if counts[status]]
        best = self.best or ("nothing works so far" if self.measured else "nothing measured yet")
        text = "; ".join(filter(None, [", ".join(done), self._final, self.slow, best]))
        line = f"[{duration(self._mono)}{left}] {text}"
        if (changed := line if self._on_terminal else text) != self._shown:
            self._shown = changed
            self._write(line)

    def _write(self, text: str, stays: bool = False) -> None:
        """Write a line. A terminal shows up to `LINES` rows of it. If `stays` is false, the next line replaces it."""
        text = shown(text)
        lines = [f"atune: {text}\n"]
        if self._on_terminal:
            rows = [text, ""] if stays else textwrap.wrap(text, _columns(self._out), max_lines=LINES, placeholder="…")
            lines = ["\r\x1b[K", "\x1b[A\x1b[K" * (self._rows - 1), "\n".join(rows)]
            self._rows, self._shown = (0, "") if stays else (len(rows), self._shown)
        self._out.write("".join(lines))


INTERVAL_S, SELDOM_S = 5.0, 60.0
"""Seconds between two lines on a stream that is not a terminal. If nobody asked for progress, `SELDOM_S` applies."""
_ON_SCREEN = threading.Lock()
"""The lock of the run whose progress the terminal shows. Other runs show no progress, so that lines do not mix."""
SHOWN_AT_ONCE = (FinalStarted, FinalOrdered, RunFinished, RunInterrupted)
_NOT_COMPILED: tuple[Status, ...] = ("duplicate", "pruned")
"""The statuses of candidates that are not compiled."""
LINES = 2
"""The largest number of rows that progress takes on a terminal."""


def _columns(out: Output) -> int:
    """Return the number of columns to use. The last column stays empty, so that the cursor stays in the same row."""
    columns = shutil.get_terminal_size().columns
    with suppress(Exception):
        columns = os.get_terminal_size(out.stream.fileno()).columns or columns
    return max(20, columns - 1)


def counted(n: int, status: str) -> str:
    """Return text with a number of candidates and their status, such as ``2 duplicates``."""
    return f"{n} {status}{'s' * (status == 'duplicate' and n != 1)}"


def duration(seconds: float | None) -> str:
    """Return `seconds` as text, such as ``42 s`` or ``3 min 05 s``."""
    whole = round(seconds or 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def is_watched() -> bool:
    """Tell whether somebody sees the output, because stderr is a terminal, or this process runs a notebook."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    in_notebook = ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
    return in_notebook or Output(sys.stderr).isatty()

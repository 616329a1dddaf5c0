"""Progress of a run on stderr: bars on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
from contextlib import suppress
from html import escape
from types import TracebackType
from typing import Any, Self, TextIO

import msgspec

from atune.errors import UsageError
from atune.journal.events import Event, FinalOrdered, FinalStarted, RunFinished, RunInterrupted, RunStarted, Warned
from atune.journal.state import State, Status
from atune.model.candidate import Config, describe_config, printable
from atune.model.device import NO_GPU
from atune.model.settings import Budget


class Progress:
    """Show a run's progress from the events passed to `on_event`. Use it as a context manager.

    `stream`: where to write (default: stderr). `interval_s`: least time between two plain lines, by the run's clock.
    `budget`: the run's budget, needed for totals and for the time left (default: what the run's header has).
    `since`: events from before this time count and are not shown; in seconds since 1970.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        interval_s: float = 5.0,
        budget: Budget | None = None,
        since: float = 0.0,
    ) -> None:
        self._in_notebook = stream is None and _in_notebook()
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._interval_s = interval_s
        self._budget, self._as_recorded = budget or Budget(), budget is None
        self._state = State()
        self._since, self._begun = since, False
        self._mono = self._shown_mono = self._started_mono = 0.0
        self._shown = ""
        self._bars: _Bars | NotebookBars | None = None
        self.finalists: int | None = None
        """Candidates that the final times; None before it."""
        self.final_done = False

    def __enter__(self) -> Self:
        able = self._stream is not None and self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        if self._in_notebook:
            self._bars = NotebookBars()
        elif self._stream is not None and able:
            bars = _Bars(self._stream)
            self._bars = bars if _ON_SCREEN.acquire(blocking=False) else None
            self._stream = self._stream if self._bars is not None else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            try:
                with suppress(OSError):  # the terminal is gone
                    if self._begun:
                        self._bars.show(self)
                    self._bars.stop()
            finally:
                if isinstance(self._bars, _Bars):
                    _ON_SCREEN.release()
        elif self._begun:
            self._line()

    def on_event(self, event: Event) -> None:
        """Record `event`, and update the display if the interval has passed."""
        self._state.apply(event)
        self._mono = event.mono
        if isinstance(event, RunStarted):
            self._started_mono = event.mono  # earlier time went into imports, not candidates
            if self._as_recorded:
                self._budget = _recorded_budget(event)
        if event.time < self._since:
            return
        self._begun = True
        if isinstance(event, Warned):
            self._warn(event.message)
        if isinstance(event, FinalStarted | FinalOrdered):
            self.final_done = isinstance(event, FinalOrdered)
            self.finalists = len(event.entries if isinstance(event, FinalOrdered) else event.indices)
        # Thousands of events may come per second.
        interval_s = self._interval_s if self._bars is None else 0.1
        if event.mono - self._shown_mono < interval_s and not isinstance(event, SHOWN_AT_ONCE):
            return
        self._shown_mono = event.mono
        if self._bars is not None:
            self._bars.show(self)
        else:
            self._line()

    @property
    def total(self) -> int:
        """Number of candidates that the budget allows, or that had an outcome before it was set."""
        allowed = self._budget.most(self._state.total) or self._state.total
        return min(self._state.total, max(allowed, self._state.settled))

    @property
    def past_compiling(self) -> int:
        """Number of candidates that need no more compiling: built, pruned, failed or duplicate."""
        state = self._state
        return state.built + state.unbuilt + state.counts["duplicate"]

    @property
    def to_measure(self) -> int:
        """Number of candidates to measure, as far as known: without duplicates, pruned and failed ones."""
        return max(self.measured, self.total - self._state.counts["duplicate"] - self._state.unbuilt)

    @property
    def measured(self) -> int:
        """Number of candidates whose measurement ended, in success or failure."""
        return self._state.settled - self._state.counts["duplicate"] - self._state.unbuilt

    @property
    def left_s(self) -> float | None:
        """Seconds left at the rate so far. Lowering and settling count alike. None while too little is done."""
        ends: list[float] = []
        work = 2 * max(self.total, 1)
        done = min(self._state.lowered, self.total) + self._state.settled
        if self._state.finished is not None:
            return None
        if done >= work * 0.1:
            ends.append((self._mono - self._started_mono) / done * max(0, work - done))
        if self._budget.seconds is not None:
            ends.append(max(0.0, self._budget.seconds - self._mono))
        return min(ends, default=None)

    @property
    def best(self) -> str:
        """The best configuration so far with its first timing. Empty while there is none."""
        if self._state.best is None:
            return ""
        index, latency_ms = self._state.best
        config: Config = self._state.entry(index).config
        return f"best {latency_ms:.4g} ms (first timing): {describe_config(config)}"

    @property
    def findings(self) -> list[str]:
        """The best so far, and how many candidates have an outcome."""
        state = self._state
        tried = f"tried {state.settled:,} of {state.total:,}" if state.header is not None else ""
        return [text for text in (self.best or "nothing measured yet", tried) if text]

    @property
    def failed(self) -> int:
        return self._state.counts["failed"]

    def _line(self) -> None:
        left = f", about {duration(self.left_s)} left" if self.left_s else ""
        counts = self._state.counts
        done = [
            f"{self._state.built}/{self.total} compiled",
            f"{self.measured}/{self.to_measure} measured",
            f"{self.failed} failed",
        ]
        done += [f"{counts[status]} {name}" for status, name in _NOT_COMPILED.items() if counts[status]]
        text = "; ".join([", ".join(done), *self.findings])
        if text != self._shown:
            self._shown = text
            self._print(f"[{duration(self._mono)}] {text}{left}")

    def _warn(self, message: str) -> None:
        if message == NO_GPU:  # it holds for all runs of the program
            if message in _SAID:
                return
            _SAID.add(message)
        self._bars.note(printable(message)) if self._bars is not None else self._print(f"warning: {printable(message)}")

    def _print(self, text: str) -> None:
        if self._stream is not None:  # stderr was closed when the program began
            try:
                print(f"atune: {text}", file=self._stream, flush=True)
            except OSError:
                self._stream = None  # the result is still wanted


_SAID: set[str] = set()
"""What was shown, of what is shown once in a program."""
_ON_SCREEN = threading.Lock()
"""Held by the run whose bars are on the terminal. Others at the same time show nothing: the lines would mix."""
SHOWN_AT_ONCE = (FinalStarted, FinalOrdered, RunFinished, RunInterrupted)
_NOT_COMPILED: dict[Status, str] = {"duplicate": "duplicates", "pruned": "pruned"}
"""What candidates are that need no library of their own, and how a plain line counts them."""
BEST_LINES = 2
"""Lines of the terminal that the best so far takes at most."""


class _Bars:
    """Rich bars of compiling, measuring and the final once it begins, with the findings below.

    Shown from the first event on. Long lines wrap between words.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column
        from rich.text import Text

        fixed = Column(no_wrap=True, min_width=8)
        self._progress: Any = RichProgress(
            TextColumn("{task.description:>8}", table_column=fixed),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}"),
        )
        self._compiled = self._progress.add_task("compiled", total=None, note="")
        self._measured = self._progress.add_task("measured", total=None, note="")
        self._final: Any = None
        self._text, self._group = Text, Group
        self._live: Any = Live(
            self._progress,
            console=Console(file=stream),
            refresh_per_second=10,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,  # the result says all of it
        )

    def show(self, state: Progress) -> None:
        self._live.start()  # does nothing the second time
        total = state.total or None
        left = f"about {duration(state.left_s)} left" if state.left_s else ""
        failed = f"[red]{state.failed} failed[/red]" if state.failed else "0 failed"
        self._progress.update(self._compiled, completed=state.past_compiling, total=total, note=failed)
        self._progress.update(self._measured, completed=state.measured, total=total and state.to_measure, note=left)
        if state.finalists is not None:
            if self._final is None:
                self._final = self._progress.add_task("final", total=None, note="")
            done, note = (state.finalists, "") if state.final_done else (0, "timed in turn")
            self._progress.update(self._final, completed=done, total=state.finalists, note=note)
        best, *rest = state.findings
        best = shortened(best, BEST_LINES * shutil.get_terminal_size().columns)
        self._live.update(self._group(self._progress, self._text("; ".join([best, *rest]))))

    def note(self, text: str) -> None:
        self._live.start()
        self._live.console.print(f"warning: {text}", markup=False, highlight=False)

    def stop(self) -> None:
        self._live.stop()


def _recorded_budget(header: RunStarted) -> Budget:
    """Return the budget that a header has; none where it cannot be read."""
    try:
        return msgspec.convert(header.settings.get("budget") or {}, Budget)
    except (msgspec.ValidationError, UsageError):
        return Budget()


def shortened(text: str, most: int) -> str:
    """Return `text` in `most` characters, its middle left out where it is longer."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def duration(seconds: float | None) -> str:
    """Return `seconds` for people: ``42 s`` or ``3 min 05 s``."""
    whole = round(seconds or 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def is_watched() -> bool:
    """Tell whether somebody sees what is shown: stderr is a terminal, or this program is the kernel of a notebook."""
    return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook. Imports nothing that is not there already."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class NotebookBars:
    """Shows a run's progress in one place of the cell's output. It needs IPython alone, and no widgets."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display").display
        self._handle: Any = None
        self._notes: list[str] = []

    def show(self, state: Progress) -> None:
        shown = {"text/html": self._html(state), "text/plain": "; ".join(state.findings)}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def note(self, text: str) -> None:
        """Take a warning in; it stands below the bars from the next update on."""
        if text not in self._notes:
            self._notes.append(text)

    def stop(self) -> None:
        """Leave the last state where it is."""

    def _html(self, state: Progress) -> str:
        bars = (("compiled", state.past_compiling, state.total), ("measured", state.measured, state.to_measure))
        rows = "".join(_bar(name, done, total) for name, done, total in bars)
        lines = [f"{state.failed:,} failed", *state.findings, *(f"warning: {note}" for note in self._notes)]
        return f"<table>{rows}</table>" + "".join(f"<div>{escape(printable(line))}</div>" for line in lines)


def _bar(name: str, done: int, total: int) -> str:
    bar = f'<progress value="{done}" max="{max(total, 1)}" aria-label="{name}" style="width: 20em"></progress>'
    return f"<tr><td>{name}</td><td>{bar}</td><td>{done:,} of {total:,}</td></tr>"

"""Progress of a run on stderr: bars on a terminal and in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TextIO

from atune.journal.events import Event, RunFinished, RunInterrupted, RunStarted, Warned
from atune.journal.result import describe_config, printable
from atune.journal.state import State
from atune.model.candidate import Config
from atune.model.settings import Budget
from atune.reporting.notebook_progress import NotebookBars, in_notebook


class Progress:
    """Shows the events that `on_event` is given, while it is entered as a context manager.

    `stream`: where to show; stderr by default. `interval_s`: least time between two plain lines, of the run's own
    clock. `budget`: what the run was limited to, so that totals and the time left are right.
    """

    def __init__(self, stream: TextIO | None = None, interval_s: float = 5.0, budget: Budget | None = None) -> None:
        self._in_notebook = stream is None and in_notebook()
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._interval_s = interval_s
        self._budget = budget or Budget()
        self._state = State()
        self._mono = self._shown_mono = self._started_mono = 0.0
        self._shown = ""
        self._bars: _Bars | NotebookBars | None = None

    def __enter__(self) -> Self:
        if self._in_notebook:
            self._bars = NotebookBars()
        elif self._stream is not None and self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
            self._bars = _Bars(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            with suppress(OSError):  # the terminal is gone
                self._bars.show(self)
                self._bars.stop()
        elif self._state.header is not None:
            self._line()

    def on_event(self, event: Event) -> None:
        """Take `event` in, and show what changed when it is time to."""
        self._state.apply(event)
        self._mono = event.mono
        if isinstance(event, RunStarted):
            self._started_mono = event.mono  # the imports before it say nothing of the rate
        if isinstance(event, Warned):
            self._warn(event.message)
        # Not at every event: there may be thousands a second.
        interval_s = self._interval_s if self._bars is None else 0.1
        if event.mono - self._shown_mono < interval_s and not isinstance(event, RunFinished | RunInterrupted):
            return
        self._shown_mono = event.mono
        if self._bars is not None:
            self._bars.show(self)
        else:
            self._line()

    @property
    def total(self) -> int:
        """Candidates that will be looked at."""
        return min(self._state.total, self._budget.most(self._state.total) or self._state.total)

    @property
    def compiled(self) -> int:
        """Candidates that compiling is done with: built, pruned, failed or the same as another."""
        state = self._state
        return state.built + state.unbuilt + state.counts["duplicate"]

    @property
    def to_measure(self) -> int:
        """Candidates worth measuring, as far as known: no duplicates, none pruned, none that failed to build."""
        return max(self.measured, self.total - self._state.counts["duplicate"] - self._state.unbuilt)

    @property
    def measured(self) -> int:
        """Candidates that measuring is done with, the failed ones included."""
        return self._state.settled - self._state.counts["duplicate"] - self._state.unbuilt

    @property
    def left_s(self) -> float | None:
        """Seconds left at the rate so far, lowering and settling counted alike; None while too little is done."""
        ends: list[float] = []
        work = 2 * max(self.total, 1)
        done = min(self._state.lowered, self.total) + self._state.settled
        if done >= work * 0.1:
            ends.append((self._mono - self._started_mono) / done * max(0, work - done))
        if self._budget.seconds is not None:
            ends.append(max(0.0, self._budget.seconds - self._mono))
        return min(ends, default=None)

    @property
    def best(self) -> str:
        """The best so far with its latency; empty while there is none."""
        if self._state.best is None:
            return ""
        index, latency_ms = self._state.best
        config: Config = self._state.entry(index).config
        return f"best {latency_ms:.4g} ms: {describe_config(config)}"

    @property
    def expected(self) -> str:
        """The best latency that the strategy expects; empty where it expects none, and when the run is over."""
        state = self._state
        if state.expected_ms is None or state.finished is not None or state.interrupted is not None:
            return ""
        return f"expected best {state.expected_ms:.4g} ms"

    @property
    def tried(self) -> str:
        """How many candidates of the space have an outcome; empty before the run has started."""
        return f"tried {self._state.settled:,} of {self._state.total:,}" if self._state.header is not None else ""

    @property
    def proof(self) -> str:
        """Whether the winner is proven to be tilelang's own code; empty until the run has finished with one."""
        state = self._state
        if state.finished is None or state.best is None:
            return ""
        return "winner proven plain" if state.proven is not None else "winner not proven plain"

    @property
    def failed(self) -> int:
        return self._state.counts["failed"]

    def _line(self) -> None:
        left = f", about {duration(self.left_s)} left" if self.left_s else ""
        text = (
            f"{self.compiled}/{self.total} compiled, {self.measured}/{self.to_measure} measured, {self.failed} failed"
        )
        parts = (text, self.best or "nothing measured yet", self.expected, self.tried, self.proof)
        text = "; ".join(filter(None, parts))
        if text != self._shown:
            self._shown = text
            self._print(f"[{duration(self._mono)}] {text}{left}")

    def _warn(self, message: str) -> None:
        self._bars.note(printable(message)) if self._bars is not None else self._print(f"warning: {printable(message)}")

    def _print(self, text: str) -> None:
        if self._stream is not None:  # closed when the program began
            try:
                print(f"atune: {text}", file=self._stream, flush=True)
            except OSError:
                self._stream = None  # the result is still wanted


class _Bars:
    """Two rich bars, and below them what was found, broken between words where the terminal is narrow."""

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
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._compiled = self._progress.add_task("compiled", total=None, note="")
        self._measured = self._progress.add_task("measured", total=None, note="")
        self._text, self._group = Text, Group
        self._live: Any = Live(
            self._progress,
            console=Console(file=stream),
            refresh_per_second=10,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def show(self, state: Progress) -> None:
        total = state.total or None
        left = f"about {duration(state.left_s)} left" if state.left_s else state.proof
        self._below = state.best
        self._progress.update(self._compiled, completed=state.compiled, total=total, note=f"{state.failed} failed")
        self._progress.update(self._measured, completed=state.measured, total=total and state.to_measure, note=left)
        said = "; ".join(part for part in (state.best, state.expected, state.tried, state.proof) if part)
        self._live.update(self._group(self._progress, self._text(said)))

    def note(self, text: str) -> None:
        self._live.console.print(f"warning: {text}", markup=False, highlight=False)

    def stop(self) -> None:
        self._live.stop()


def duration(seconds: float | None) -> str:
    """Return `seconds` for people: ``42 s`` or ``3 min 05 s``."""
    whole = round(seconds or 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"

"""Progress in a notebook: bars in the cell's output, which every update replaces."""

from __future__ import annotations

import importlib
from html import escape
from typing import TYPE_CHECKING, Any

from atune.journal.printing import printable
from atune.reporting.displays import shell

if TYPE_CHECKING:
    from atune.reporting.progress import Progress


def in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook. Imports nothing that is not there already."""
    return getattr(shell(), "kernel", None) is not None


class Markup:
    """What a notebook shows: `html`, and `text` where it shows no HTML."""

    def __init__(self, html: str, text: str) -> None:
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


class NotebookBars:
    """Shows a run's progress in one place of the cell's output. It needs IPython alone, and no widgets."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display").display
        self._handle: Any = None
        self._notes: list[str] = []

    def show(self, state: Progress) -> None:
        shown = Markup(self._html(state), "; ".join(_words(state)))
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def note(self, text: str) -> None:
        """Take a warning in; it stands below the bars from the next update on."""
        if text not in self._notes:
            self._notes.append(text)

    def stop(self) -> None:
        """Leave the last state where it is."""

    def _html(self, state: Progress) -> str:
        bars = (("compiled", state.compiled, state.total), ("measured", state.measured, state.to_measure))
        rows = "".join(_bar(name, done, total) for name, done, total in bars)
        lines = [*_words(state), *(f"warning: {note}" for note in self._notes)]
        return f"<table>{rows}</table>" + "".join(f"<div>{escape(printable(line))}</div>" for line in lines)


def _bar(name: str, done: int, total: int) -> str:
    bar = f'<progress value="{done}" max="{max(total, 1)}" aria-label="{name}" style="width: 20em"></progress>'
    return f"<tr><td>{name}</td><td>{bar}</td><td>{done:,} of {total:,}</td></tr>"


def _words(state: Progress) -> list[str]:
    failed = f"{state.failed:,} failed" if state.failed else ""
    said = (state.best or "nothing measured yet", state.expected, failed, state.tried, state.hosts, state.proof)
    return [text for text in said if text]

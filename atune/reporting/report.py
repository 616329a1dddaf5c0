"""A journal as one HTML page. It needs no network, no other file and no code of the workload."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

from atune.journal.events import Event
from atune.journal.reader import JournalReader
from atune.journal.result import Result
from atune.journal.state import State
from atune.reporting.candidates import candidates_section
from atune.reporting.importance import axis_importance
from atune.reporting.page import (
    environment,
    environment_section,
    failures_section,
    head_section,
    kernel_section,
    page_title,
    parts_of,
    source_section,
    warnings_section,
)
from atune.reporting.plots import plot_data, plot_sections
from atune.reporting.timeline import Timeline

LIBRARIES = ("d3", "plot.umd")
"""The scripts in `vendored` that draw the plots, unchanged, in the order in which the page loads them."""


def report(journal: str | Path) -> str:
    """Return the page for `journal`. Raises `JournalError` if it cannot be read."""
    return page_of(JournalReader(journal), Path(journal))


def page_of(events: Iterable[Event], journal: Path | None = None) -> str:
    """Return the page for a run's events, in order; `journal` is where they lie, for the reader of the page."""
    state, timeline = State(), Timeline()
    for event in events:
        state.apply(event)
        timeline.add(event)
    result = Result.of(state, journal, replayed=True)
    mattered = axis_importance(result)
    data = plot_data(result, mattered, timeline)
    sections = [
        head_section(result),
        warnings_section(result.warnings + result.noise),
        plot_sections(result, mattered, data),
        failures_section(result),
        candidates_section(result),
        kernel_section(result),
        source_section(result),
        environment_section([*environment(result), *parts_of(state)]),
    ]
    return whole_page(page_title(result), sections, data, file_text("report_page.js"))


def whole_page(title: str, sections: Iterable[str], data: object, script: str) -> str:
    """Return a page of these sections. `script`: the text of the script that draws `data`, after that of `page.js`."""
    # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "@TITLE@": escape(title),
        "@PAGE@": "\n".join(sections),
        "@DATA@": text,
        "@LIBRARIES@": "\n".join(map(_script, LIBRARIES)),
        "@SCRIPT@": f"{file_text('page.js')}\n{script}",
    }
    return re.sub(
        "|".join(parts), lambda place: parts[place[0]], file_text("report_page.html")
    )  # texts may hold "@DATA@"


def _script(name: str) -> str:
    """Return a library as a script element. It begins with its licence, which goes where the page goes."""
    licence = file_text(f"vendored/{name.partition('.')[0]}.LICENSE")
    return f"<script>/*\n{licence}*/\n{file_text(f'vendored/{name}.min.js')}</script>"


def file_text(name: str) -> str:
    """Return a file of this folder, such as the script of a page."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")

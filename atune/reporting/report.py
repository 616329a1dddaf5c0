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
from atune.reporting.libraries import scripts
from atune.reporting.page import (
    environment_section,
    failures_section,
    head_section,
    page_title,
    warnings_section,
)
from atune.reporting.plots import plot_data, plot_sections
from atune.reporting.timeline import Clocks, Timeline
from atune.reporting.winner import kernel_section, source_section


def report(journal: str | Path) -> str:
    """Return the page for `journal`. Raises `JournalError` if it cannot be read."""
    return page_of(JournalReader(journal), Path(journal))


def page_of(events: Iterable[Event], journal: Path | None = None) -> str:
    """Return the page for a run's events, in order; `journal` is where they lie, for the reader of the page."""
    state, timeline, clocks = State(), Timeline(), Clocks()
    for event in events:
        state.apply(event)
        timeline.add(event)
        clocks.add(event)
    result = Result.of(state, journal, replayed=True)
    mattered = axis_importance(result)
    data = plot_data(result, mattered, timeline, clocks)
    # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    here = Path(__file__).parent
    parts = {
        "@TITLE@": escape(page_title(result)),
        "@PAGE@": "\n".join(
            [
                head_section(result),
                warnings_section(result),
                plot_sections(result, mattered, data),
                failures_section(result),
                candidates_section(result),
                kernel_section(result),
                source_section(result),
                environment_section(result, state),
            ]
        ),
        "@DATA@": text,
        "@LIBRARIES@": scripts(),
        "@SCRIPT@": (here / "report_page.js").read_text(encoding="utf-8"),
    }
    page = (here / "report_page.html").read_text(encoding="utf-8")
    return re.sub("|".join(parts), lambda place: parts[place[0]], page)  # one pass: texts may hold "@DATA@"

"""The page of a run or of a set: a template, the data of its parts, and the script that draws them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from atune.journal.result import Result
from atune.model.candidate import printable
from atune.reporting.headline import headline

LIBRARIES = ("d3", "plot.umd")
"""The scripts in `vendored` that draw the plots, unchanged, in the order in which the page loads them."""


def page(title: str, parts: Iterable[Mapping[str, Any]], plain: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a page. `parts`: its sections, which PARTS of `page.js` draws by their ``kind``; empty ones are left out.

    `plain`: the text for readers without a script. `data`: what the plots among the parts draw.
    """
    shown = [part for part in parts if part.get("rows", True) and part.get("items", True)]
    words = f"<noscript><h1>{escape(title)}</h1><pre>{escape(plain)}</pre></noscript>"
    return whole_page(title, [words], _safe({"title": title, "parts": shown, **(data or {})}), file_text("plots.js"))


def _safe(value: Any) -> Any:
    """Return data that JSON has, its texts without control characters."""
    if isinstance(value, Mapping):
        return {printable(str(name)): _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return "\u00a0".join(map(printable, str(value).split("\u00a0")))


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
    template = file_text("report_page.html")
    return re.sub("|".join(parts), lambda place: parts[place[0]], template)  # texts may hold "@DATA@"


def _script(name: str) -> str:
    """Return a library as a script element. It begins with its licence, which goes where the page goes."""
    licence = file_text(f"vendored/{name.partition('.')[0]}.LICENSE")
    return f"<script>/*\n{licence}*/\n{file_text(f'vendored/{name}.min.js')}</script>"


def file_text(name: str) -> str:
    """Return a file of this folder, such as the script of a page."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def figures_html(figures: Iterable[tuple[str, str]]) -> str:
    """Return figures, each with what it says, as HTML."""
    shown = (f"<div><b>{escape(number)}</b> <span>{escape(text)}</span></div>" for number, text in figures)
    return "\n".join(['<div class="figures">', *shown, "</div>"])


def counts_html(result: Result) -> str:
    """Return what became of the candidates, as HTML: the outcomes that there were, then the others in a sentence."""
    named = {
        "measured": "measured",
        "failed": "failed",
        "pruned": "pruned",
        "duplicates": "duplicate",
        "remaining": "untried",
    }
    counts = {text: getattr(result, name) for name, text in named.items()}
    some = [f'<b class="word{" bad" * (text == "failed")}">{n:,} {text}</b>' for text, n in counts.items() if n]
    none = [text for text, n in counts.items() if not n]
    zero = [f"0 {' or '.join(filter(None, [', '.join(none[:-1]), none[-1]]))}"] if none else []
    one = "candidate" if result.total == 1 else "candidates"
    return f"{result.total:,} {one}: {'; '.join(filter(None, [', '.join(some), *zero]))}."


def warnings_section(texts: Iterable[str]) -> str:
    """Return warnings, each once; empty without any."""
    items = [f"<li>{breakable(text)}</li>" for text in dict.fromkeys(texts)]
    return "\n".join(["<h2>Warnings</h2>", "<ul>", *items, "</ul>"]) if items else ""


def environment_section(rows: Iterable[tuple[str, str]]) -> str:
    """Return where and with what a run was, as a table."""
    lines = (
        f'<tr><th scope="row">{escape(printable(name))}</th><td>{unbroken(value)}</td></tr>' for name, value in rows
    )
    return "\n".join(['<h2>Environment</h2><table id="environment">', *lines, "</table>"])


def breakable(text: str) -> str:
    """Return text as HTML on one line; paths and long lists may be broken after ``/``, ``,``, ``=`` and ``:``."""
    marked = printable(text)
    for sign in "/,=:":
        marked = marked.replace(sign, f"{sign}\0")
    return escape(marked).replace("\0", "<wbr>")


def unbroken(text: str) -> str:
    """Return text as HTML on one line that is broken at spaces alone, as long as a word fits a line."""
    return " ".join(f'<span class="word">{breakable(word)}</span>' for word in text.split(" ") if word)


def winner_figures(result: Result) -> list[tuple[str, str]]:
    return headline(result).figures


def winner_notes(result: Result) -> list[str]:
    return headline(result).notes


def plot_section(name: str, title: str, text: str) -> str:
    return f'<section id="{name}" data-plot hidden><h2>{escape(title)}</h2><p class="soft">{escape(text)}</p></section>'

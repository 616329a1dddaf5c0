"""The page of a run or of a set: a template, the data of its parts, and the script that draws them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from atune.model.candidate import printable

LIBRARIES = ("d3", "plot.umd")
"""The scripts in `vendored` that draw the plots, unchanged, in the order in which the page loads them."""


def page(title: str, parts: Iterable[Mapping[str, Any]], plain: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a page. `parts`: its sections, which PARTS of `page.js` draws by their ``kind``; empty ones are left out.

    `plain`: the text for readers without a script. `data`: what the plots among the parts draw; None if there are none.
    """
    shown = [part for part in parts if part.get("rows", True) and part.get("items", True)]
    content = _safe({"title": title, "parts": shown, **(data or {})})
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    drawn = "begin();" if data is None else file_text("plots.js")
    texts = {
        "@TITLE@": escape(title),
        "@PAGE@": f"<noscript><h1>{escape(title)}</h1><pre>{escape(plain)}</pre></noscript>",
        # Only "<" can end a script element or begin a comment in it, and a journal may come from a stranger.
        "@DATA@": text.replace("<", "\\u003c"),
        "@LIBRARIES@": "" if data is None else "\n".join(map(_script, LIBRARIES)),
        "@SCRIPT@": f"{file_text('page.js')}\n{drawn}",
    }
    template = file_text("report_page.html")
    return re.sub("|".join(texts), lambda place: texts[place[0]], template)  # texts may hold "@DATA@"


def _safe(value: Any) -> Any:
    """Return data that JSON has, its texts without control characters."""
    if isinstance(value, Mapping):
        return {printable(str(name)): _safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return "\u00a0".join(map(printable, str(value).split("\u00a0")))


def _script(name: str) -> str:
    """Return a library as a script element. It begins with its licence, which goes where the page goes."""
    licence = file_text(f"vendored/{name.partition('.')[0]}.LICENSE")
    return f"<script>/*\n{licence}*/\n{file_text(f'vendored/{name}.min.js')}</script>"


def file_text(name: str) -> str:
    """Return a file of this folder, such as the script of a page."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")

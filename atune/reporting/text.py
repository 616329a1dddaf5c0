"""Format lines of text for a terminal: wrap lines between words, and colour them if the terminal has colours."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TextIO

Style = Literal["", "answer", "strong", "attention", "error", "dim"]
CODES = {"answer": "1;32", "strong": "1", "attention": "33", "error": "1;31", "dim": "2"}
"""The terminal code (ECMA-48, SGR) of each style: bold green, bold, yellow, bold red, faint."""
LABEL = 11
"""The width of a line's label. A line without a label begins with blanks instead."""
_LABEL = re.compile(r"[a-z][a-z ]{9} (?=\S)")
COMMANDS = "tune|measure|runs|cache|resume|replay|watch|report|export|merge|compare|bundle|show|explain|pick|doctor"
_WHOLE = re.compile(rf"(?<!\S)atune (?:{COMMANDS})\b.*|\d (?:s|ms|%|min|times)\b")
NARROW_COLUMNS = 60
"""On a terminal with fewer columns, the continuation of a wrapped line is indented by two columns."""


class Line(NamedTuple):
    """A line of text and its style, which shows how important it is."""

    text: str
    style: Style = ""


class Output:
    """A text stream, or any other object with a method `write`. Errors while writing are ignored."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def isatty(self) -> bool:
        with suppress(Exception):
            return bool(self.stream.isatty())
        return False

    def write(self, text: str) -> None:
        with suppress(Exception):  # the stream is closed, or nobody reads it any more
            self.stream.write(text)
            self.stream.flush()

    def flush(self) -> None:
        """Do nothing, because `write` flushes."""


def shown(text: str) -> str:
    """Return `text` for a screen. All control characters except line feeds and tabs are escaped.

    All output goes through this function, because a stranger's message or file name could control the terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t\u00a0" else f"\\u{ord(c):04x}" for c in text)


def printed(text: str) -> str:
    """Return `text` with escapes for characters that stdout cannot encode, so that a program can print the text."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def plain(lines: Iterable[Line]) -> str:
    """Return `lines` as text without styles, for example for a file."""
    return "\n".join(shown(line.text) for line in lines)


def fitted(lines: Iterable[Line], stream: TextIO | None) -> str:
    """Return `lines` as text for `stream`: wrapped and coloured for a terminal, or `plain` for any other stream."""
    if stream is None or not stream.isatty():
        return plain(lines)
    safe = [Line(shown(line.text), line.style) for line in lines]
    columns = shutil.get_terminal_size().columns
    coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")  # no-color.org
    labelled = any(_LABEL.match(line.text) for line in safe)
    indent = 2 if labelled and columns < NARROW_COLUMNS else LABEL
    return "\n".join(row for line in safe for row in _broken(line, columns, indent, coloured))


def _broken(line: Line, columns: int, indent: int, coloured: bool) -> list[str]:
    match = _LABEL.match(line.text)
    label, blanks = (match.group() if match else ""), _blanks(line.text)
    margin = " " * (indent + max(0, blanks - LABEL))
    start = label or margin
    if not label and blanks < LABEL:  # a sentence without a label
        start, margin = " " * blanks, " " * (blanks + 2)
    lines = _wrapped(line.text[len(label) :].strip(" "), columns, start, margin) or [line.text]
    if not coloured or not line.style:
        return lines
    return [_coloured(text, len(label) * (not number), line.style) for number, text in enumerate(lines)]


def _wrapped(text: str, columns: int, start: str, margin: str) -> list[str]:
    """Break `text` between words. A number stays beside its unit. A command stays whole, so that you can copy it."""
    kept = _WHOLE.sub(lambda match: match.group().replace(" ", "\0"), text)
    wrapper = textwrap.TextWrapper(columns, break_on_hyphens=False, break_long_words=False, replace_whitespace=False)
    wrapper.initial_indent, wrapper.subsequent_indent = start, margin
    return [line.replace("\0", " ") for line in wrapper.wrap(kept)]


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _coloured(text: str, label: int, style: Style) -> str:
    """Return `text` in a style. The label, which is the first `label` characters, is faint."""
    begun = f"\x1b[{CODES['dim']}m{text[:label]}\x1b[0m" if label else text[: _blanks(text)]
    return f"{begun}\x1b[{CODES[style]}m{text[label or _blanks(text) :]}\x1b[0m"

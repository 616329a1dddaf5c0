"""The stored pictures show what is so today: where a test fails, `make pictures` draws them anew."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pictures

ROOT = Path(__file__).parents[1]


def shown(svg: str) -> list[str]:
    """Return the lines of text in `svg`, without the space between them."""
    texts: dict[str, list[str]] = {}
    for row, text in re.findall(r'<text class="[\w-]+" x="[\d.]+" y="([\d.]+)"[^>]*>(.*?)</text>', svg, re.DOTALL):
        texts.setdefault(row, []).append(html.unescape(text).replace("\xa0", " "))
    return ["".join("".join(parts).split()) for parts in texts.values()]


def test_the_stored_terminal_shows_what_is_printed_today() -> None:
    stored = (pictures.HERE / "terminal.svg").read_text()
    drawn = shown(pictures.terminal())
    assert shown(stored) == drawn
    assert any(re.fullmatch(r".*18/72compiled,18/18measured,0failed.*", line) for line in drawn)
    assert any(re.match(r"latency0\.\d+ms,5\.\d+timesfasterthanthereference\(0\.\d+ms\)", line) for line in drawn)
    assert len(re.findall(r"% \{ transform", stored)) == pictures.MOMENTS + 2  # each frame, and the last one again
    assert "@media (prefers-reduced-motion: no-preference) { .terminal-matrix { animation" in stored
    assert "http" not in re.sub(r'xmlns="[^"]*"|<!--.*?-->', "", stored)  # a reader's browser asks no server


def test_the_stored_chart_shows_the_seconds_of_the_stored_runs() -> None:
    assert (pictures.HERE / "vs_tilelang.svg").read_text() == pictures.chart()
    rows = json.loads((ROOT / pictures.FIRST).read_text())["rows"]
    both = ("tilelang", "tilelang"), ("atune", "known")
    for row in pictures.CHARTED:
        [taken] = rows[row]
        assert all(f"{tuner} {taken[variant]['wall_s']:.1f} s<" in pictures.chart() for tuner, variant in both)
    assert all(pictures.told() in (ROOT / page).read_text() for page in ("README.md", "docs/index.md"))

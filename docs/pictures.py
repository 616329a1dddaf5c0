"""The pictures of README and docs: a chart of stored seconds, and a recording and a report of one stored journal.

Run ``python docs/pictures.py`` (``make pictures``). The report needs a headless Chromium; without one only the others
are drawn. No GPU is needed, and no code of the workload is run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.text import Text

from atune.frontends.cli.main import main as atune
from atune.journal.events import Event
from atune.journal.reader import read
from atune.reporting.progress import Progress

HERE = Path(__file__).parent / "pictures"
ROOT = Path(__file__).parents[1]
FIRST = "bench/results/first/first-cuda.json"
"""Seconds of whole processes under tilelang's tuner and under atune, in turn on one machine."""
CHARTED = {
    "drop-in-4": "4 configurations",
    "library": "3 operators",
    "all": "288 configurations",
}
"""The rows of `FIRST` in the chart, and their names there."""
JOURNAL = "bench/results/layouts/wide.jsonl"
COLUMNS = 80
MOMENTS = 8
"""Frames of the terminal's recording before the result."""
HELD = 6
"""Seconds that the result is shown longer than another frame."""
ROW = 24.4
"""Height of a line of rich's pictures."""
CHART = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 490 {height}" width="490" height="{height}" role="img">
<title>{title}</title>
<style>
text {{ font: 16px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }}
.page {{ fill: #ffffff }} .slow {{ fill: #b6bec8 }} .fast {{ fill: #0f766e }} .mine {{ font-weight: 600 }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }} .page {{ fill: #0d1117 }} .slow {{ fill: #5c6670 }} .fast {{ fill: #2dd4bf }}
}}
</style>
<rect class="page" width="490" height="{height}"/>
{bars}
</svg>
"""
BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
PAGE = (1000, 790)
"""Width and height in pixels of what is kept of the report."""


class Terminal(io.StringIO):
    """What is written to it counts as written to a terminal."""

    def isatty(self) -> bool:
        return True


SURROUNDINGS = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "COLORTERM": "truecolor", "NO_COLOR": ""}


def charted() -> dict[str, tuple[float, float]]:
    """Return tilelang's and atune's seconds for each row of the chart: the medians of the stored rounds."""
    rows = json.loads((ROOT / FIRST).read_text())["rows"]

    def seconds(row: str, variant: str) -> float:
        return statistics.median(taken[variant]["wall_s"] for taken in rows[row] if variant in taken)

    return {name: (seconds(row, "tilelang"), seconds(row, "known")) for row, name in CHARTED.items()}


def told() -> str:
    """Return what the chart shows, as text."""
    rows = charted().items()
    return "; ".join(f"{name}: tilelang {theirs:.1f} s, atune {ours:.1f} s" for name, (theirs, ours) in rows)


def chart() -> str:
    """Return the bars of how long each tuner took to its result, as SVG."""
    most, bars = max(theirs for theirs, _ in charted().values()), []
    for row, (name, both) in enumerate(charted().items()):
        bars.append(f'<text x="150" y="{38 + 66 * row}" text-anchor="end">{name}</text>')
        kinds = ("tilelang", "slow", ""), ("atune", "fast", ' class="mine"')
        for line, (seconds, (tuner, colour, weight)) in enumerate(zip(both, kinds, strict=True)):
            top, width = 10 + 66 * row + 26 * line, 180 * seconds / most
            bars.append(f'<rect class="{colour}" x="160" y="{top}" width="{width:.1f}" height="22" rx="3"/>')
            bars.append(f'<text x="{168 + width:.1f}" y="{top + 17}"{weight}>{tuner} {seconds:.1f} s</text>')
    return CHART.format(height=6 + 66 * len(charted()), title=told(), bars="\n".join(bars))


def progress(events: list[Event]) -> str:
    """Return what a run's progress shows after `events`."""
    stream = Terminal()
    with mock.patch.dict(os.environ, SURROUNDINGS), Progress(stream) as shown:
        for event in events:
            shown.on_event(event)
    frames = re.split(r"\r(?:\x1b\[A|\x1b\[K)+", stream.getvalue())
    return [frame for frame in frames if "compiled" in frame][-1]


def result() -> str:
    """Return what ``atune replay`` prints of the run, with its colours."""
    printed = Terminal()
    with mock.patch.dict(os.environ, SURROUNDINGS), contextlib.redirect_stdout(printed), contextlib.chdir(ROOT):
        atune(["replay", JOURNAL])
    return printed.getvalue().rstrip("\n")


def terminal() -> str:
    """Return the recording of a terminal as SVG, which asks no server for a font: its frames, shown in turn."""
    events, console = read(ROOT / JOURNAL), Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    command = Text("$ ", "green") + Text(f"atune watch {JOURNAL}\n")
    shown = [progress(events[: len(events) * n // MOMENTS]) for n in range(1, MOMENTS + 1)] + [result()]
    frames = [Text.assemble(command, Text.from_ansi(text)).wrap(console, COLUMNS) for text in shown]
    rows = max(map(len, frames)) + 1  # without it, underscores of the last line would be cut
    for frame in frames:
        console.print(*frame, *[""] * (rows - len(frame)), sep="\n")
    svg = console.export_svg(title="atune", unique_id="terminal")
    return _played(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL), len(frames), rows * ROW)


def _played(svg: str, frames: int, height: float) -> str:
    """Return the picture of frames below each other as one that shows them in turn, the last one longest."""
    rest = (frames - 1) * height
    sizes = re.compile(r'((?:height="|viewBox="0 0 [\d.]+ ))([\d.]+)')
    svg = sizes.sub(lambda m: m[1] + (f"{float(m[2]) - rest:.1f}" if float(m[2]) > rest else m[2]), svg)
    steps = (
        f"{100 * n / (frames + HELD):.1f}% {{ transform: translateY({-n * height:.1f}px) }}" for n in range(frames)
    )
    play = f"@keyframes play {{ {' '.join(steps)} 100% {{ transform: translateY({-rest:.1f}px) }} }}"
    still = f".terminal-matrix {{ transform: translateY({-rest:.1f}px) }}"
    moves = f".terminal-matrix {{ animation: play {frames + HELD}s step-end infinite }}"
    moves = f"@media (prefers-reduced-motion: no-preference) {{ {moves} }}"
    return svg.replace("</style>", "\n".join([still, play, moves, "</style>"]), 1)


def report(picture: Path) -> None:
    """Write the picture of the top of ``atune report``'s page as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(ROOT):
            atune(["report", JOURNAL, "-o", str(page)])
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
        flags += ["--disable-background-networking"]
        flags += [f"--user-data-dir={folder}/profile", f"--window-size={PAGE[0]},{PAGE[1]}"]
        command = [str(BROWSER), *flags, f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Draw the pictures, and say what was written."""
    HERE.mkdir(exist_ok=True)
    for name, draw in (("vs_tilelang.svg", chart), ("terminal.svg", terminal)):
        (HERE / name).write_text(draw())
        print(HERE / name)
    if BROWSER is None:
        sys.exit("no headless Chromium is installed: docs/pictures/report.png stays as it is")
    report(HERE / "report.png")
    print(HERE / "report.png")


if __name__ == "__main__":
    main()

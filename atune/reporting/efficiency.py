"""The winner's share of its device's peaks, and the axes that changed nothing, as text and as HTML."""

from __future__ import annotations

from html import escape

from atune.journal.printing import printable
from atune.journal.result import TuneResult
from atune.model.roofline import Roofline, in_thousands


def roofline_lines(result: TuneResult) -> list[str]:
    """Return the rooflines of winner and reference as lines of the summary. Empty if the winner's is unknown."""
    lines = [f"roofline   {result.roofline.describe()}"] if result.roofline else []
    if lines and result.reference_roofline:
        lines.append(f"           reference {result.reference_roofline.describe()}")
    return lines


def inert_lines(result: TuneResult) -> list[str]:
    """Return a line for each axis that changed no code."""
    return [printable(axis.describe()) for axis in result.inert_axes]


def efficiency_section(result: TuneResult) -> str:
    """Return the report's section on rooflines and inert axes. Empty if there are neither."""
    parts = []
    if result.roofline:
        parts += ["<h2>Roofline</h2>", *_table(result)]
    if inert := inert_lines(result):
        parts += ["<h2>Axes that changed no code</h2>", *(f"<p>{escape(line)}.</p>" for line in inert)]
    return "\n".join(['<section id="efficiency">', *parts, "</section>"]) if parts else ""


def _table(result: TuneResult) -> list[str]:
    heads = ("of", "GFLOP/s", "GB/s", "of the tensor cores", "of the memory", "bound by")
    rows = [("winner", result.roofline), ("reference", result.reference_roofline)]
    told = {
        "measured": "The peaks were measured on this device.",
        "nominal": "The peaks are from the data sheet. <code>atune doctor --calibrate</code> measures them.",
        "": "The device's peaks are not known.",
    }
    note = told[result.roofline.peaks if result.roofline else ""]
    return [
        f'<p class="soft">{note}</p>',
        '<div class="scroll" tabindex="0" role="region" aria-label="roofline">',
        "<table><tr>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr>",
        *(_row(name, roofline) for name, roofline in rows if roofline is not None),
        "</table></div>",
    ]


def _row(name: str, found: Roofline) -> str:
    rates = ["–" if rate is None else in_thousands(rate) for rate in (found.gflops_s, found.gbytes_s)]
    shares = [_share(found.compute_share), _share(found.memory_share)]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (name, *rates, *shares, found.bound or "–")) + "</tr>"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"

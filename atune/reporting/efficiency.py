"""The winner's share of its device's peaks, as text and as HTML."""

from __future__ import annotations

from atune.journal.result import TuneResult
from atune.model.roofline import Roofline, in_thousands


def roofline_lines(result: TuneResult) -> list[str]:
    """Return the rooflines of winner and reference as lines of the summary. Empty if the winner's is unknown."""
    lines = [f"roofline   {result.roofline.describe()}"] if result.roofline else []
    if lines and result.reference_roofline:
        lines.append(f"           reference {result.reference_roofline.describe()}")
    return lines


def efficiency_section(result: TuneResult) -> str:
    """Return the report's section on rooflines. Empty if the winner's is unknown."""
    if not result.roofline:
        return ""
    return "\n".join(['<section id="efficiency">', "<h2>Roofline</h2>", *_table(result), "</section>"])


def _table(result: TuneResult) -> list[str]:
    heads = ("of", "GFLOP/s", "GB/s", "of the tensor cores", "of the memory", "bound by")
    rows = [("winner", result.roofline), ("reference", result.reference_roofline)]
    known = result.roofline is not None and result.roofline.peaks
    note = "The peaks are from the data sheet." if known else "The device's peaks are not known."
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

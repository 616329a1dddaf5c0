"""The maps of a set's page: its problems over two of their arguments. `set_page.js` draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atune.journal.set_folder import TunedProblem
from atune.model.candidate import printable
from atune.reporting.page import plot_section
from atune.reporting.plots import drawable, in_order, value_text

METRICS = {"ms": "latency_ms", "default": "default_ratio", "reference": "reference_ratio"}
"""What a map may show of a problem: its name in the page, and that of the result's property."""


def map_data(rows: Sequence[TunedProblem], names: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page's script draws; `names` has the letter of each problem's winner, by the problem's key.

    The axes are the two arguments that vary most. Problems that differ in others have a map for each combination.
    """
    values = {name: in_order([row.problem.arguments[name] for row in rows]) for name in rows[0].problem.arguments}
    varying = sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))
    axes, others = varying[:2], varying[2:]
    return {
        "axes": [{"name": printable(name), "labels": values[name]} for name in axes],
        "problems": [
            {
                "at": [value_text(row.problem.arguments[name]) for name in axes],
                "group": ", ".join(printable(f"{name}={row.problem.arguments[name]}") for name in others),
                "text": printable(str(row.problem)),
                "winner": names.get(row.problem.key),
                **{key: drawable(getattr(row.result, name)) if row.won else None for key, name in METRICS.items()},
            }
            for row in rows
        ],
        "winners": sorted(set(names.values()), key=lambda name: (len(name), name)),
    }


def map_sections(data: Mapping[str, Any]) -> str:
    """Return the sections of the maps, hidden until the script draws them; empty without two problems."""
    if not data["axes"]:
        return ""
    over = " and ".join(axis["name"] for axis in data["axes"])
    text = "Each square is a problem; a dashed one has no winner. Point at it to see more."
    return "\n".join(
        [
            plot_section("map", f"Speed by {over}", text),
            plot_section("regions", f"Winners by {over}", "Each letter is a configuration, named below."),
        ]
    )

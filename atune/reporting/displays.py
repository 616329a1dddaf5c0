"""How a notebook shows atune's values: functions that IPython calls by the type of a value, loaded when it does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

SHOWN = {
    ("atune.journal.result", "TuneResult"): "result_html",
    ("atune.journal.record", "Record"): "record_html",
    ("atune.model.space", "Space"): "space_html",
    ("atune.workload.definition", "Workload"): "workload_html",
}
"""The function in `atune.reporting.notebook` that shows a type, by the type's module and name."""


def shell() -> Any:
    """Return IPython's shell if this program is one of its sessions, else None. Imports nothing."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_notebook() -> bool:
    """Tell whether this program is the kernel of a notebook. Imports nothing that is not there already."""
    return getattr(shell(), "kernel", None) is not None


def enable() -> None:
    """Register with IPython how results, records, spaces and workloads are shown. Does nothing elsewhere.

    `import atune` calls this where IPython is running. Call it yourself where IPython starts later.
    """
    formatter = getattr(shell(), "display_formatter", None)
    if formatter is None:
        return
    for (module, name), function in SHOWN.items():
        formatter.formatters["text/html"].for_type_by_name(module, name, _later(function))


def _later(function: str) -> Callable[[Any], str]:
    return lambda value: str(getattr(importlib.import_module("atune.reporting.notebook"), function)(value))

"""What a reader should know of a kernel's layouts: repeated work, and how much the layout axes gained."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from atune.journal.result import Record, Result
from atune.layout import COMPILER
from atune.model.candidate import describe_config, printable
from atune.model.layouts import Layouts

REPEATED = 2.0
"""Times its even share of a loop, from which a thread's work is worth a warning."""
BY_FAR = 1.2
"""Times by which the winner must be faster than the compiler's own layouts to be worth a line."""


def repeated_lines(layouts: Layouts | None) -> list[str]:
    """Return a line for each loop that stores outside of registers and whose threads do each other's work."""
    loops = () if layouts is None else layouts.loops
    found = []
    for number, loop in enumerate(loops):
        stored = [one for one in loop.stores if "(local" not in one]
        if stored and loop.repeated >= REPEATED:
            found.append(f"loop {number}: each thread does {loop.repeated:.3g} times its even share, "
                         f"and stores {printable(', '.join(stored))}")  # fmt: skip
    return found


def layouts_line(result: Result) -> str:
    """Return what the winner's layouts repeat, or by how much they beat the compiler's own; empty for neither."""
    best = result.best
    if best is None or result.latency_ms is None:
        return ""
    if best.facts is not None and (lines := repeated_lines(best.facts.layouts)):
        return f"{lines[0]}; {_explain(result, best.index)}"
    own = _compilers_own(result.records, best)
    if own is None or own.latency_ms is None:
        return ""
    ratio = own.latency_ms / result.latency_ms
    if ratio < BY_FAR:
        return ""
    chosen = {name: value for name, value in best.config.items() if own.config.get(name) == COMPILER != value}
    faster = f"{describe_config(chosen)}: {ratio:.3g} times faster than the compiler's own layouts at their best"
    return f"{faster}; {_explain(result, best.index, own.index)}"


def _compilers_own(records: Sequence[Record], best: Record) -> Record | None:
    """Return the fastest candidate whose layouts are the compiler's own; None if the winner's are, or none ran."""
    names = {name for one in records for name, value in one.config.items() if value == COMPILER}
    if not any(best.config.get(name, COMPILER) != COMPILER for name in names):
        return None
    timed = [one for one in records if one.latency_ms is not None]
    own = [one for one in timed if all(one.config.get(name) == COMPILER for name in names)]
    return min(own, key=lambda one: one.latency_ms or 0.0, default=None)


def _explain(result: Result, *indices: int) -> str:
    journal = shlex.quote(printable(result.journal)) if result.journal else "JOURNAL"
    return f"atune explain {journal} {' '.join(map(str, indices))}"

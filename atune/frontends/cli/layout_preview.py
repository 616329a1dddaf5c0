"""Which layouts of each configuration ``--layouts`` keeps, told before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from atune.engine.run_state import Run
from atune.engine.screen import LayoutChoice, why_never
from atune.model.artifact import Failure, StaticFacts
from atune.model.candidate import Candidate, Config, describe_config, printable

SHOWN = 12
"""Most configurations that are shown."""


class LayoutRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One layout of a configuration. `why` it is passed over, for candidate `instead`, or cannot run; empty if kept."""

    index: int
    layout: Config
    redundant: int = 0
    """Iterations that a thread does beyond an even share."""
    registers: int = 0
    """Of a thread, for all fragments."""
    access_bits: int = 0
    """Bits that a thread moves in one access to global memory, summed over the loops."""
    why: str = ""
    instead: int | None = None


class LayoutRows(msgspec.Struct, frozen=True):
    """The layouts of one configuration. Of layouts with the same code there is the first."""

    config: Config
    kept: tuple[LayoutRow, ...]
    passed: tuple[LayoutRow, ...]
    invalid: tuple[LayoutRow, ...]


def layout_rows(
    candidates: Sequence[Candidate], run: Run, layouts: LayoutChoice, failures: dict[int, Failure]
) -> tuple[LayoutRows, ...]:
    """Return what was chosen of the lowered `candidates`, in their order, but for configurations that were not lowered.

    `failures`: of those that failed to lower.
    """
    state, rows, done = run.recorder.state, list[LayoutRows](), set[int]()
    for candidate in candidates:
        if candidate.index in done:
            continue
        group = layouts.group(candidate.index)
        done.update(group)
        choice = layouts.choice(state, candidate.index, run.limits)
        if choice is None:
            continue
        made = {index: _row(index, layouts.layout(index), state.entry(index).facts) for index in group}
        invalid = []
        for index in group:
            facts, failure = state.entry(index).facts, failures.get(index)
            if why := failure.message if failure is not None else "" if facts is None else why_never(facts, run.limits):
                invalid.append(msgspec.structs.replace(made[index], why=why))
        passed = [
            msgspec.structs.replace(made[index], why=one.why, instead=one.instead)
            for index, one in choice.passed.items()
        ]
        kept = [made[index] for index in choice.kept]
        rows.append(LayoutRows(layouts.rest(candidate.index), tuple(kept), tuple(passed), tuple(invalid)))
    return tuple(rows)


def _row(index: int, layout: Config, facts: StaticFacts | None) -> LayoutRow:
    found = None if facts is None else facts.layouts
    if found is None:
        return LayoutRow(index, layout)
    return LayoutRow(index, layout, found.redundant, found.registers, found.access_bits)


def _told(row: LayoutRow) -> str:
    costs = f"{row.redundant} redundant, {row.registers} registers, {row.access_bits} bits"
    return f"{row.index}: {describe_config(row.layout)} ({costs})"


def layout_lines(rows: Sequence[LayoutRows]) -> Iterator[str]:
    """Return what was chosen, as lines of text."""
    for number, one in enumerate(rows[:SHOWN]):
        yield f"{'layouts' if number == 0 else '':10} {describe_config(one.config)}"
        for row in one.kept:
            yield f"{'':12} kept    {_told(row)}"
        for row in one.passed:
            yield f"{'':12} passed  {_told(row)}: {row.why}, {row.instead}"
        for row in one.invalid:
            yield f"{'':12} invalid {row.index}: {describe_config(row.layout)}: {printable(row.why.splitlines()[0])}"
    if (more := len(rows) - SHOWN) > 0:
        yield f"           {more} other configurations: --json has all"

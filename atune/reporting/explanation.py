"""The findings of `atune explain` as text: one configuration, or two compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from atune.journal.printing import describe_config, printable
from atune.model.explained import Explained
from atune.model.layouts import FragmentFacts, Layouts, LoopFacts, SharedFacts

Rows = list[tuple[str, str]]


def report_lines(found: Explained) -> Iterator[str]:
    """Return the report of one configuration, as lines of text."""
    yield f"config     {describe_config(found.config) or 'the defaults of the kernel'}"
    yield f"target     {found.target}"
    width = max(len(name) for name, _ in rows(found))
    for name, value in rows(found):
        yield f"{name.ljust(width)}  {value}"
    if found.facts.layouts is None:
        yield "layouts are not known: layout inference did not run, or atune could not read its result"


def rows(found: Explained) -> Rows:
    """Return the facts by name, as text."""
    facts, machine, layouts = found.facts, found.machine, found.facts.layouts or Layouts()
    given: list[tuple[str, Any, str]] = [
        ("choice", printable(found.choice) or None, ""),
        ("threads", facts.threads, ""),
        ("grid", "×".join(map(str, facts.grid)) or None, " blocks"),
        ("registers", None if machine is None else machine.registers, " a thread"),
        ("stack", None if machine is None else machine.stack_bytes, " bytes a thread"),
        ("spills", found.spill_bytes, f" bytes stored, {found.spill_load_bytes} loaded"),
        ("shared memory", found.smem_bytes, " bytes a block"),
        ("occupancy", None if found.occupancy is None else found.occupancy.blocks, _limited(found)),
        ("code", None if machine is None else machine.code_bytes, " bytes"),
        ("source", facts.source_bytes, " bytes"),
    ]
    told = [(name, f"{value}{unit}") for name, value, unit in given if value is not None]
    told += [(f"fragment {printable(one.name)}", _fragment(one)) for one in layouts.fragments]
    told += [(f"loop {n}", _loop(one)) for n, one in enumerate(layouts.loops)]
    told += [(f"shared {printable(one.name)}", _shared(one)) for one in layouts.shared]
    return told


def difference_lines(one: Explained, other: Explained) -> Iterator[str]:
    """Return the differences of two configurations: their facts, and their sources as a unified diff."""
    yield f"A          {describe_config(one.config) or 'the defaults of the kernel'}"
    yield f"B          {describe_config(other.config) or 'the defaults of the kernel'}"
    differing = differing_rows(one, other)
    if not differing:
        yield "no known fact differs"
    else:
        widths = [max(len(row[i]) for row in [*differing, ("", "A", "B")]) for i in range(2)]
        yield f"{'':{widths[0]}}  {'A':{widths[1]}}  B"
        for name, mine, theirs in differing:
            yield f"{name.ljust(widths[0])}  {mine.ljust(widths[1])}  {theirs}"
    changed = source_difference(one, other)
    yield "the generated source is the same" if not changed else "generated source:"
    yield from changed


def differing_rows(one: Explained, other: Explained) -> list[tuple[str, str, str]]:
    """Return name, first value and second value of each fact that differs. ``–`` stands for a missing fact."""
    mine, theirs = dict(rows(one)), dict(rows(other))
    names = dict.fromkeys([*mine, *theirs])
    pairs = [(name, mine.get(name, "–"), theirs.get(name, "–")) for name in names]
    return [(name, a, b) for name, a, b in pairs if a != b]


def source_difference(one: Explained, other: Explained) -> list[str]:
    """Return the unified diff of the device sources, which name the kernel ``kernel``. Empty if they are equal."""
    mine, theirs = one.source.splitlines(), other.source.splitlines()
    return [printable(line) for line in difflib.unified_diff(mine, theirs, "A", "B", n=2, lineterm="")]


def _limited(found: Explained) -> str:
    if found.occupancy is None:
        return ""
    return f" blocks a multiprocessor, limited by {' and '.join(found.occupancy.limits)}"


def _fragment(one: FragmentFacts) -> str:
    held = f", each element in {one.replication} threads" if one.replication > 1 else ""
    return f"{_shape(one.shape)} {one.dtype}: {one.slots} slots a thread{held}"


def _loop(one: LoopFacts) -> str:
    parts = [f"{_shape(one.extents)}: {one.slots} iterations a thread"]
    parts += [f"each done by {one.replication} threads"] if one.replication > 1 else []
    parts += [f"{one.redundant} of them redundant"] if one.redundant else []
    parts += [f"{one.width} wide"]
    parts += ["only some threads do it or store"] if one.uneven else []
    parts += [f"stores {printable(', '.join(one.stores))}"] if one.stores else []
    return ", ".join(parts)


def _shared(one: SharedFacts) -> str:
    return f"{_shape(one.shape)} {one.dtype}: {'swizzled' if one.swizzled else 'row by row'}"


def _shape(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))

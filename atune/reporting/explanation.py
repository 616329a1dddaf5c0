"""The facts of a candidate as text, what differs between two, and a candidate's story in a journal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.events import (
    ArtifactBuilt,
    CandidateAliased,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    Event,
)
from atune.journal.reader import JournalReader
from atune.journal.result import Record, Result
from atune.journal.state import State
from atune.model.artifact import what_failed
from atune.model.candidate import describe_config, printable
from atune.model.layouts import FragmentFacts, Layouts, LoopFacts
from atune.model.measurement import Timing
from atune.reporting.export import occupancy, outcome
from atune.reporting.summary import DEFAULTS, failure_groups

Facts = list[tuple[str, str]]
REPEATED = 2.0
"""Times its even share of a loop, from which a thread's work is worth a warning."""


def facts_of(record: Record, arch: str, records: Sequence[Record] = ()) -> Facts:
    """Return the facts of a record by name, as text. `records`: all of its run, for what it was preferred to."""
    facts, machine = record.facts, record.machine
    layouts, found = (facts and facts.layouts) or Layouts(), occupancy(record, arch)
    smem_bytes = None if facts is None else facts.smem_bytes
    if machine is not None:
        smem_bytes = (smem_bytes or 0) + machine.static_smem_bytes
    limits = "" if found is None else f" blocks a multiprocessor, limited by {' and '.join(found.limits)}"
    given: list[tuple[str, Any, str]] = [
        ("choice", choice_of(records, record) or None, ""),
        ("threads", facts and facts.threads, ""),
        ("grid", ("×".join(map(str, facts.grid)) if facts is not None else "") or None, " blocks"),
        ("registers", None if machine is None else machine.registers, " a thread"),
        ("stack", None if machine is None else machine.stack_bytes, " bytes a thread"),
        ("shared memory", smem_bytes, " bytes a block"),
        ("occupancy", None if found is None else found.blocks, limits),
        ("code", None if machine is None else machine.code_bytes, " bytes"),
        ("source", facts and facts.source_bytes, " bytes"),
    ]
    known = [(name, f"{value}{unit}") for name, value, unit in given if value is not None]
    known += [(f"fragment {printable(one.name)}", _fragment(one)) for one in layouts.fragments]
    return known + [(f"loop {n}", _loop(one)) for n, one in enumerate(layouts.loops)]


def choice_of(records: Sequence[Record], record: Record) -> str:
    """Return what a record was passed over for or preferred to; empty where nothing was."""
    if record.instead is not None:
        return outcome(record)
    others = [str(one.index) for one in records if one.instead == record.index]
    return f"preferred to candidate{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""


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


def _shape(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))


def fact_lines(record: Record, arch: str, records: Sequence[Record] = ()) -> list[str]:
    """Return the facts of a record and what its threads repeat, a line each."""
    known, facts = facts_of(record, arch, records), record.facts
    known += [("warning", line) for line in _repeated(None if facts is None else facts.layouts)]
    width = max([9, *(len(name) for name, _ in known)])
    return [f"{name.ljust(width)}  {value}" for name, value in known]


def _repeated(layouts: Layouts | None) -> list[str]:
    """Return a line for each loop that stores outside of registers and whose threads do each other's work."""
    loops = () if layouts is None else layouts.loops
    found = []
    for number, loop in enumerate(loops):
        stored = [one for one in loop.stores if "(local" not in one]
        if stored and loop.repeated >= REPEATED:
            found.append(f"loop {number}: each thread does {loop.repeated:.3g} times its even share, "
                         f"and stores {printable(', '.join(stored))}")  # fmt: skip
    return found


def differences(one: Record, other: Record, arch: str) -> list[tuple[str, str, str]]:
    """Return name, first value and second value of each fact that differs. ``–`` stands for a missing fact."""
    mine, theirs = dict(facts_of(one, arch)), dict(facts_of(other, arch))
    pairs = [(name, mine.get(name, "–"), theirs.get(name, "–")) for name in dict.fromkeys([*mine, *theirs])]
    return [(name, a, b) for name, a, b in pairs if a != b]


class Story(msgspec.Struct, frozen=True):
    """What a journal has of a candidate: its record, the result, and the events of it and of its code."""

    record: Record
    result: Result
    events: list[Event]

    @property
    def measured(self) -> CandidateMeasured | None:
        """Its measurement: with its first timing, and whether its outputs were checked."""
        return next((event for event in reversed(self.events) if isinstance(event, CandidateMeasured)), None)

    @property
    def compiler(self) -> str:
        """What compiled it, and why."""
        return next((event.compiler for event in reversed(self.events) if isinstance(event, ArtifactBuilt)), "")

    @property
    def timings(self) -> dict[str, Timing | None]:
        """Its timing of the final, and its first one."""
        first = None if self.measured is None else self.measured.timing
        return {"final": None if self.record.timing is first else self.record.timing, "first": first}


def candidate_story(journal: str | Path, index: int | None = None) -> Story:
    """Return what the journal at `journal` has of candidate `index`: of the winner, else of the first that failed.

    Raises `JournalError` where it cannot be read, and `UsageError` where it has no such candidate.
    """
    state, events = State(), list[Event]()
    for event in JournalReader(journal):
        state.apply(event)
        events.append(event)
    result = Result.of(state, Path(journal), replayed=True)
    record = record_at(result, index)
    first = record.index if record.same_as is None else record.same_as
    same = {one.index for one in result.all_records if first in (one.index, one.same_as)}
    return Story(record, result, [event for event in events if _concerns(event, {record.index, first}, same)])


def _concerns(event: Event, own: set[int], same: set[int]) -> bool:
    """Tell whether an event is of one of `own`, or says of one with the same code what holds for all of them."""
    wanted = own if isinstance(event, CandidateProposed | CandidateLowered | CandidateAliased) else same
    return getattr(event, "index", None) in wanted or not wanted.isdisjoint(getattr(event, "indices", ()))


def record_at(result: Result, index: int | None) -> Record:
    """Return the record of candidate `index`; for None the winner's, else that of the first that failed."""
    if index is None:
        index = result.best_index
    if index is None:
        index = next((group.first.index for group in failure_groups(result.records)), None)
    found = next((record for record in result.all_records if record.index == index), None)
    if found is not None:
        return found
    listed = f"those it has: atune replay {shlex.quote(str(result.journal))} --table"
    if index is not None and 0 <= index < result.total:
        raise UsageError(f"candidate {index} was not tried; {listed}")
    wanted = "candidate that was measured or failed" if index is None else f"candidate {index}"
    raise UsageError(f"{result.journal} has no {wanted}; {listed}")


def story_lines(story: Story) -> Iterator[str]:
    """Return the story for people, a line each, safe to print."""
    record, result = story.record, story.result
    yield f"candidate  {record.index}: {record.status}"
    yield f"config     {describe_config(record.config) or DEFAULTS}"
    yield f"key        {printable(record.key)}"
    if record.same_as is not None:
        yield f"same as    candidate {record.same_as}: the same code, compiled and measured once"
    if record.message:
        what = f"{what_failed(record.kind)}: " if record.kind else ""
        yield f"reason     {printable(what + record.message)}"
    for name, timing in story.timings.items():
        if timing is not None:
            yield (
                f"{name:<9}  {timing.latency_ms:.4g} ms, spread {timing.spread:.1%}, {timing.n_samples} samples by "
                f"{printable(timing.method)} on device {printable(record.device)}"
            )
            yield f"  samples  {' '.join(f'{us:g}' for us in timing.samples_us)} µs"
    if (measured := story.measured) is not None:
        error = "" if measured.max_error is None else f", largest difference {measured.max_error:.3g}"
        yield f"outputs    {f'right{error}' if measured.checked else 'not checked'}"
    header = result.header
    yield from fact_lines(record, "" if header is None else header.target.arch, result.all_records)
    if record.facts is not None and header is not None and header.origin:
        yield f"source     atune explain {shlex.quote(printable(str(result.journal)))} {record.index} --source"
    if story.compiler:
        yield f"compiler   {printable(story.compiler)}"
    for name, text in (("printed", record.printed), ("written", record.detail)):
        if lines := text.rstrip().splitlines():
            yield name
            yield from (f"  {printable(line)}" for line in lines)
    yield "events"
    for event in story.events:
        yield f"  {event.mono:9.3f} s  {type(event).__struct_config__.tag}  {printable(event.worker)}"


def story_data(story: Story) -> dict[str, Any]:
    """Return the story as ``--json`` prints it: the record's fields, and the rest next to them."""
    measured = story.measured
    data: dict[str, Any] = {name: getattr(story.record, name) for name in Record.__struct_fields__} | story.timings
    data |= {
        "journal": story.result.journal,
        "checked": measured is not None and measured.checked,
        "max_error": measured and measured.max_error,
        "compiler": story.compiler,
        "events": story.events,
    }
    found: dict[str, Any] = msgspec.to_builtins(data)
    return found

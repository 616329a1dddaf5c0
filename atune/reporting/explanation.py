"""What is known of one candidate: the story of it in a journal, and what `atune explain` finds of configurations."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Sequence
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
    FinalOrdered,
)
from atune.journal.reader import JournalReader
from atune.journal.result import Record, Result
from atune.journal.state import State
from atune.model.artifact import StaticFacts, source_path, what_failed
from atune.model.candidate import describe_config, printable
from atune.model.jobs import Explained
from atune.model.layouts import FragmentFacts, Layouts, LoopFacts
from atune.model.measurement import Timing
from atune.reporting.export import outcome
from atune.reporting.headline import DEFAULTS
from atune.reporting.layout_notes import repeated_lines
from atune.reporting.summary import failure_groups


class CandidateStory(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's record and its events. `first`, `final`: its timings; None where it was not timed there.

    `first_device`, `final_device`: ids of the devices of these. `compiler`: what compiled it. `source`: path of its
    generated source; empty where it was not kept. `journal`: the path. `origin`: the workload's file; empty where it
    came from none. `choice`: what a run that chooses layouts passed it over for, or preferred it to.
    """

    record: Record
    target: str
    journal: str
    origin: str = ""
    first: Timing | None = None
    final: Timing | None = None
    first_device: str = ""
    final_device: str = ""
    checked: bool = False
    max_error: float | None = None
    compiler: str = ""
    source: str = ""
    choice: str = ""
    events: tuple[Event, ...] = ()


def candidate_story(journal: str | Path, index: int | None = None) -> CandidateStory:
    """Return what the journal at `journal` has of candidate `index`: of the winner, else of the first that failed.

    Raises `JournalError` where it cannot be read, and `UsageError` where it has no such candidate.
    """
    state, concerning = State(), list[Event]()
    for event in JournalReader(journal):
        state.apply(event)
        if hasattr(event, "index") or hasattr(event, "indices") or isinstance(event, FinalOrdered):
            concerning.append(event)
    result = Result.of(state, Path(journal), replayed=True)
    record = _chosen(result, index)
    same = _with_its_code(result, record)
    return _story(result, record, same, [e for e in concerning if _concerns(e, record, same)])


def _chosen(result: Result, index: int | None) -> Record:
    if index is None:
        index = result.best_index
    if index is None:
        index = next((group.first.index for group in failure_groups(result.records)), None)
    found = next((record for record in result.all_records if record.index == index), None)
    if found is None:
        raise not_tried(result, index)
    return found


def not_tried(result: Result, index: int | None) -> UsageError:
    """Return the error that a result has no candidate `index`, or, for None, none that was measured or failed."""
    listed = f"those it has: atune replay {shlex.quote(str(result.journal))} --table"
    if index is not None and 0 <= index < result.total:
        return UsageError(f"candidate {index} was not tried; {listed}")
    wanted = "candidate that was measured or failed" if index is None else f"candidate {index}"
    return UsageError(f"{result.journal} has no {wanted}; {listed}")


def _concerns(event: Event, record: Record, same: set[int]) -> bool:
    if isinstance(event, FinalOrdered):
        return any(entry.index in same for entry in event.entries)
    if isinstance(event, CandidateProposed | CandidateLowered | CandidateAliased):  # of all others with its code: many
        return event.index in (record.index, record.same_as)
    return getattr(event, "index", None) in same or not same.isdisjoint(getattr(event, "indices", ()))


def _with_its_code(result: Result, record: Record) -> set[int]:
    """Return the candidates that share the record's code, itself among them: any of them was measured for all."""
    first = record.index if record.same_as is None else record.same_as
    return {one.index for one in result.all_records if first in (one.index, one.same_as)}


def _story(result: Result, record: Record, same: set[int], events: list[Event]) -> CandidateStory:
    built = next((e for e in reversed(events) if isinstance(e, ArtifactBuilt)), None)
    measured = next((e for e in reversed(events) if isinstance(e, CandidateMeasured)), None)
    final = [entry.timing for entry in result.final if entry.index in same]
    ordered = next((e for e in reversed(events) if isinstance(e, FinalOrdered)), None)
    return CandidateStory(
        record=record,
        target=str(result.header.target) if result.header is not None else "",
        journal=result.journal or "",
        origin=result.header.origin if result.header is not None else "",
        first=None if measured is None else measured.timing,
        final=final[0] if final else None,
        first_device="" if measured is None else measured.device,
        final_device=ordered.device if final and ordered is not None else "",
        checked=measured is not None and measured.checked,
        max_error=None if measured is None else measured.max_error,
        compiler="" if built is None else built.compiler,
        source=_source(result) if result.best_index in same else "",
        choice=choice_of(result.all_records, record.index),
        events=tuple(events),
    )


def _source(result: Result) -> str:
    """Return where the winner's source lies; empty where it is gone."""
    if (library := result.artifact) is None:
        return ""
    path = source_path(library.path, library.symbol)
    return path if Path(path).is_file() else ""


def story_lines(story: CandidateStory) -> Iterator[str]:
    """Return the story for people, a line each, safe to print."""
    record = story.record
    yield f"candidate  {record.index}: {record.status}"
    yield f"config     {describe_config(record.config) or DEFAULTS}"
    yield f"key        {printable(record.key)}"
    if record.same_as is not None:
        yield f"same as    candidate {record.same_as}: the same code, compiled and measured once"
    if record.message:
        what = f"{what_failed(record.kind)}: " if record.kind else ""
        yield f"reason     {printable(what + record.message)}"
    yield from _timing_lines(story)
    yield from _fact_lines(story)
    if story.source:
        yield f"source at  {printable(story.source)}"
    elif record.facts is not None:
        which = f"{shlex.quote(printable(story.journal))} {record.index}"
        again = f"; to make it again: atune explain {which} --source" if story.origin else ""
        yield f"source at  not kept{again}"
    if story.compiler:
        yield f"compiler   {printable(story.compiler)}"
    yield from _block("written", record.detail)
    yield "events"
    for event in story.events:
        name = str(type(event).__struct_config__.tag)
        yield f"  {event.mono:9.3f} s  {name}  {printable(event.worker)}"


def _timing_lines(story: CandidateStory) -> Iterator[str]:
    timings = ("final", story.final, story.final_device), ("first", story.first, story.first_device)
    for name, timing, device in timings:
        if timing is not None:
            yield (
                f"{name:<9}  {timing.latency_ms:.4g} ms, spread {timing.spread:.1%}, {timing.n_samples} samples by "
                f"{printable(timing.method)} on device {printable(device)}"
            )
            yield f"  samples  {' '.join(f'{us:g}' for us in timing.samples_us)} µs"
    if story.first is not None:
        error = "" if story.max_error is None else f", largest difference {story.max_error:.3g}"
        yield f"outputs    {f'right{error}' if story.checked else 'not checked'}"


def _fact_lines(story: CandidateStory) -> Iterator[str]:
    record = story.record
    known = rows(_explained(record, story.target, story.choice))
    width = max([9, *(len(name) for name, _ in known)])
    yield from (f"{name.ljust(width)}  {value}" for name, value in known)


def fact_rows(record: Record, target: str, records: Sequence[Record]) -> Rows:
    """Return the facts of a record by name, as text; `records`: all of its run, for what it was preferred to."""
    return rows(_explained(record, target, choice_of(records, record.index)))


def _explained(record: Record, target: str, choice: str) -> Explained:
    return Explained(
        config=record.config,
        target=target,
        facts=record.facts or StaticFacts(),
        source="",
        machine=record.machine,
        choice=choice,
    )


def _block(title: str, text: str) -> Iterable[str]:
    lines = text.rstrip().splitlines()
    return [title, *(f"  {printable(line)}" for line in lines)] if lines else []


def story_data(story: CandidateStory) -> dict[str, Any]:
    """Return the story as ``--json`` prints it: the record's fields, and the rest next to them."""
    data: dict[str, Any] = {name: getattr(story.record, name) for name in Record.__struct_fields__}
    data |= {name: getattr(story, name) for name in CandidateStory.__struct_fields__ if name != "record"}
    found: dict[str, Any] = msgspec.to_builtins(data)
    return found


Rows = list[tuple[str, str]]


def report_lines(found: Explained) -> Iterator[str]:
    """Return the report of one configuration, as lines of text."""
    yield f"config     {describe_config(found.config) or DEFAULTS}"
    yield f"target     {found.target}"
    width = max(len(name) for name, _ in rows(found))
    for name, value in rows(found):
        yield f"{name.ljust(width)}  {value}"
    yield from (f"{'warning'.ljust(width)}  {line}" for line in repeated_lines(found.facts.layouts))
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
        ("shared memory", found.smem_bytes, " bytes a block"),
        ("occupancy", None if found.occupancy is None else found.occupancy.blocks, _limited(found)),
        ("code", None if machine is None else machine.code_bytes, " bytes"),
        ("source", facts.source_bytes, " bytes"),
    ]
    known = [(name, f"{value}{unit}") for name, value, unit in given if value is not None]
    known += [(f"fragment {printable(one.name)}", _fragment(one)) for one in layouts.fragments]
    known += [(f"loop {n}", _loop(one)) for n, one in enumerate(layouts.loops)]
    return known


def difference_lines(one: Explained, other: Explained) -> Iterator[str]:
    """Return the differences of two configurations: their facts, and their sources as a unified diff."""
    yield f"A          {describe_config(one.config) or DEFAULTS}"
    yield f"B          {describe_config(other.config) or DEFAULTS}"
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


def _shape(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))


def choice_of(records: Sequence[Record], index: int) -> str:
    """Return what the candidate `index` was passed over for or preferred to; empty where nothing was."""
    [record] = [record for record in records if record.index == index]
    if record.instead is not None:
        return outcome(record)
    others = [str(one.index) for one in records if one.instead == index]
    return f"preferred to candidate{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""

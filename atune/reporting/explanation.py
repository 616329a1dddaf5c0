"""One candidate in full: the facts of its code, and what a journal has of it, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.result import Record, Result
from atune.model.artifact import what_failed
from atune.model.candidate import describe_config, printable
from atune.model.layouts import Layouts, LoopFacts
from atune.model.measurement import Measurement
from atune.reporting.export import occupancy, outcome
from atune.reporting.summary import DEFAULTS, failure_groups

Facts = list[tuple[str, str]]
REPEATED = 2.0
"""Times its even share of a loop, from which a thread's work is worth a warning."""


def facts_of(record: Record, arch: str, records: Sequence[Record] = ()) -> Facts:
    """Return the facts of a record by name, as text. `records`: all of its run, which name the layouts it replaced."""
    facts, machine, found = record.facts, record.machine, occupancy(record, arch)
    layouts = (facts and facts.layouts) or Layouts()
    known: Facts = []
    if record.instead is not None:
        known.append(("choice", outcome(record)))
    elif others := [str(one.index) for one in records if one.instead == record.index]:
        known.append(("choice", f"preferred to candidate{'s' if len(others) > 1 else ''} {', '.join(others)}"))
    if facts is not None:
        known += [("threads", str(facts.threads))] if facts.threads is not None else []
        known += [("grid", f"{_shape(facts.grid)} blocks")] if facts.grid else []
        known += [("source", f"{facts.source_bytes} bytes")] if facts.source_bytes is not None else []
    if machine is not None:
        known += [("registers", f"{machine.registers} a thread"), ("stack", f"{machine.stack_bytes} bytes a thread")]
        smem_bytes = machine.static_smem_bytes + ((facts and facts.smem_bytes) or 0)
        known += [("shared memory", f"{smem_bytes} bytes a block"), ("code", f"{machine.code_bytes} bytes")]
    if found is not None:
        limits = f"limited by {' and '.join(found.limits)}"
        known += [("occupancy", f"{found.blocks} blocks a multiprocessor, {limits}")]
    for one in layouts.fragments:
        held = f", each element in {one.replication} threads" if one.replication > 1 else ""
        text = f"{_shape(one.shape)} {one.dtype}: {one.slots} slots a thread{held}"
        known.append((f"fragment {printable(one.name)}", text))
    known += [(f"loop {n}", _loop(loop)) for n, loop in enumerate(layouts.loops)]
    for n, loop in enumerate(layouts.loops):
        stored = printable(", ".join(name for name in loop.stores if "(local" not in name))
        if stored and loop.repeated >= REPEATED:
            share = f"each thread does {loop.repeated:.3g} times its even share"
            known.append(("warning", f"loop {n}: {share}, and stores {stored}"))
    return known


def _loop(one: LoopFacts) -> str:
    parts = [f"{_shape(one.extents)}: {one.slots} iterations a thread"]
    parts += [f"each done by {one.replication} threads"] if one.replication > 1 else []
    parts += [f"{one.redundant} of them redundant"] if one.redundant else []
    parts += [f"{one.width} wide"]
    parts += ["only some threads do it or store"] if one.uneven else []
    source, slots = one.by_source
    if slots > one.slots:
        parts.append(f"not laid out as {printable(source)} ({slots} a thread)")
    elif slots == one.slots and one.redundant:
        parts.append(f"laid out as {printable(source)}, not evenly ({slots - one.redundant} a thread)")
    parts += [f"stores {printable(', '.join(one.stores))}"] if one.stores else []
    return ", ".join(parts)


def _shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))


def record_data(record: Record, arch: str, result: Result | None = None) -> dict[str, Any]:
    """Return a record as ``--json`` prints it: its fields, a `machine` with every field, and its occupancy.

    `result`: where it comes from, which adds its journal, and its first `measurement`.
    """
    machine = record.machine and msgspec.structs.asdict(record.machine)
    more: dict[str, Any] = {"machine": machine, "occupancy": occupancy(record, arch), "target": arch or "c"}
    if result is not None:
        more |= {"journal": result.journal, "measurement": _first(result, record)}
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(record) | more)
    return found


def record_at(result: Result, index: int | None) -> Record:
    """Return the record of candidate `index`; for None the winner's, else that of the first that failed."""
    if index is None and result.best is not None:
        return result.best
    if index is None:
        index = next((group.first.index for group in failure_groups(result.records)), None)
    found = next((record for record in result.all_records if record.index == index), None)
    if found is not None:
        return found
    wanted = "candidate that was measured or failed" if index is None else f"candidate {index}"
    journal = str(result.journal)
    raise UsageError(f"{journal} has no {wanted}; those it has: atune replay {shlex.quote(journal)} --table")


def _first(result: Result, record: Record) -> Measurement | None:
    """Return the first measurement of a record's code."""
    return next((one for one in result.measurements if one.index == record.credited), None)


def record_lines(record: Record, arch: str, result: Result | None = None) -> list[str]:
    """Return a record for people, safe to print: its configuration and its facts, and all that a `result` has of it."""
    config = ("config", describe_config(record.config) or DEFAULTS)
    if result is None:
        return _lines([config, ("target", arch or "c"), *facts_of(record, arch)])
    header, measured = result.header, _first(result, record)
    known = [("candidate", f"{record.index}: {record.status}"), config, ("key", printable(record.key))]
    if record.same_as is not None:
        known.append(("same as", f"candidate {record.same_as}: the same code, compiled and measured once"))
    if record.message:
        what = f"{what_failed(record.kind)}: " if record.kind else ""
        known.append(("reason", printable(what + record.message)))
    first = None if measured is None else measured.timing
    for name, timing in (("final", record.timing), ("first", first)):
        if timing is not None and (name == "first" or timing is not first):
            by = f"{timing.n_samples} samples by {printable(timing.method)} on device {printable(record.device)}"
            known.append((name, f"{timing.latency_ms:.4g} ms, spread {timing.spread:.1%}, {by}"))
            known.append(("  samples", printable(" ".join(f"{us:g}" for us in timing.samples_us)) + " µs"))
    if measured is not None:
        error = "" if measured.max_error is None else f", largest difference {measured.max_error:.3g}"
        known.append(("outputs", f"right{error}" if measured.checked else "not checked"))
    known += facts_of(record, arch, result.all_records)
    if record.facts is not None and header.origin:
        journal = shlex.quote(printable(str(result.journal)))
        known.append(("source", f"atune explain {journal} {record.index} --source"))
    lines = _lines(known)
    for name, text in (("printed", record.printed), ("written", record.detail)):
        if written := text.rstrip().splitlines():
            lines += [name, *(f"  {printable(line)}" for line in written)]
    return lines


def _lines(known: Facts) -> list[str]:
    return [f"{name:<10} {value}" for name, value in known]

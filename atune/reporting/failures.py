"""Why candidates failed: grouped, and with what teaches most of each group."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import msgspec

from atune.journal.printing import describe_config, printable
from atune.journal.result import Record, TuneResult
from atune.model.candidate import Config
from atune.system.places import Place, place_in

MOST_GROUPS = 50
"""Groups that ``--json`` prints."""
RAN = frozenset({"mismatch", "non_finite", "unwritten", "out_of_bounds", "launch", "fault"})
"""Kinds of failures of candidates that a device has called."""
WORDS = 3
"""Lines of a compiler's or a worker's last words that the screen shows."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates that failed or were pruned alike.

    `kind`: a failure kind, or ``pruned``. `where`: the place in the user's code that raised; None where none is known.
    `example`, `index`: the configuration and the number of the first of them. `detail`: what was written for that one.
    """

    kind: str
    message: str
    count: int
    where: Place | None
    example: Config
    index: int
    detail: str = ""


def failure_groups(records: Iterable[Record]) -> list[FailureGroup]:
    """Return the groups of the failed and pruned among `records`, the most frequent first."""
    members: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.status in ("failed", "pruned"):
            members.setdefault((record.kind or record.status, record.message), []).append(record)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_group(kind, message, found) for (kind, message), found in ordered]


def _group(kind: str, message: str, found: list[Record]) -> FailureGroup:
    first = found[0]
    return FailureGroup(
        kind=kind,
        message=message,
        count=len(found),
        where=place_in(first.detail),
        example=first.config,
        index=first.index,
        detail=first.detail,
    )


def failure_summary(records: Iterable[Record]) -> list[tuple[str, str, int]]:
    """Return (kind, message, count) of failed and pruned candidates, the most frequent first."""
    return [(group.kind, group.message, group.count) for group in failure_groups(records)]


def failures_data(result: TuneResult) -> list[dict[str, Any]]:
    """Return the groups as ``--json`` prints them: kind, count, message, where and example."""
    return [
        {
            "kind": group.kind,
            "count": group.count,
            "message": group.message,
            "where": msgspec.to_builtins(group.where),
            "example": {"index": group.index, "config": msgspec.to_builtins(group.example)},
        }
        for group in failure_groups(result.records)[:MOST_GROUPS]
    ]


def first_failure_lines(result: TuneResult) -> list[str]:
    """Return what teaches of the largest group that failed: an example, its place or last words, and how to see more.

    Empty where nothing failed.
    """
    group = next((g for g in failure_groups(result.records) if g.kind != "pruned"), None)
    if group is None:
        return []
    alike = _all_mismatch(result)
    example = describe_config(group.example) or "the kernel's defaults"
    lines = [f"for example {group.kind} of candidate {group.index}: {example}"]
    told = group.where.lines() if group.where is not None else _words(group)
    lines += [f"  {printable(line)[:300]}" for line in told]
    if result.journal is not None:
        lines.append(f"all of it: atune show {shlex.quote(printable(result.journal))} {group.index}")
    return lines + alike


def _all_mismatch(result: TuneResult) -> list[str]:
    """Say what it means that every candidate that ran differs from the reference: it is hardly the configurations."""
    ran = [record.kind for record in result.records if record.status == "failed" and record.kind in RAN]
    if result.measured or len(ran) < 2 or set(ran) != {"mismatch"}:
        return []
    return ["every candidate that ran differs from the reference: look at the kernel, the reference and the inputs"]


def _words(group: FailureGroup) -> list[str]:
    """Return the last words that do not repeat the message."""
    lines = [line.rstrip() for line in group.detail.splitlines() if line.strip()]
    return [line for line in lines if line.strip() not in group.message][-WORDS:]


def failure_lines(result: TuneResult, limit: int = 8) -> list[str]:
    """Return reasons of failed and pruned candidates, grouped and counted: `limit` lines and one for the rest."""
    groups = failure_summary(result.records)
    lines = [f"{n} × {kind}: {printable(message)}" for kind, message, n in groups[:limit]]
    rest = sum(n for _, _, n in groups[limit:])
    return lines + ([f"{rest} more, of {len(groups) - limit} other reasons"] if rest else [])

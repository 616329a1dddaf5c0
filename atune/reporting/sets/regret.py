"""The regret matrix: how much slower each configuration is than the best one, on each problem of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.result import Record, Result
from atune.model.candidate import Config, thaw
from atune.reporting.sets.reading import Source, header_of, problem_key, problem_text, results_of


class RegretMatrix(msgspec.Struct, frozen=True):
    """What each configuration costs on each problem. Rows are configurations by key, columns are problems as given."""

    kernel: str
    """The workload's name."""
    problems: tuple[dict[str, Any], ...]
    """Arguments of the problems that have a winner."""
    configs: tuple[Config, ...]
    """Winners and finalists."""
    regret: tuple[tuple[float | None, ...], ...]
    """By row and column: latency over that of the problem's best, less one. None where it was not measured."""
    winners: tuple[int, ...]
    """By column, the row of the problem's winner. One that is tied with a faster finalist has a regret above 0."""
    asks: tuple[str, ...] = ()
    """Arguments of the problems that functions of the space take, such as its constraints."""


def regret_matrix(results: Source) -> RegretMatrix:
    """Return the regret matrix of `results`, each of another problem of one kernel: results, journals, or folders.

    Latencies are compared like with like: finalists' by the final, others' by their first timing. A problem without a
    winner is left out. Raises `UsageError` for several kernels or targets, a problem that comes twice, and no winner.
    """
    known = results_of(results)
    _check_one_kernel(known)
    won = [result for result in known if result.best is not None]
    if not won:
        raise UsageError("no result has a winner, so that there is nothing to compare")
    rows = {record.key: record.config for result in won for record in _finalists(result)}
    keys = sorted(rows)
    columns = [regret_of(result) for result in won]
    return RegretMatrix(
        kernel=header_of(won[0]).workload,
        problems=tuple(thaw(header_of(result).arguments) for result in won),
        configs=tuple(thaw(rows[key]) for key in keys),
        regret=tuple(tuple(column.get(key) for column in columns) for key in keys),
        winners=tuple(keys.index(result.best.key) for result in won if result.best is not None),
        asks=tuple(sorted({name for result in won for name in header_of(result).asks})),
    )


def _finalists(result: Result) -> list[Record]:
    """Return the winner and the finalists that may win, without the slowest, which is timed for the summary."""
    final = {entry.index for entry in result.final}
    kept = [r for r in _contenders(result) if r.index in final and r != result.slowest]
    return kept if result.best is None or result.best in kept else [result.best, *kept]


def _contenders(result: Result) -> Sequence[Record]:
    """Return the records that may win: a baseline does only where it did, because its outputs may be unchecked."""
    return result.all_records if result.best == result.baseline else result.records


def regret_of(result: Result) -> dict[str, float]:
    """Return the regret of all that were measured, by key."""
    firsts = {one.index: one.timing.latency_ms for one in result.measurements}
    finals = {entry.index: entry.timing.latency_ms for entry in result.final}
    credited = {r.key: r.index if r.same_as is None else r.same_as for r in _contenders(result)}
    found: dict[str, float] = {}
    for latencies in (firsts, finals):
        there = {key: latencies[index] for key, index in credited.items() if latencies.get(index)}
        best = min(there.values(), default=0.0)
        found |= {key: latency / best - 1 for key, latency in there.items()}
    return found


def _check_one_kernel(results: Sequence[Result]) -> None:
    first, *others = headers = [header_of(result) for result in results]
    for other in others:
        if not _same_kernel(first, other):
            raise UsageError(f"results of different kernels, {first.workload!r} and {other.workload!r}: give one's")
        if other.target != first.target:
            raise UsageError(f"results of different targets, {first.target} and {other.target}: give one's")
    seen = set[str]()
    for header in headers:
        if problem_key(header) in seen:
            raise UsageError(f"the problem {problem_text(header)} comes twice: atune merge makes one journal of both")
        seen.add(problem_key(header))


def _same_kernel(one: RunStarted, other: RunStarted) -> bool:
    """Tell whether both are of one kernel. One that closes over its problem has its name alone in common."""
    return one.workload == other.workload or bool(one.kernel and one.kernel == other.kernel)

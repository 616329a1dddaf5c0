"""Compares the winners of two sets of journals, problem by problem."""

from __future__ import annotations

from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.result import Ratio, Result
from atune.model.candidate import Config, config_key, describe_config, printable
from atune.model.measurement import median_interval
from atune.reporting.export import aligned
from atune.reporting.regret import Source, header_of, results_of

HEADS = ("problem", "before ms", "after ms", "ratio (95 %)", "", "winner")
LEVEL = 0.975
"""Confidence of a median's interval. Two of them together hold at 95 % (Bonferroni)."""


class ComparedProblem(msgspec.Struct, frozen=True):
    """A problem in both sets. `kernel`: its name. `problem`: the arguments. `before`, `after`: the winners.

    `before_ms`, `after_ms`: their latencies. None where there is no winner.
    """

    kernel: str
    problem: dict[str, Any]
    before: Config | None
    after: Config | None
    before_ms: float | None
    after_ms: float | None
    ratio: Ratio | None
    """Latency after over before, with its interval: (low, ratio, high). Above 1 it is slower. None where unknown."""
    slower: bool
    """Whether the whole interval is above the limit, or a winner is there no more."""


class Comparison(msgspec.Struct, frozen=True):
    """Two sets of results. `problems`: those in both. `fail_over`: the share by which a winner may be slower.

    `only_before`, `only_after`: how many problems one set has alone. `changed`: what else differs, such as versions.
    """

    fail_over: float
    problems: tuple[ComparedProblem, ...]
    only_before: int
    only_after: int
    changed: tuple[str, ...]

    @property
    def slower(self) -> tuple[ComparedProblem, ...]:
        """The problems that are slower than `fail_over` allows."""
        return tuple(one for one in self.problems if one.slower)

    def __str__(self) -> str:
        table = aligned([HEADS, *(_row(one) for one in self.problems)])
        counts = f"{len(self.slower)} of {len(self.problems)} slower by more than {100 * self.fail_over:.4g} %"
        alone = f"; {self.only_before} only before, {self.only_after} only after"
        changed = f"\nchanged    {printable(', '.join(self.changed))}" if self.changed else ""
        return f"{table}\n\nproblems   {counts}{alone if self.only_before + self.only_after else ''}{changed}"


def _row(one: ComparedProblem) -> tuple[str, ...]:
    latencies = ("none" if ms is None else f"{ms:.4g}" for ms in (one.before_ms, one.after_ms))
    ratio = "" if one.ratio is None else "{1:.3f} ({0:.3f}–{2:.3f})".format(*one.ratio)
    before, after = ("none" if config is None else describe_config(config) for config in (one.before, one.after))
    winner = after if before == after else f"{after} (was {before})"
    problem = printable(f"{one.kernel} {describe_config(one.problem)}".rstrip())
    return problem, *latencies, ratio, "slower" if one.slower else "", winner


def compare(before: Source, after: Source, *, fail_over: float = 0.02) -> Comparison:
    """Compare the winners of the same problems.

    Each side is a result, a set's result, a journal, a folder of journals, or a list of these. Problems are matched by
    the kernel's name and their arguments; of several runs of one the latest counts. A ratio's interval covers the
    scatter within the runs, and not what differs between them: `fail_over` is for that.

    Raises `UsageError` where no problem is in both, and `JournalError` for a journal that cannot be read.
    """
    if not fail_over >= 0:
        raise UsageError(f"compare: fail_over must be zero or more, such as 0.02, got {fail_over!r}")
    one, other = _latest(before), _latest(after)
    both = [key for key in one if key in other]
    if not both:
        first, second = (", ".join(sorted({" ".join(key) for key in side})) for side in (one, other))
        raise UsageError(f"no problem is in both: {first} before, {second} after")
    changed: dict[str, None] = {}
    for old, new in ((_setup(one[key]), _setup(other[key])) for key in both):
        differ = (name for name in {**old, **new} if old.get(name) != new.get(name))
        changed |= {f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}": None for name in differ}
    problems = tuple(_compared(one[key], other[key], fail_over) for key in both)
    return Comparison(fail_over, problems, len(one) - len(both), len(other) - len(both), tuple(changed))


def _latest(source: Source) -> dict[tuple[str, str], Result]:
    """Return the latest run of each kernel's problems, in the order given."""
    found: dict[tuple[str, str], Result] = {}
    for result in results_of(source):
        key = header_of(result).workload, config_key(header_of(result).arguments)
        if key not in found or header_of(found[key]).time <= header_of(result).time:
            found[key] = result
    return found


def _compared(before: Result, after: Result, fail_over: float) -> ComparedProblem:
    old, new, header = _interval_us(before), _interval_us(after), header_of(after)
    ratio = None if old is None or new is None else (new[0] / old[2], new[1] / old[1], new[2] / old[0])
    slower = ratio[0] > 1 + fail_over if ratio else before.best is not None and after.best is None
    winners = before.best_config, after.best_config, before.latency_ms, after.latency_ms
    return ComparedProblem(header.workload, header.arguments, *winners, ratio, slower)


def _interval_us(result: Result) -> Ratio | None:
    """Return (low, median, high) of the winner's latency; None without a winner, or without its samples."""
    timing = None if result.best is None else result.best.timing
    if timing is None or not timing.samples_us or not all(timing.samples_us):
        return None
    return median_interval(timing.samples_us, LEVEL)


def _setup(result: Result) -> dict[str, str]:
    """Return what may differ between two runs: devices, target, the kernel's source and versions."""
    header, devices = header_of(result), ", ".join(sorted({device.name for device in result.devices}))
    run = "finished" if result.finished else "unfinished"
    facts = {"run": run, "device": devices, "target": str(header.target), "kernel": header.kernel[:12]}
    return facts | header.versions

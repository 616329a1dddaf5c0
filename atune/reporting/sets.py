"""Results of several problems of a kernel: what each configuration costs, a cover, a rule for new ones; comparison."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.reader import replay
from atune.journal.result import Ratio, Record, Result
from atune.journal.set_folder import TunedProblem, journals_in
from atune.model.candidate import Config, config_key, describe_config, distance, is_size, printable, with_tuples
from atune.model.measurement import median_interval
from atune.model.space import Space
from atune.reporting.export import aligned

MAX_REGRET = 0.03
"""Regret that a cover allows where nothing else is asked for."""

HEADS = ("problem", "before ms", "after ms", "ratio (95 %)", "", "winner")
LEVEL = 0.975
"""Confidence of a median's interval. Two of them together hold at 95 % (Bonferroni)."""

Part = Result | str | os.PathLike[str]
Results = Part | Iterable["Part | TunedProblem"]
"""A result, a journal, a folder of journals, a set's result, or several of these."""


def results_of(source: Results) -> list[Result]:
    """Return the results that `source` holds: of a folder those of `journals_in`.

    Raises `JournalError` for a journal that cannot be read, and `UsageError` where there is none.
    """
    found = list(_results(source))
    if not found:
        shown = printable(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the list"
        raise UsageError(f"{shown} has no journals: give a journal, a folder of *.jsonl, or a list of these")
    return found


def _results(source: Results | TunedProblem) -> Iterator[Result]:
    if isinstance(source, Result):
        yield source
    elif isinstance(source, TunedProblem):
        yield from [] if source.result is None else [source.result]
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        yield from map(replay, journals_in(path) if path.is_dir() else [path])
    else:
        for each in source:
            yield from _results(each)


class RegretMatrix(msgspec.Struct, frozen=True):
    """The regret of each configuration on each problem. Rows: configurations by key. Columns: problems as given."""

    problems: tuple[dict[str, Any], ...]
    """Arguments of the problems that have a winner."""
    configs: tuple[Config, ...]
    """Winners and finalists."""
    regret: tuple[tuple[float | None, ...], ...]
    """``regret[row][column]``: latency over that of the problem's winner, less one. None: not measured. A
    finalist that ties with the winner counts as one, with no regret."""
    winners: tuple[int, ...]
    """``winners[column]``: the row of the problem's winner."""
    asks: tuple[str, ...] = ()
    """Arguments of the problems that functions of the space take, such as its constraints."""


def regret_matrix(results: Results) -> RegretMatrix:
    """Return the regret matrix of `results`, each of another problem of one kernel: results, journals, or folders.

    Latencies are compared like with like: finalists' by the final, others' by their first timing. A problem without a
    winner is left out. Raises `UsageError` for several kernels or targets, a problem that comes twice, and no winner.
    """
    known = results_of(results)
    _check_one_kernel(known)
    won = [(result, result.best) for result in known if result.best is not None and result.best.latency_ms]
    if not won:
        raise UsageError("no result has a winner, so that there is nothing to compare")
    rows = {record.key: record.config for result, best in won for record in (best, *_finalists(result))}
    keys = sorted(rows)
    columns = [_regret(result, best) for result, best in won]
    headers = [result.header for result, _ in won]
    return RegretMatrix(
        problems=tuple(with_tuples(header.arguments) for header in headers),
        configs=tuple(with_tuples(rows[key]) for key in keys),
        regret=tuple(tuple(column.get(key) for column in columns) for key in keys),
        winners=tuple(keys.index(best.key) for _, best in won),
        asks=tuple(sorted({name for header in headers for name in header.asks})),
    )


def _finalists(result: Result) -> list[Record]:
    """Return the finalists that may win."""
    final = {entry.index for entry in result.final}
    return [record for record in _contenders(result) if record.index in final]


def _contenders(result: Result) -> Sequence[Record]:
    """Return the records that may win: a baseline does only where it did, because its outputs may be unchecked."""
    return result.all_records if result.best == result.baseline else result.records


def _regret(result: Result, best: Record) -> dict[str, float]:
    """Return the regret of all that were measured, by key."""
    firsts = {one.index: one.timing.latency_ms for one in result.measurements}
    finals = {entry.index: entry.timing.latency_ms for entry in result.final}
    credited = {record.key: record.credited for record in _contenders(result)}
    found: dict[str, float] = {}
    for latencies in (firsts, finals):
        there = {key: latencies[index] for key, index in credited.items() if latencies.get(index)}
        least = min(there.values(), default=0.0)
        found |= {key: latency / least for key, latency in there.items()}
    own, tied = found.get(best.key, 1.0), set(result.ties or ())
    return {key: 0.0 if credited[key] in tied else max(0.0, ratio / own - 1) for key, ratio in found.items()}


def _check_one_kernel(results: Sequence[Result]) -> None:
    first, *others = headers = [result.header for result in results]
    for other in others:  # a kernel that closes over its problem has its name alone in common
        if first.workload != other.workload and not (first.kernel and first.kernel == other.kernel):
            raise UsageError(f"results of different kernels, {first.workload!r} and {other.workload!r}: give one's")
        if other.target != first.target:
            raise UsageError(f"results of different targets, {first.target} and {other.target}: give one's")
    seen = set[str]()
    for header in headers:
        if (key := config_key(header.arguments)) in seen:
            problem = describe_config(header.arguments) or "no arguments"
            raise UsageError(f"the problem {problem} comes twice: atune merge makes one journal of both")
        seen.add(key)


class Cover(msgspec.Struct, frozen=True):
    """Configurations that serve a set of problems, each problem by the one that is the fastest on it."""

    configs: tuple[Config, ...]
    """The chosen ones, in the order of the matrix."""
    serves: tuple[int, ...]
    """``serves[problem]``: the index in `configs` of the one that serves it."""
    regret: tuple[float, ...]
    """``regret[problem]``: the regret of the one that serves it."""

    @property
    def worst_regret(self) -> float:
        """The largest regret."""
        return max(self.regret)


def cover(matrix: RegretMatrix, max_regret: float = MAX_REGRET) -> Cover:
    """Choose few configurations that serve all problems of `matrix` within a regret, greedily: fewer may do.

    Each choice is the one with which the fewest problems are left without a configuration; of several the one with the
    least regret in all, then the smallest key. Raises `UsageError` for a regret below zero.
    """
    if not max_regret >= 0:
        raise UsageError(f"cover: max_regret must be zero or more, such as 0.03, got {max_regret!r}")
    chosen: list[int] = []
    now = [math.inf] * len(matrix.problems)
    while math.inf in now:
        found = [_with(now, row, max_regret) for row in matrix.regret]
        best = min(range(len(found)), key=lambda row: (*_cost(found[row]), row))
        chosen.append(best)
        now = found[best]
    rows = sorted(chosen)
    serves = [[matrix.regret[row][column] for row in rows].index(least) for column, least in enumerate(now)]
    return Cover(tuple(dict(matrix.configs[row]) for row in rows), tuple(serves), tuple(now))


def _with(now: Sequence[float], row: Sequence[float | None], limit: float) -> list[float]:
    """Return the regrets `now` by problem, with another row of the matrix where that is less and within the limit."""
    return [one if r is None or r > limit else min(one, r) for one, r in zip(now, row, strict=True)]


def _cost(regret: Sequence[float]) -> tuple[int, float]:
    """Count the problems that nothing serves, and add the regret of the others up."""
    return regret.count(math.inf), math.fsum(one for one in regret if one < math.inf)


@dataclass(frozen=True)
class NearestRule:
    """The winner of the nearest tuned problem, by the sum of the log2 ratios of the sizes.

    Of configurations that are tied there, it is the one that serves the most problems.
    """

    configs: tuple[Config, ...]
    """The configurations that it chooses from."""
    sizes: tuple[str, ...]
    """Arguments of which the logarithm counts. All others must be equal to those of a tuned problem."""
    tuned: tuple[tuple[dict[str, Any], int], ...]
    """The tuned problems, each with the index of its winner in `configs`. Of equally near ones the first counts."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the workload has for every problem, and that need not be given to `pick`."""
    asks: tuple[str, ...] = ()
    """Sizes that functions of the space take, which `pick` therefore asks."""
    space: Space | None = field(default=None, repr=False)
    """The space that it asks."""
    regret: float | None = None
    """Mean regret on problems left out; None where none could be."""
    worst_regret: float | None = None
    """The largest of these."""
    tested: int = 0
    """Problems that it is the mean of."""
    unmeasured: int = 0
    """Problems left out whose chosen configuration was not measured, or failed, there."""

    def pick(self, arguments: Mapping[str, Any]) -> int | None:
        """Return the index in `configs` for a problem; None where arguments that must be equal fit no tuned one.

        Of a space that asks for sizes it is the nearest that the space has for the problem, or None. Raises
        `UsageError` where a size is missing, and where that space is not known, unless the problem was tuned.
        """
        given, arguments = describe_config(dict(arguments)) or "no arguments", {**self.fixed, **arguments}
        if lacks := [name for name in self.sizes if name not in arguments]:
            raise UsageError(f"a rule over {', '.join(self.sizes)} was asked for {given}: give {', '.join(lacks)} too")
        near = self._nearest_first(arguments)
        if self.asks and near and distance(near[0][0], arguments):
            if self.space is None:
                new = f"{describe_config(dict(arguments))} was never tuned, and where= takes {', '.join(self.asks)}"
                raise UsageError(f"{new}: give the space to be asked, dispatch_rule(…, space=…)")
            has, unlisted = self.space.points(arguments), not self.space.computed
            near = [one for one in near if has.serves(self.configs[one[1]], unlisted=unlisted)]
        return near[0][1] if near else None

    def _nearest_first(self, arguments: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
        """Return the tuned problems whose other arguments are equal."""
        if not all(is_size(arguments[name]) for name in self.sizes):
            return []
        key = _others(arguments, self.sizes)
        alike = [one for one in self.tuned if _others(one[0], self.sizes) == key]
        return sorted(alike, key=lambda one: distance(one[0], arguments))


def _others(arguments: Mapping[str, Any], sizes: Sequence[str]) -> str:
    return config_key({name: value for name, value in arguments.items() if name not in sizes})


def _standing_for(matrix: RegretMatrix, column: int) -> int:
    """Return the row that stands for a problem's winner: of those tied there, the one that serves the most problems."""
    tied = [row for row, regret in enumerate(matrix.regret) if regret[column] == 0.0 or row == matrix.winners[column]]
    nobody = [math.inf] * len(matrix.problems)
    costs = {row: _cost(_with(nobody, matrix.regret[row], MAX_REGRET)) for row in tied}
    return min(tied, key=lambda row: (*costs[row], row != matrix.winners[column], row))


def dispatch_rule(matrix: RegretMatrix, space: Space | None = None) -> NearestRule:
    """Return the rule that gives a problem that was never tuned the winner of the nearest tuned one.

    Of configurations that are tied there, it is the one that serves the most problems within 3 %, of all in the matrix.

    Arguments that are numbers above zero in every problem are sizes. All others must be equal to those of a tuned
    problem. Of equally near problems the one of smaller sizes counts. Its regret is that on each problem when that is
    left out; one that is alone with its other arguments cannot be. `space`: what `pick` asks, where constraints or
    axes take a size.
    """
    first, *further = matrix.problems
    names = tuple(sorted(n for n, v in first.items() if is_size(v) and all(is_size(o.get(n)) for o in further)))
    rows = [_standing_for(matrix, column) for column in range(len(matrix.problems))]
    used = sorted(set(rows))
    pairs = [(problem, used.index(row)) for problem, row in zip(matrix.problems, rows, strict=True)]
    rule = NearestRule(
        configs=tuple(matrix.configs[row] for row in used),
        sizes=names,
        tuned=tuple(sorted(pairs, key=lambda pair: tuple(pair[0][name] for name in names))),
        asks=tuple(name for name in names if name in matrix.asks),
        space=space,
    )
    others = [[i for tuned, i in rule._nearest_first(one) if tuned != one] for one in matrix.problems]
    picked = [(used[places[0]], column) for column, places in enumerate(others) if places]
    costs = [matrix.regret[row][column] for row, column in picked]
    measured = [cost for cost in costs if cost is not None]
    return replace(
        rule,
        regret=statistics.fmean(measured) if measured else None,
        worst_regret=max(measured, default=None),
        tested=len(measured),
        unmeasured=len(costs) - len(measured),
    )


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
    same_bits: bool | None = None
    """Whether both winners' outputs have the same bits; None where that is not known."""


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
    winner += "; other bits" if one.same_bits is False else ""
    problem = printable(f"{one.kernel} {describe_config(one.problem)}".rstrip())
    return problem, *latencies, ratio, "slower" if one.slower else "", winner


def compare(before: Results, after: Results, *, fail_over: float = 0.02) -> Comparison:
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


def _latest(source: Results) -> dict[tuple[str, str], Result]:
    """Return the latest run of each kernel's problems, in the order given."""
    found: dict[tuple[str, str], Result] = {}
    for result in results_of(source):
        key = result.header.workload, config_key(result.header.arguments)
        if key not in found or found[key].header.time <= result.header.time:
            found[key] = result
    return found


def _compared(before: Result, after: Result, fail_over: float) -> ComparedProblem:
    old, new, header = _interval_us(before), _interval_us(after), after.header
    ratio = None if old is None or new is None else (new[0] / old[2], new[1] / old[1], new[2] / old[0])
    slower = ratio[0] > 1 + fail_over if ratio else before.best is not None and after.best is None
    winners = before.best_config, after.best_config, before.latency_ms, after.latency_ms
    bits = [found.best.bits for found in (before, after) if found.best is not None and found.best.bits]
    same = bits[0] == bits[1] if len(bits) == 2 else None
    return ComparedProblem(header.workload, header.arguments, *winners, ratio, slower, same)


def _interval_us(result: Result) -> Ratio | None:
    """Return (low, median, high) of the winner's latency; None without a winner."""
    timing = None if result.best is None else result.best.timing
    return None if timing is None else median_interval(timing.samples_us, LEVEL)


def _setup(result: Result) -> dict[str, str]:
    """Return what may differ between two runs: devices, target, the kernel's source and versions."""
    header, devices = result.header, ", ".join(sorted({device.name for device in result.devices}))
    run = "finished" if result.finished else "unfinished"
    facts = {"run": run, "device": devices, "target": str(header.target), "kernel": header.kernel[:12]}
    return facts | header.versions

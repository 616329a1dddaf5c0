"""The regret matrix, covers, dispatch rules and comparisons, computed from results for several problems of a kernel."""

from __future__ import annotations

import math
import os
import statistics
import textwrap
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
from atune.reporting.summary import LINE_CHARACTERS

MAX_REGRET = 0.03
"""The largest regret that a cover allows by default."""

HEADS = ("problem", "before ms", "after ms", "ratio (95 %)", "", "winner")
LEVEL = 0.975
"""The confidence level of a median's interval. Two such intervals together have 95 % confidence (Bonferroni)."""

Part = Result | str | os.PathLike[str]
Results = Part | Iterable["Part | TunedProblem"]
"""A result, the path of a journal, the path of a folder of journals, a set's result, or a series of these."""


def results_of(source: Results) -> list[Result]:
    """Return the results in `source`. A folder is read journal by journal, in the order of `journals_in`.

    Raises `JournalError` for a journal that cannot be read, and `UsageError` if `source` has no results.
    """
    results = list(_results(source))
    if not results:
        shown = printable(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the list"
        raise UsageError(f"{shown} has no journals: give a journal, a folder of *.jsonl files, or a list of these")
    return results


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
    """The regret of each configuration on each problem. The rows are configurations, sorted by key."""

    problems: tuple[dict[str, Any], ...]
    """The problems that have a winner, each as a dictionary of its arguments."""
    configs: tuple[Config, ...]
    """The configurations that won or took part in a final."""
    regret: tuple[tuple[float | None, ...], ...]
    """``regret[row][column]``: the configuration's latency divided by the latency of the problem's winner, minus 1.
    None if the configuration was not measured. The regret of a finalist that is tied with the winner is 0."""
    winners: tuple[int, ...]
    """``winners[column]``: the row of the problem's winner."""
    asks: tuple[str, ...] = ()
    """Names of the problem's arguments that functions of the space take, such as its constraints."""


def regret_matrix(results: Results) -> RegretMatrix:
    """Compute the regret matrix from results, journals or folders for different problems of a kernel.

    Final timings are compared only with final timings, and first timings only with first timings. A problem without a
    winner is left out. Raises `UsageError` if the results are for several kernels or targets, if two results are for
    the same problem, or if no problem has a winner.
    """
    known = results_of(results)
    _check_one_kernel(known)
    won = [(result, result.best) for result in known if result.best is not None and result.best.latency_ms]
    if not won:
        raise UsageError("no result has a winner, so there is nothing to compare")
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
    final = {entry.index for entry in result.final}
    return [record for record in _contenders(result) if record.index in final]


def _contenders(result: Result) -> Sequence[Record]:
    """Return the records that may win. The baseline may be unchecked, so it is included only if it won."""
    return result.all_records if result.best == result.baseline else result.records


def _regret(result: Result, best: Record) -> dict[str, float]:
    """Return the regret of each measured configuration, by the configuration's key."""
    firsts = {measurement.index: measurement.timing.latency_ms for measurement in result.measurements}
    finals = {entry.index: entry.timing.latency_ms for entry in result.final}
    credited = {record.key: record.credited for record in _contenders(result)}
    ratios: dict[str, float] = {}
    for latencies in (firsts, finals):
        by_key = {key: latencies[index] for key, index in credited.items() if latencies.get(index)}
        least = min(by_key.values(), default=0.0)
        ratios |= {key: latency / least for key, latency in by_key.items()}
    own, tied = ratios.get(best.key, 1.0), set(result.ties or ())
    return {key: 0.0 if credited[key] in tied else max(0.0, ratio / own - 1) for key, ratio in ratios.items()}


def _check_one_kernel(results: Sequence[Result]) -> None:
    first, *others = headers = [result.header for result in results]
    for other in others:  # kernels that close over their problem share only the name
        if first.workload != other.workload and not (first.kernel and first.kernel == other.kernel):
            raise UsageError(f"results for two kernels, {first.workload!r} and {other.workload!r}: choose one kernel")
        if other.target != first.target:
            raise UsageError(f"results for two targets, {first.target} and {other.target}: choose one target")
    seen = set[str]()
    for header in headers:
        if (key := config_key(header.arguments)) in seen:
            problem = describe_config(header.arguments) or "no arguments"
            raise UsageError(f"two results are for the problem {problem}: merge their journals with atune merge")
        seen.add(key)


class Cover(msgspec.Struct, frozen=True):
    """A few configurations that together serve a set of problems. Each problem gets the fastest configuration."""

    configs: tuple[Config, ...]
    """The chosen configurations, in the same order as in the matrix."""
    serves: tuple[int, ...]
    """``serves[problem]``: the index in `configs` of the configuration that serves the problem."""
    regret: tuple[float, ...]
    """``regret[problem]``: the regret, on the problem, of the configuration that serves the problem."""

    @property
    def worst_regret(self) -> float:
        """The largest regret."""
        return max(self.regret)


def cover(matrix: RegretMatrix, max_regret: float = MAX_REGRET) -> Cover:
    """Choose a few configurations, so that each problem has a configuration whose regret is at most `max_regret`.

    The choice is greedy, so a smaller cover may exist. Each step takes the configuration that leaves the fewest
    problems unserved. In a tie, the smallest total regret decides, and then the smallest key. Raises `UsageError` if
    `max_regret` is negative.
    """
    if not max_regret >= 0:
        raise UsageError(f"cover: max_regret must be zero or more, such as 0.03, got {max_regret!r}")
    chosen: list[int] = []
    now = [math.inf] * len(matrix.problems)
    while math.inf in now:
        options = [_with(now, row, max_regret) for row in matrix.regret]
        best = min(range(len(options)), key=lambda row: (*_cost(options[row]), row))
        chosen.append(best)
        now = options[best]
    rows = sorted(chosen)
    serves = [[matrix.regret[row][column] for row in rows].index(least) for column, least in enumerate(now)]
    return Cover(tuple(dict(matrix.configs[row]) for row in rows), tuple(serves), tuple(now))


def _with(now: Sequence[float], row: Sequence[float | None], limit: float) -> list[float]:
    """Return each problem's regret: the lower of `now` and `row`, or `now` if the regret in `row` exceeds `limit`."""
    return [old if r is None or r > limit else min(old, r) for old, r in zip(now, row, strict=True)]


def _cost(regret: Sequence[float]) -> tuple[int, float]:
    """Return the number of unserved problems, and the total regret of the served problems."""
    return regret.count(math.inf), math.fsum(r for r in regret if r < math.inf)


@dataclass(frozen=True)
class NearestRule:
    """A rule that picks the winner of the nearest tuned problem. The distance between two problems is the sum of their
    sizes' absolute log2 ratios. If configurations are tied on the nearest problem, the rule picks the configuration
    that serves the most problems."""

    configs: tuple[Config, ...]
    """The configurations from which the rule picks."""
    sizes: tuple[str, ...]
    """Names of the arguments that are sizes. All other arguments must have the same values as in a tuned problem."""
    tuned: tuple[tuple[dict[str, Any], int], ...]
    """The tuned problems, each with its winner's index in `configs`. Among equally near problems, the first is used."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that have the same value in all problems of the workload. `pick` does not need them."""
    asks: tuple[str, ...] = ()
    """Names of sizes that functions of the space take. Unless empty, `pick` needs the space for new problems."""
    space: Space | None = field(default=None, repr=False)
    """The space in which `pick` looks a configuration up, or None."""
    regret: float | None = None
    """The rule's mean regret on a problem that was left out of the rule. None if no problem could be left out."""
    worst_regret: float | None = None
    """The rule's largest regret on a problem that was left out."""
    tested: int = 0
    """Number of left-out problems whose regret is known."""
    unmeasured: int = 0
    """Number of left-out problems whose regret is unknown: the picked configuration failed or was not measured."""

    def pick(self, arguments: Mapping[str, Any]) -> int | None:
        """Return the index in `configs` for a problem, or None if no tuned problem differs from it only in sizes.

        If functions of the space take sizes, the rule picks only a configuration that the space contains for this
        problem. Raises `UsageError` if a size is missing, or if the problem was not tuned and the space is not known.
        """
        given, arguments = describe_config(dict(arguments)) or "no arguments", {**self.fixed, **arguments}
        if lacks := [name for name in self.sizes if name not in arguments]:
            raise UsageError(f"the rule needs {', '.join(self.sizes)}, but got {given}: also give {', '.join(lacks)}")
        near = self._nearest_first(arguments)
        if self.asks and near and distance(near[0][0], arguments):
            if self.space is None:
                new = f"{describe_config(dict(arguments))} was never tuned, and where= takes {', '.join(self.asks)}"
                raise UsageError(f"{new}: pass the space, so that the rule can check it: dispatch_rule(…, space=…)")
            points, unlisted = self.space.points(arguments), not self.space.computed
            near = [(problem, i) for problem, i in near if points.serves(self.configs[i], unlisted=unlisted)]
        return near[0][1] if near else None

    def _nearest_first(self, arguments: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
        """Return the tuned problems that differ from `arguments` only in sizes, the nearest first."""
        if not all(is_size(arguments[name]) for name in self.sizes):
            return []
        key = _others(arguments, self.sizes)
        alike = [pair for pair in self.tuned if _others(pair[0], self.sizes) == key]
        return sorted(alike, key=lambda pair: distance(pair[0], arguments))


def _others(arguments: Mapping[str, Any], sizes: Sequence[str]) -> str:
    return config_key({name: value for name, value in arguments.items() if name not in sizes})


def _standing_for(matrix: RegretMatrix, column: int) -> int:
    """Return the row of the configuration that is tied with a problem's winner and serves the most problems."""
    tied = [row for row, regret in enumerate(matrix.regret) if regret[column] == 0.0 or row == matrix.winners[column]]
    nobody = [math.inf] * len(matrix.problems)
    costs = {row: _cost(_with(nobody, matrix.regret[row], MAX_REGRET)) for row in tied}
    return min(tied, key=lambda row: (*costs[row], row != matrix.winners[column], row))


def dispatch_rule(matrix: RegretMatrix, space: Space | None = None) -> NearestRule:
    """Return a rule that picks a configuration for a problem that was never tuned: the nearest tuned problem's winner.

    An example is ``rule = dispatch_rule(regret_matrix("runs"))``, then ``rule.configs[rule.pick({"M": 96})]``. If
    configurations are tied on the nearest problem, the rule picks the configuration that serves the most problems of
    the matrix with a regret of at most 3 %. If two problems are equally near, the rule uses the smaller problem.

    An argument is a size if it is a number above zero in every problem. All other arguments must have the same values
    as in a tuned problem. To measure the rule's regret, each problem is left out once, if another problem differs only
    in sizes. `space`: the workload's space, which `pick` needs if functions of the space take sizes.
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
    others = [[i for tuned, i in rule._nearest_first(problem) if tuned != problem] for problem in matrix.problems]
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
    """A problem in both sets. `kernel`: the kernel's name. `problem`: the arguments. `before`, `after`: the winners.

    `before_ms`, `after_ms`: the winners' latencies in ms. Without a winner, the latency is None.
    """

    kernel: str
    problem: dict[str, Any]
    before: Config | None
    after: Config | None
    before_ms: float | None
    after_ms: float | None
    ratio: Ratio | None
    """(low, ratio, high): the later latency divided by the earlier latency, with its interval. None if unknown."""
    slower: bool
    """Whether the low end of `ratio` exceeds 1 + `fail_over`, or the first set has a winner and the second has none."""
    same_bits: bool | None = None
    """Whether the outputs of both winners have the same bits. None if unknown."""


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of two sets of results. `problems`: the problems that are in both sets. `fail_over`: the tolerated
    slowdown, where 0.02 is 2 %. `only_before`: the number of problems that are only in the first set. `only_after`: the
    number of problems that are only in the second set. `changed`: other differences, such as versions."""

    fail_over: float
    problems: tuple[ComparedProblem, ...]
    only_before: int
    only_after: int
    changed: tuple[str, ...]

    @property
    def slower(self) -> tuple[ComparedProblem, ...]:
        """The problems that became slower than `fail_over` allows."""
        return tuple(problem for problem in self.problems if problem.slower)

    def __str__(self) -> str:
        table = aligned([HEADS, *map(_row, self.problems)])
        counts = f"{len(self.slower)} of {len(self.problems)} slower by more than {100 * self.fail_over:.4g} %"
        alone = f"; {self.only_before} only before, {self.only_after} only after"
        changed = f"\nchanged    {printable(', '.join(self.changed))}" if self.changed else ""
        return f"{table}\n\nproblems   {counts}{alone if self.only_before + self.only_after else ''}{changed}"


def _row(pair: ComparedProblem) -> tuple[str, ...]:
    latencies = ("none" if ms is None else f"{ms:.4g}" for ms in (pair.before_ms, pair.after_ms))
    ratio = "" if pair.ratio is None else "{1:.3f} ({0:.3f}–{2:.3f})".format(*pair.ratio)
    before, after = ("none" if config is None else describe_config(config) for config in (pair.before, pair.after))
    winner = after if before == after else f"{after} (was {before})"
    winner += "; other bits" if pair.same_bits is False else ""
    return _named(pair.kernel, pair.problem), *latencies, ratio, "slower" if pair.slower else "", winner


def _named(kernel: str, problem: Mapping[str, Any]) -> str:
    return printable(f"{kernel} {describe_config(dict(problem))}".rstrip())


def compare(before: Results, after: Results, *, fail_over: float = 0.02) -> Comparison:
    """Compare the winners of two sets of results, problem by problem, for example before and after an upgrade.

    `before` and `after` are each a result, a set's result, a journal, a folder of journals, or a list of these. Two
    problems match if the kernel's name and the arguments are equal. If a problem has several runs, the latest is used.
    A ratio's interval covers the variation within the two runs, and `fail_over` allows for variation between runs.

    Raises `UsageError` if no problem is in both sets, and `JournalError` for a journal that cannot be read.
    """
    if not fail_over >= 0:
        raise UsageError(f"compare: fail_over must be zero or more, such as 0.02, got {fail_over!r}")
    earlier, later = _latest(before), _latest(after)
    both = [key for key in earlier if key in later]
    if not both:
        headers = [[result.header for result in side.values()] for side in (earlier, later)]
        names = ["; ".join(_named(header.workload, header.arguments) for header in side) for side in headers]
        first, second = (textwrap.shorten(text, LINE_CHARACTERS, placeholder="…") for text in names)
        raise UsageError(f"no problem is in both sets:\n  before: {first}\n  after: {second}")
    changed: dict[str, None] = {}
    for old, new in ((_setup(earlier[key]), _setup(later[key])) for key in both):
        differ = (name for name in {**old, **new} if old.get(name) != new.get(name))
        changed |= {f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}": None for name in differ}
    problems = tuple(_compared(earlier[key], later[key], fail_over) for key in both)
    return Comparison(fail_over, problems, len(earlier) - len(both), len(later) - len(both), tuple(changed))


def _latest(source: Results) -> dict[tuple[str, str], Result]:
    """Return the latest result of each problem, in the given order. The keys are kernel names and problems."""
    latest: dict[tuple[str, str], Result] = {}
    for result in results_of(source):
        key = result.header.workload, config_key(result.header.arguments)
        if key not in latest or latest[key].header.time <= result.header.time:
            latest[key] = result
    return latest


def _compared(before: Result, after: Result, fail_over: float) -> ComparedProblem:
    old, new, header = _interval_us(before), _interval_us(after), after.header
    ratio = None if old is None or new is None else (new[0] / old[2], new[1] / old[1], new[2] / old[0])
    slower = ratio[0] > 1 + fail_over if ratio else before.best is not None and after.best is None
    winners = before.best_config, after.best_config, before.latency_ms, after.latency_ms
    bits = [result.best.bits for result in (before, after) if result.best is not None and result.best.bits]
    same = bits[0] == bits[1] if len(bits) == 2 else None
    return ComparedProblem(header.workload, header.arguments, *winners, ratio, slower, same)


def _interval_us(result: Result) -> Ratio | None:
    """Return the winner's latency in µs, as (low, median, high), or None if there is no winner."""
    timing = None if result.best is None else result.best.timing
    return None if timing is None else median_interval(timing.samples_us, LEVEL)


def _setup(result: Result) -> dict[str, str]:
    """Return what may differ between two runs: the devices, the target, the kernel's digest and the versions."""
    header, devices = result.header, ", ".join(sorted({device.name for device in result.devices}))
    run = "finished" if result.finished else "unfinished"
    facts = {"run": run, "device": devices, "target": str(header.target), "kernel": header.kernel[:12]}
    return facts | header.versions

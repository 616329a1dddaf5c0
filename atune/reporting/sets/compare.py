"""Compares the winners of two sets of journals, problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.result import Ratio, Result
from atune.model.candidate import Config, config_key, describe_config
from atune.model.device import Target
from atune.model.measurement import Timing, median_interval
from atune.reporting.sets.reading import Source, header_of, plain_problem, results_of

FAIL_OVER = 0.02
"""Share by which a winner may be slower, where nothing else is asked for."""
LEVEL = 0.95
"""Confidence of an interval."""
MEASURING = "benchmark."
"""How the names of differences in measuring begin."""


class Difference(msgspec.Struct, frozen=True):
    """What changed between two runs of a problem, from `before` to `after`. `name`: such as ``tilelang`` or an axis."""

    name: str
    before: Any
    after: Any


class ComparedWinner(msgspec.Struct, frozen=True):
    """The winner of a run, where there is one.

    `journal`: path, where there is one. `config`, `latency_ms`, `reference_ms`: as a `Result` has them. `code_key`,
    `source_key`: equal for equal code, by the same versions and by any. `layouts`: equal for equal results of layout
    inference. Empty where unknown.
    """

    journal: str | None
    config: Config | None
    latency_ms: float | None
    reference_ms: float | None
    code_key: str
    source_key: str
    layouts: str
    device: str
    """The model of the device that measured it."""
    interval_ms: Ratio | None
    """The median latency with its interval at 97.5 %: (low, median, high). None where unknown."""


class ComparedProblem(msgspec.Struct, frozen=True):
    """A problem in both sets. `kernel`: its name. `problem`: the arguments. `before`, `after`: the winners."""

    kernel: str
    problem: dict[str, Any]
    before: ComparedWinner
    after: ComparedWinner
    ratio: Ratio | None
    """Latency after over before, with its interval: (low, ratio, high). Above 1 it is slower. None where unknown."""
    slower: bool
    """Whether the whole interval is above the limit, or a winner is there no more."""
    config: tuple[Difference, ...]
    """Axes on which the winners differ."""
    code: bool
    """Whether the winner's code differs: the generated sources, where both are known."""
    layouts: bool
    """Whether tilelang inferred other layouts, where both are known."""
    setup: tuple[Difference, ...]
    """What differs besides: GPU, target, versions, source of the kernel, and how it was measured."""


class Comparison(msgspec.Struct, frozen=True):
    """Two sets of results. `problems`: those in both. `fail_over`: the share by which a winner may be slower.

    `only_before`, `only_after`: problems of one alone, such as ``gemm M=64``.
    """

    fail_over: float
    problems: tuple[ComparedProblem, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    notes: tuple[str, ...]
    """What makes a comparison doubtful: a sentence each."""

    @property
    def slower(self) -> tuple[ComparedProblem, ...]:
        """The problems that are slower than `fail_over` allows."""
        return tuple(one for one in self.problems if one.slower)

    def __str__(self) -> str:
        from atune.reporting.screen import plain
        from atune.reporting.sets.comparison_text import comparison_lines, comparison_table

        return f"{plain(comparison_lines(self))}\n\n{comparison_table(self)}"


class ComparedRun(msgspec.Struct, frozen=True):
    """One side of a comparison: a run. `benchmark`: how it was measured, where known."""

    kernel: str
    problem: dict[str, Any]
    time: float
    winner: ComparedWinner
    setup: dict[str, Any]
    """What a latency depends on besides the configuration, by the name that a reader knows."""
    benchmark: Mapping[str, Any]
    finished: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Equal for the same problem of the same kernel."""
        return self.kernel, config_key(self.problem)

    def __str__(self) -> str:
        return f"{self.kernel} {describe_config(self.problem) or 'no arguments'}"


def compare(before: Source, after: Source, *, fail_over: float = FAIL_OVER) -> Comparison:
    """Compare the winners of the same problems.

    Each side is a result, a set's result, a journal, a folder of journals, or a list of these.
    Problems are matched by the kernel's name and their arguments; of several runs of one the latest counts. The runs
    took no rounds in turn. So a ratio's interval spans the intervals of both medians, each at 97.5 %, which together
    hold at 95 % (Bonferroni). It covers the scatter within the runs, and not what differs between them: `fail_over` is
    for that.

    Raises `UsageError` where no problem is in both, and `JournalError` for a journal that cannot be read.
    """
    if not fail_over >= 0:
        raise UsageError(f"compare: fail_over must be zero or more, such as 0.02, got {fail_over!r}")
    one, other = _latest(before), _latest(after)
    both = [key for key in one if key in other]
    if not both:
        raise UsageError(_nothing_common([*one.values()], [*other.values()]))
    problems = tuple(_compared(one[key], other[key], fail_over) for key in both)
    return Comparison(
        fail_over=fail_over,
        problems=problems,
        only_before=tuple(str(run) for key, run in one.items() if key not in other),
        only_after=tuple(str(run) for key, run in other.items() if key not in one),
        notes=(
            *_unfinished("before", one, both),
            *_unfinished("after", other, both),
            *_notes(problems),
            *_moved(problems, fail_over),
        ),
    )


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.4g} %"


def _latest(source: Source) -> dict[tuple[str, str], ComparedRun]:
    """Return the latest run of each kernel's problems, in the order given."""
    found: dict[tuple[str, str], ComparedRun] = {}
    for run in _runs(source):
        if run.key not in found or found[run.key].time <= run.time:
            found[run.key] = run
    return found


def _runs(source: Source) -> Iterator[ComparedRun]:
    yield from map(of_result, results_of(source))


def of_result(result: Result) -> ComparedRun:
    """Return a result as one side of a comparison."""
    header, best = header_of(result), result.best
    timing = "by the final" if result.final else "by first timing"
    facts = None if best is None else best.facts
    winner = ComparedWinner(
        journal=result.journal,
        config=result.best_config,
        latency_ms=result.latency_ms,
        reference_ms=result.reference_ms,
        code_key="" if best is None else best.code_key,
        source_key="" if result.kept is None else result.kept.source_key,
        layouts="" if facts is None or facts.layouts is None else config_key(msgspec.to_builtins(facts.layouts)),
        device=_device(result),
        interval_ms=None if best is None else interval_ms(best.timing),
    )
    return ComparedRun(
        kernel=header.workload,
        problem=plain_problem(header),
        time=header.time,
        winner=winner,
        setup=_setup(header.target, winner.device, header.kernel, header.versions),
        benchmark={**(header.settings.get("benchmark") or {}), **({} if best is None else {"latency": timing})},
        finished=result.finished,
    )


def _nothing_common(before: Sequence[ComparedRun], after: Sequence[ComparedRun]) -> str:
    kernels = [sorted({run.kernel for run in side}) for side in (before, after)]
    if set(kernels[0]).isdisjoint(kernels[1]):
        return f"different kernels, so there is nothing to compare: {' and '.join(map(', '.join, kernels))}"
    return f"no problem is in both: {_some(map(str, before))} before, {_some(map(str, after))} after"


def _some(names: Iterator[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def _compared(before: ComparedRun, after: ComparedRun, fail_over: float) -> ComparedProblem:
    old, new = before.winner, after.winner
    ratio = _ratio(old.interval_ms, new.interval_ms)
    lost = old.config is not None and new.config is None
    return ComparedProblem(
        kernel=after.kernel,
        problem=after.problem,
        before=old,
        after=new,
        ratio=ratio,
        slower=lost or (ratio is not None and ratio[0] > 1 + fail_over),
        config=tuple(_differences(old.config or {}, new.config or {})),
        code=_differ(old, new, lambda one: one.source_key, lambda one: one.code_key),
        layouts=_differ(old, new, lambda one: one.layouts),
        setup=(*_differences(before.setup, after.setup), *_measured_otherwise(before, after)),
    )


def interval_ms(timing: Timing | None) -> Ratio | None:
    """Return (low, median, high): a median latency with its interval at 97.5 %; None where a journal lacks samples."""
    if timing is None or not timing.samples_us or not all(timing.samples_us):
        return None
    low, median, high = median_interval(timing.samples_us, (1 + LEVEL) / 2)
    return low / 1e3, median / 1e3, high / 1e3


def _ratio(before: Ratio | None, after: Ratio | None) -> Ratio | None:
    if before is None or after is None:
        return None
    return after[0] / before[2], after[1] / before[1], after[2] / before[0]


def _differ(before: ComparedWinner, after: ComparedWinner, *of: Callable[[ComparedWinner], str]) -> bool:
    """Tell whether two winners differ in the first of these texts that both have."""
    known = next(((text(before), text(after)) for text in of if text(before) and text(after)), ("", ""))
    return known[0] != known[1]


def _setup(target: Target, device: str, source: str, versions: Mapping[str, str]) -> dict[str, Any]:
    known = {"GPU" if target.kind == "cuda" else "CPU": device, "target": str(target), "kernel source": source[:12]}
    return {**known, **versions}


def _measured_otherwise(before: ComparedRun, after: ComparedRun) -> Iterator[Difference]:
    """Yield the settings of measuring that both runs know and that differ."""
    one, other = before.benchmark, after.benchmark
    shared = one.keys() & other.keys()
    for each in _differences(*({name: known[name] for name in one if name in shared} for known in (one, other))):
        yield Difference(f"{MEASURING}{each.name}", each.before, each.after)


def _device(result: Result) -> str:
    """Return the model of the winner's device; of a run without a winner those of all its devices."""
    best = "" if result.best is None else result.best.device
    names = {device.name for device in result.devices if device.id == best or not best}
    return ", ".join(sorted(names))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for name in {**before, **after}:
        one, other = before.get(name), after.get(name)
        if config_key({"value": one}) != config_key({"value": other}):  # tuples are lists where they come from a file
            yield Difference(name, one, other)


def _unfinished(
    side: str, runs: Mapping[tuple[str, str], ComparedRun], both: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield a sentence where runs did not finish: their winners are the best so far."""
    if left := [str(runs[key]) for key in both if not runs[key].finished]:
        yield f"{_some(iter(left))} did not finish {side}"


def _notes(problems: Sequence[ComparedProblem]) -> Iterator[str]:
    """Yield what makes the ratios doubtful, each once."""
    found: dict[str, None] = {}
    for problem in problems:
        for change in problem.setup:
            if change.name in ("GPU", "CPU", "target"):
                plural = "targets" if change.name == "target" else f"{change.name}s"
                found[f"different {plural}: {change.before or 'unknown'} before, {change.after or 'unknown'} after"] = (
                    None
                )
            elif change.name.startswith(MEASURING):
                name = change.name.removeprefix(MEASURING)
                found[f"measured otherwise: {name} was {change.before} and is {change.after}"] = None
    yield from found


def _moved(problems: Sequence[ComparedProblem], fail_over: float) -> Iterator[str]:
    """Yield a sentence where references, which no tuning changes, have other latencies than before."""
    pairs = [(one.before.reference_ms, one.after.reference_ms) for one in problems]
    known = [new / old for old, new in pairs if old and new]
    moved = [ratio for ratio in known if abs(ratio - 1) > fail_over]
    if moved:
        yield (
            f"the reference's latency moved by more than {percent(fail_over)} on {len(moved)} of {len(known)} "
            f"problems, to {' and '.join(dict.fromkeys(f'{r:.3g}' for r in (min(moved), max(moved))))} times: the "
            "machine or the reference is not what it was"
        )

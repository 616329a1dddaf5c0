"""Compares the winners of two sets of journals, problem by problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.result import Ratio, Record, Result
from atune.model.candidate import Config, config_key
from atune.model.measurement import Timing, median_interval
from atune.reporting.sets.reading import Source, header_of, problem_key, problem_text, results_of

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

    `journal`: path, where there is one. `config`, `latency_ms`, `reference_ms`: as a `Result` has them. `code_key`:
    equal for equal code.
    """

    journal: str | None
    config: Config | None
    latency_ms: float | None
    reference_ms: float | None
    code_key: str
    device: str
    """The model of the device that measured it."""


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
    """Whether the winner's code differs."""
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


def compare(before: Source, after: Source, *, fail_over: float = FAIL_OVER) -> Comparison:
    """Compare the winners of the same problems: of results, journals, folders of journals, or lists of these.

    Problems are matched by the kernel's name and their arguments; of several runs of one the latest counts. The runs
    took no rounds in turn. So a ratio's interval spans the intervals of both medians, each at 97.5 %, which together
    hold at 95 % (Bonferroni). It covers the scatter within the runs, and not what differs between them: `fail_over` is
    for that.

    Raises `UsageError` where no problem is in both, and `JournalError` for a journal that cannot be read.
    """
    if not fail_over >= 0:
        raise UsageError(f"compare: fail_over must be zero or more, such as 0.02, got {fail_over!r}")
    one, other = _latest(results_of(before)), _latest(results_of(after))
    both = [key for key in one if key in other]
    if not both:
        raise UsageError(_nothing_common([*one.values()], [*other.values()]))
    problems = tuple(_compared(one[key], other[key], fail_over) for key in both)
    return Comparison(
        fail_over=fail_over,
        problems=problems,
        only_before=tuple(_named(result) for key, result in one.items() if key not in other),
        only_after=tuple(_named(result) for key, result in other.items() if key not in one),
        notes=(*_notes(problems), *_moved(problems, fail_over)),
    )


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.4g} %"


def _latest(results: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """Return the latest run of each kernel's problems, in the order given."""
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        key = header_of(result).workload, problem_key(header_of(result))
        if key not in found or header_of(found[key]).time <= header_of(result).time:
            found[key] = result
    return found


def _nothing_common(before: Sequence[Result], after: Sequence[Result]) -> str:
    kernels = [sorted({header_of(result).workload for result in side}) for side in (before, after)]
    if set(kernels[0]).isdisjoint(kernels[1]):
        return f"different kernels, so there is nothing to compare: {' and '.join(map(', '.join, kernels))}"
    return f"no problem is in both: {_some(map(_named, before))} before, {_some(map(_named, after))} after"


def _some(names: Iterator[str]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def _named(result: Result) -> str:
    return f"{header_of(result).workload} {problem_text(header_of(result))}"


def _compared(before: Result, after: Result, fail_over: float) -> ComparedProblem:
    ratio = None
    if before.best is not None and after.best is not None:
        ratio = _ratio(before.best.timing, after.best.timing)
    lost = before.best is not None and after.best is None
    return ComparedProblem(
        kernel=header_of(after).workload,
        problem=header_of(after).arguments,
        before=_winner(before),
        after=_winner(after),
        ratio=ratio,
        slower=lost or (ratio is not None and ratio[0] > 1 + fail_over),
        config=tuple(_differences(before.best_config or {}, after.best_config or {})),
        code=_code_differs(before.best, after.best),
        setup=(*_differences(_setup(before), _setup(after)), *_measured_otherwise(before, after)),
    )


def _winner(result: Result) -> ComparedWinner:
    code_key = "" if result.best is None else result.best.code_key
    latencies = result.latency_ms, result.reference_ms
    return ComparedWinner(result.journal, result.best_config, *latencies, code_key, _device(result))


def _ratio(before: Timing | None, after: Timing | None) -> Ratio | None:
    if before is None or after is None or not before.samples_us or not after.samples_us or not all(before.samples_us):
        return None  # a journal may hold what no run wrote
    level = (1 + LEVEL) / 2
    (low, middle, high), (new_low, new_middle, new_high) = (
        median_interval(timing.samples_us, level) for timing in (before, after)
    )
    return new_low / high, new_middle / middle, new_high / low


def _code_differs(before: Record | None, after: Record | None) -> bool:
    return before is not None and after is not None and before.code_key != after.code_key


def _setup(result: Result) -> dict[str, Any]:
    """Return what a latency depends on besides the configuration, by the name that a reader knows."""
    header = header_of(result)
    return {
        "GPU" if header.target.kind == "cuda" else "CPU": _device(result),
        "target": str(header.target),
        "kernel source": header.kernel[:12],
        **header.versions,
    }


def _measured_otherwise(before: Result, after: Result) -> Iterator[Difference]:
    """Yield the settings of measuring that both runs know and that differ."""
    one, other = (header_of(result).settings.get("benchmark") or {} for result in (before, after))
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
                found[f"measured otherwise: {change.name.removeprefix(MEASURING)} differs"] = None
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

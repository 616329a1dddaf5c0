"""Render a result as a headline, as groups of failures, as text for a screen, and as the object of ``--json``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from atune.journal.result import Ratio, Record, Result
from atune.model.artifact import RAN, what_failed
from atune.model.candidate import describe_config, failed_values, printable, shortened
from atune.model.device import Target
from atune.model.layouts import COMPILER
from atune.model.measurement import CLOSE
from atune.model.settings import AUTO_BATCH, AUTO_GAIN_PERCENT, AUTO_LEAST, Budget
from atune.reporting.export import DEFAULTS, rows
from atune.reporting.progress import counted, duration
from atune.reporting.text import Line, plain
from atune.workload.source_locations import Place, place_in

KEYS = (
    "best_config", "latency_ms", "reference_ms", "default_ms", "no_default", "measured", "failed", "pruned",
    "duplicates", "remaining", "total", "wall_s", "journal", "best_over_time", "axis_importance", "roofline", "reason",
    "reference_ratio", "default_ratio", "ties", "same_bits", "strategy", "warnings", "noise", "stages",
    "memory_bytes", "cache_hit",
)  # fmt: skip
"""The fields of a result that ``--json`` prints, besides the failures."""


def summary(result: Result) -> dict[str, Any]:
    """Return the object that ``--json`` prints for a result."""
    fields = {name: msgspec.to_builtins(getattr(result, name)) for name in KEYS}
    return {**fields, "failures": failures_data(result.records)}


def summary_text(result: Result) -> str:
    return plain(result_lines(result))


def result_lines(result: Result) -> list[Line]:
    """Return the lines for a screen: the answer, the counts, the problems, the details and the next command. Each fact
    is stated once, and an unknown fact has no line."""
    groups = failure_groups(result.records)
    attention = attention_lines(result, groups)
    first, *further = headline(result).lines
    return [
        Line(first, "strong" if result.best is None else "answer"),
        *(Line(line, "strong") for line in further),
        Line(f"candidates {result.total}: {outcomes(result) or 'none tried'}; {duration(result.wall_s)}"),
        *([Line(""), *attention] if attention else []),
        *([Line(""), *rest] if (rest := [*detail_lines(result, groups), *next_lines(result)]) else []),
    ]


def attention_lines(result: Result, groups: Sequence[FailureGroup]) -> list[Line]:
    """Return the lines that the user may act on: unchecked outputs, failures, warnings, noise and an interruption."""
    lines = [Line(f"outputs    not checked: {why}", "attention")] if (why := why_unchecked(result)) else []
    failed = [group for group in groups if group.kind != PRUNED]
    for n, line in enumerate(group_lines(failed, example=first_failure_lines(result, failed))):
        lines.append(Line(f"{'' if n else 'failures':11}{line}", "dim" if line.startswith(" ") else "attention"))
    said = result.noise if result.best else (*result.noise, result.about_default)
    warned = [text for text in result.warnings if text not in said]
    for label, texts in (("warnings", warned), ("noise", result.noise)):
        lines += [Line(f"{'' if n else label:11}{printable(text)}", "attention") for n, text in enumerate(texts)]
    if not result.finished:
        how = "interrupted" if result.interrupted else "not yet: the run is still going, or it was killed"
        lines.append(Line(f"ended      {how}", "attention"))
    return lines


def detail_lines(result: Result, groups: Sequence[FailureGroup]) -> list[Line]:
    """Return the lines for details, such as ties, memory, the roofline, important axes and pruned candidates."""
    lines = ["cached     the result comes from the result cache; nothing was measured"] if result.cache_hit else []
    lines += [f"ties       {ties_line(result)}"] if result.ties else []
    lines += [f"memory     at most {result.memory_bytes / 2**30:.2f} GiB on a device"] if result.memory_bytes else []
    lines += [f"same bits  {line}"] if (line := bits_line(result)) else []
    lines += [f"strategy   {printable(result.strategy)}"] if result.strategy not in ("", "exhaustive") else []
    lines += [f"budget     {why}"] if (why := left_line(result)) else []
    lines += [f"{'' if n else 'last':11}{printable(line)}" for n, line in enumerate(last_lines(result))]
    lines += [f"roofline   {result.roofline.describe()}"] if result.roofline else []
    if (mattered := result.axis_importance) is not None and (text := mattered.describe()):
        lines.append(f"axes       {printable(text)}")
    lines += [f"layouts    {line}"] if (line := layouts_line(result)) else []
    pruned = group_lines([group for group in groups if group.kind == PRUNED])
    lines += [f"{'' if n else 'left out':11}{line}" for n, line in enumerate(pruned)]
    if result.stored:
        lines.append(f"reused     {result.stored} of {result.built} kernel libraries, from the artifact store")
    return [Line(line, "dim") for line in lines]


def bits_line(result: Result) -> str:
    """Return a line that says how the bits of outputs differ. Empty if no bits differ, unless the user asked."""
    bits = result.same_bits
    if bits.winner is None or not (bits.asked or bits.classes > 1 or bits.varying):
        return ""
    has = "has" if bits.winner else "does not have"
    line = f"the winner {has} the default's bits; {bits.same} of {bits.measured} measured candidates "
    line += f"{'does' if bits.same == 1 else 'do'}; {bits.classes} distinct output{'s' * (bits.classes > 1)}"
    line += f"; {bits.varying} {'vary' if bits.varying > 1 else 'varies'} from call to call" if bits.varying else ""
    return line + (f"; compared on {bits.seeds} draws of the inputs" if bits.seeds > 1 else "")


def last_lines(result: Result) -> list[str]:
    """Return a line for each axis value that the strategy `bayesian` postponed, with the reason."""
    if result.strategy != "bayesian":
        return []
    tried = [record for record in result.records if record.status not in ("duplicate", "remaining")]
    values = [[(axis, describe_config({axis: value})) for axis, value in record.config.items()] for record in tried]
    reasons = ["" if record.status == "measured" else record.kind or record.status for record in tried]
    postponed = failed_values(zip(values, reasons, strict=True))
    return [
        f"{value} was left for the end, because all {count} candidates tried with it failed in the same way ({reason})"
        for (_, value), (count, reason) in postponed.items()
    ]


def left_line(result: Result) -> str:
    """Return the reason that the budget ``auto`` left candidates untried. Empty if the run had another budget."""
    if result.reason not in ("enough", "budget") or not result.remaining:
        return ""
    if result.reason == "enough":
        gain = f"none of the last {AUTO_BATCH} candidates was {AUTO_GAIN_PERCENT} % faster than the best before them"
        return f"stopped early, because {gain}; {result.remaining} were not tried"
    by_auto = result.header.settings.get("budget", {}).get("auto")
    tenth = result.total - result.remaining == Budget(auto=True).most(result.total)
    limit = f"a tenth of the candidates, or {AUTO_LEAST} if that is more"
    return f"used up: auto tries at most {limit}" if by_auto and tenth else ""


def next_lines(result: Result) -> list[Line]:
    """Return the lines with the journal's path and the next command to type."""
    if result.journal is None:
        return []
    journal = shlex.quote(printable(result.journal))
    lines = [Line(f"journal    {printable(result.journal)}", "dim")]
    if not result.finished:
        workload = "" if result.header.origin else " --workload FILE.py:NAME"  # a notebook defined the workload
        lines.append(Line(f"next       atune resume {journal}{workload}"))
    elif result.best is not None:
        lines.append(Line(f"next       atune report {journal}"))
    return lines


def outcomes(result: Result) -> str:
    """Return text with the number of candidates for each outcome."""
    counts = {"measured": result.measured, "failed": result.failed, "pruned": result.pruned}
    counts |= {"duplicate": result.duplicates, "not tried": result.remaining}
    return ", ".join(counted(n, status) for status, n in counts.items() if n)


PRUNED = "pruned"
LINE_CHARACTERS = 240
"""The largest number of characters in a group's line on a screen."""
MOST_GROUPS = 50
"""The largest number of groups that ``--json`` prints or a page shows."""
DETAIL_LINES = 3
"""The number of lines that the screen shows from the end of a compiler's or a worker's output."""
_NUMBER = re.compile(r"(?<![\w.])\d[\w.]*(?:(?<=e)-\d+)?")
"""A number in a message. If the messages of two candidates differ only in numbers, both failed for the same reason."""
_STACK = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)*|^Fatal Python error: (?:.*\n?)*", re.MULTILINE)
"""A traceback without the exception's line, or the text that Python writes when a signal ends the process."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates that failed or were pruned for the same reason. `kind`: a failure kind, or ``pruned``.

    `first`: the first candidate. `message`: the first candidate's message. `varied`: whether the messages differ.
    """

    kind: str
    message: str
    count: int
    first: Record
    varied: bool

    @property
    def where(self) -> Place | None:
        """The line of the user's code that raised the error. None if the line is unknown."""
        return place_in(self.first.detail)

    @property
    def example(self) -> str:
        """The first candidate's configuration, as text."""
        return describe_config(self.first.config) or DEFAULTS

    @property
    def line(self) -> str:
        """A line with the number of candidates, the failure and its message, such as ``2 failed to compile: …``."""
        example = ", for example" if self.varied else ""
        return f"{self.count} {what_failed(self.kind)}{example}: {printable(self.message)}"


def failure_groups(records: Iterable[Record]) -> list[FailureGroup]:
    """Group the failed and pruned candidates in `records` by reason. The largest group comes first."""
    members: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.status in ("failed", "pruned"):
            members.setdefault((record.kind or record.status, _NUMBER.sub("0", record.message)), []).append(record)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        FailureGroup(
            kind=kind,
            message=group[0].message,
            count=len(group),
            first=group[0],
            varied=any(record.message != group[0].message for record in group),
        )
        for (kind, _), group in ordered
    ]


def failures_data(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the failure groups in the form that ``--json`` prints."""
    return [
        {
            "kind": group.kind,
            "count": group.count,
            "message": group.message,
            "where": msgspec.to_builtins(group.where),
            "example": {"index": group.first.index, "config": msgspec.to_builtins(group.first.config)},
        }
        for group in failure_groups(records)[:MOST_GROUPS]
    ]


def first_failure_lines(result: Result, groups: Sequence[FailureGroup]) -> list[str]:
    """Return lines about the first group: an example, the place of the error, and the command for the full output."""
    if not groups or groups[0].kind == PRUNED:
        return []
    group, lines = groups[0], example_lines(groups)
    if result.journal is not None:
        lines.append(f"full output: atune show {shlex.quote(printable(result.journal))} {group.first.index}")
    return _all_mismatch(result) + lines + _for_cuda(result, group)


def example_lines(groups: Sequence[FailureGroup]) -> list[str]:
    """Return lines about an example from the first group: a candidate's configuration, and the place of the error."""
    if not groups:
        return []
    group = groups[0]
    example = f"for example, candidate {group.first.index}: {group.example}"
    return [example, *(f"  {line}" for line in evidence_lines(group.message, group.first.detail))]


def _for_cuda(result: Result, group: FailureGroup) -> list[str]:
    """Return advice if no candidate can be lowered for the CPU. The kernel is then probably written for CUDA."""
    header, tried = result.header, {record.kind for record in result.records if record.status != "remaining"}
    no_function = group.message.startswith("TypeError")  # for example, the kernel returned no PrimFunc
    if header.target != Target("c") or tried != {"lower"} or group.where is not None or no_function:
        return []
    workload = printable(shlex.quote(header.origin)) if header.origin else "FILE.py:NAME"
    why = "this kernel seems to be written for CUDA; without a GPU it can be compiled but not measured:"
    command = f"  atune tune {workload} --compile-only --target sm_90a"
    return [why, command, *_ended_early(result, "unlowered", group.count)]


def _ended_early(result: Result, reason: str, count: int) -> list[str]:
    """Return a line with the command that continues the run, if the run ended for `reason` after `count` failures."""
    if result.reason != reason or result.journal is None:
        return []
    resume = f"atune resume {shlex.quote(printable(result.journal))}"
    return [f"the run stopped after {count} identical failures; to try the other candidates: {resume}"]


def _all_mismatch(result: Result) -> list[str]:
    """Return advice if every candidate that ran gave wrong outputs, which suggests a wrong reference or kernel."""
    ran = [record.kind for record in result.records if record.status == "failed" and record.kind in RAN]
    if result.measured or len(ran) < 2 or set(ran) != {"mismatch"}:
        return []
    what, first = "every candidate that ran differs from the reference", "the reference"
    for judge in ("the check", "manual_check_prog", "ref_prog"):
        if any(record.message.startswith(f"{judge} ") for record in result.records):
            what, first = f"{judge} refuses every candidate that ran", judge
    what += f": look at {first} first, then at the kernel and the inputs"
    return [what, *_ended_early(result, "mismatched", len(ran))]


def evidence_lines(message: str, detail: str) -> list[str]:
    """Return the line of the user's code that raised the error. If the line is unknown, return the last lines of
    `detail`, without stack traces and without the `message`. The place of the user's line, and the command that ends a
    compiler's output, stay whole, because people copy them. Other lines are clipped."""
    where, lines = place_in(detail), [line.rstrip() for line in _STACK.sub("", detail).splitlines() if line.strip(" |")]
    last = [line for line in lines if message not in line and line.strip() not in message][-DETAIL_LINES:]
    evidence, whole = (last, len(last) - 1) if where is None else (where.lines(), 0)
    return [printable(line) if n == whole else printable(line)[:300] for n, line in enumerate(evidence)]


def group_lines(groups: Sequence[FailureGroup], limit: int = 8, example: Sequence[str] = ()) -> list[str]:
    """Return a line for each of the first `limit` groups, and a line with the number of further failures. `example`:
    lines about an example, which are indented below the first group's line."""
    rest = sum(group.count for group in groups[limit:])
    more = [f"{rest} more, for {len(groups) - limit} other reasons"] if rest else []
    lines = [shortened(group.line, LINE_CHARACTERS) for group in groups[:limit]]
    return [*lines[:1], *(f"  {line}" for line in example), *lines[1:], *more]


def layouts_line(result: Result) -> str:
    """Return a line with the slowdown of the compiler's layouts and a command to see why. Empty if they are fast."""
    best, tried = result.best, result.records
    guessed = {axis for record in tried for axis, value in record.config.items() if value == COMPILER}
    axes = guessed if (known := result.header.layout_axes) is None else known
    own = [record for record in tried if axes and all(record.config.get(axis) == COMPILER for axis in axes)]
    timed = [(row["times_winner"], row["index"]) for row in rows(result, own) if row["times_winner"]]
    times, index = min(timed, default=(0.0, None))
    if best is None or times < BY_FAR or best.facts is None or best.facts.layouts is None:
        return ""
    explain = f"atune explain {shlex.quote(printable(result.journal or 'JOURNAL'))} {index} {best.index}"
    return f"the compiler's own layouts are at least {times:.2f} times slower; to see the difference: {explain}"


NAMED_TIES = 5
"""The largest number of tied candidates whose indices a line lists."""
BY_FAR = 1.2
"""The compiler's layouts are reported if the fastest of them takes at least this many times the winner's latency."""


class Headline(msgspec.Struct, frozen=True):
    """The most important facts about a result, which are shown first on a screen and on the page."""

    lines: list[str]
    """Lines with the winner, its latency and comparisons, or with the reason that there is no winner."""
    winner: str = ""
    """The winner's configuration. Empty if there is no winner."""
    figures: list[tuple[str, str]] = []
    """The winner's ratios and its latency, each followed by a caption."""
    notes: list[str] = []
    """Sentences about facts that the figures do not show."""


def headline(result: Result) -> Headline:
    if result.best is None or result.latency_ms is None:
        why = no_winner_line(result)
        return Headline([f"{'' if result.about_default else 'no winner: '}{why}"], notes=[_sentence(why)])
    winner, against = describe_config(result.best.config) or DEFAULTS, default_line(result)
    lines = [
        f"winner     {winner}",
        f"latency    {latency_line(result)}",
        *([f"           {against}"] if against else []),
    ]
    figures = [(f"{result.latency_ms:.4g} ms", "latency" if result.final else "latency, by first timing")]
    by_default = _over(result.speedup_over_default, result.default_ratio)
    by_reference = _over(result.speedup_over_reference, result.reference_ratio)
    if by_default is not None and not result.default_wins:
        figures.insert(0, _figure(by_default, "the default configuration", result.default_ms))
    if by_reference is not None:
        figures.append(_figure(by_reference, "the reference", result.reference_ms))
    faster = not result.default_wins and (result.default_ratio or 0.0) >= 1.0  # the figures show the ratio
    notes = ["" if faster else against, ties_line(result), layouts_line(result)]
    notes += [f"the winner's outputs were not checked: {why}" if (why := why_unchecked(result)) else ""]
    return Headline(lines, winner, figures, [_sentence(note) for note in notes if note])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}" + ("" if ": atune " in text else ".")  # people copy a command to its end


def _figure(ratio: Ratio, than: str, latency_ms: float | None) -> tuple[str, str]:
    """Return `ratio` as text, and its caption, such as ``2.50×`` and ``faster than the reference (2.5 ms)``."""
    number, times, text = comparison(ratio, than).partition(" times ")
    if not times:
        number, text = f"{ratio[1]:.2f}", number
    return f"{number}×", text + ("" if latency_ms is None else f" ({latency_ms:.4g}\u00a0ms)")


def no_winner_line(result: Result) -> str:
    """Return the reason that a result has no winner. The run may be unfinished, or may have tried no candidate."""
    if not result.finished:
        return "no candidate has been measured"
    return printable(result.about_default) or why_none(result)


def why_none(result: Result) -> str:
    """Return the reason that a finished result has no winner."""
    if result.measured and result.same_bits.asked:
        why = printable(result.no_default) or "the default configuration was not measured"
        return f"no candidate is known to have the default's bits: {why}"
    return "no candidate worked" if result.failed or result.pruned else "no candidate was tried"


def latency_line(result: Result) -> str:
    """Return text with the winner's latency, and with a comparison if the reference's latency is known."""
    parts = [f"{result.latency_ms:.4g} ms" + ("" if result.final else " by first timing")]
    ratio = _over(result.speedup_over_reference, result.reference_ratio)
    if result.reference_ms is not None and ratio is not None:
        parts.append(f"{comparison(ratio, 'the reference')} ({result.reference_ms:.4g} ms)")
    return ", ".join(parts)


def default_line(result: Result) -> str:
    """Return text that compares the winner with the default, or says why there is no comparison. Empty if unknown."""
    default = result.default
    if default is None or result.no_default:
        return printable(result.no_default)
    outside = "" if default is not result.baseline else ", which is not part of the space"
    if result.default_wins:
        if result.measured == 1 and result.remaining and not (outside or result.failed or result.duplicates):
            return "this is the default configuration; no other configuration was measured"
        if outside and result.best_index != default.same_as:
            return "nothing in the space beats the default, which is outside the space"
        same = f"; candidate {result.best_index} compiles to the same code" * (result.best_index == default.same_as)
        return f"no configuration beats the default{same}"
    ratio = _over(result.speedup_over_default, result.default_ratio)
    if ratio is None or result.default_ratio is None or result.default_ms is None:
        return ""
    digits, text = 2, comparison(ratio, "the default configuration")
    if "times" not in text:
        digits, text = 4, f"{text}, with a ratio of {ratio[1]:.4f}"
    interval = f", 95 % interval {ratio[0]:.{digits}f}–{ratio[2]:.{digits}f}"
    within = "" if result.speedup_over_default is None else interval
    why, left = printable(result.header.refused or "its outputs were not checked"), ""
    if outside and "faster" not in text:
        outside, left = "", f". The default is not returned: it is outside the space, and {why}"
    return f"{text}{outside} ({result.default_ms:.4g} ms{within}){left}"


def ties_line(result: Result) -> str:
    """Return text that names the candidates that are statistically tied with the winner. Empty if there are no ties."""
    if not (ties := result.ties):
        return ""
    named = [str(index) for index in sorted(ties[:NAMED_TIES])]
    if more := len(ties) - len(named):
        named.append(f"{more} more")
    known = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    subject = f"candidate {known} is" if len(ties) == 1 else f"candidates {known} are"
    rule = ", so the default is kept" if result.default_wins else ""
    return f"{subject} statistically indistinguishable from the winner{rule}"


def _over(final: Ratio | None, first: float | None) -> Ratio | None:
    """Return the `final` ratio. If there was no final, return the ratio of `first` timings, without an interval."""
    return final or (None if first is None else (first, first, first))


def comparison(ratio: Ratio, than: str) -> str:
    """Compare the winner with `than`, such as ``the reference``, as text. Ratios above 1 mean a faster winner."""
    low, middle, high = ratio
    if abs(middle - 1) < CLOSE:
        return f"as fast as {than}"
    if low < 1 < high:
        return f"statistically tied with {than}"
    return f"{middle:.2f} times faster than {than}" if middle > 1 else f"{1 / middle:.2f} times slower than {than}"


def why_unchecked(result: Result) -> str:
    """Return the reason that no outputs were checked. Empty if the reason is unknown, or if outputs were checked."""
    if not result.measurements or any(measurement.checked for measurement in result.measurements):
        return ""
    asked = result.header.settings.get("benchmark", {}).get("check")
    if asked is True:
        why = "the workload has no reference and no check, or its outputs are empty, so a wrong kernel may win"
        return f"{why}; give a reference, or tune a larger problem"
    return "the check was switched off (--skip-check)" if asked is False else ""

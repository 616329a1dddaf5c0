"""What comes first of a result, in words: its winner, and how that compares."""

from __future__ import annotations

import msgspec

from atune.journal.result import Ratio, Result
from atune.model.candidate import describe_config, printable
from atune.model.roofline import Roofline, rate_text

DEFAULTS = "the kernel's defaults"
"""What an empty configuration is called."""
NAMED_TIES = 5
"""Candidates that are named by their index, of those that tie with the winner."""
LITTLE = 0.005
"""Share by which two may differ and still count as equally fast."""


class Headline(msgspec.Struct, frozen=True):
    """What comes first of a result, on a screen and on its page."""

    lines: list[str]
    """The winner, its latency and how it compares; or that there is none, and why."""
    winner: str = ""
    """Its configuration; empty without one."""
    figures: list[tuple[str, str]] = []
    """Its ratios and its latency, each with what it says."""
    notes: list[str] = []
    """Sentences of what the figures do not say."""


def headline(result: Result) -> Headline:
    """Return what comes first of a result."""
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
    by_default, by_reference = over_default(result), over_reference(result)
    if by_default is not None and not result.default_wins:
        figures.insert(0, _figure(by_default, "the default configuration", result.default_ms))
    if by_reference is not None:
        figures.append(_figure(by_reference, "the reference", result.reference_ms))
    faster = not result.default_wins and (result.default_ratio or 0.0) >= 1.0  # the figures say it
    notes = ["" if faster else against, ties_line(result)]
    notes += [f"its outputs were not checked: {why}" if (why := why_unchecked(result)) else ""]
    return Headline(lines, winner, figures, [_sentence(note) for note in notes if note])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _figure(ratio: Ratio, than: str, latency_ms: float | None) -> tuple[str, str]:
    """Return a ratio as a figure, and what it is, such as ``2.50×`` and ``faster than the reference (2.5 ms)``."""
    number, times, text = comparison(ratio, than).partition(" times ")
    if not times:
        number, text = f"{ratio[1]:.2f}", number
    return f"{number}×", text + ("" if latency_ms is None else f" ({latency_ms:.4g}\u00a0ms)")


def no_winner_line(result: Result) -> str:
    """Return the text for a result without a winner. One that did not finish, or tried nothing, is no failure."""
    if not result.finished:
        return "no candidate has been measured"
    worked = "no candidate worked" if result.failed or result.pruned else "no candidate was tried"
    return printable(result.about_default) or worked


def latency_line(result: Result) -> str:
    """Return the winner's latency, next to the reference's, with its rate where the work of the problem is known."""
    parts = [f"{result.latency_ms:.4g} ms" + ("" if result.final else " by first timing")]
    if result.reference_ms is not None and (ratio := over_reference(result)) is not None:
        parts.append(f"{comparison(ratio, 'the reference')} ({result.reference_ms:.4g} ms)")
    text = ", ".join(parts)
    return f"{text}; {rate}" if (rate := _rate(result.roofline)) else text


def default_line(result: Result) -> str:
    """Return how the winner compares with the default configuration, or why it cannot; empty where neither is known."""
    default = result.default
    if default is None or result.no_default:
        return printable(result.no_default)
    outside = "" if default is not result.baseline else ", which the space does not list"
    if result.default_wins:
        if result.measured == 1 and result.remaining and not (outside or result.failed or result.duplicates):
            return "the default configuration; no other was measured"
        same = ", which has the winner's code" if result.best_index == default.same_as else outside
        return f"no configuration beats the default{same}"
    ratio = over_default(result)
    if ratio is None or result.default_ratio is None or result.default_ms is None:
        return ""
    interval = "" if result.speedup_over_default is None else f", 95 % interval {ratio[0]:.2f}–{ratio[2]:.2f}"
    text = comparison(ratio, "the default configuration")
    why = printable((result.header and result.header.refused) or "its outputs were not checked")
    left = f", and is not returned, because {why}" if outside and "faster" not in text else ""
    return f"{text}{outside}{left} ({result.default_ms:.4g} ms{interval})"


def ties_line(result: Result) -> str:
    """Return which candidates are statistically tied with the winner, and what chose among them; empty without such."""
    ties = result.ties or ()
    if not ties:
        return ""
    named = [str(index) for index in ties[:NAMED_TIES]]
    if more := len(ties) - len(named):
        named.append(f"{more} more")
    known = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    one = len(ties) == 1
    rule = "; the default is preferred among equals" if result.default_wins else ""
    return f"candidate{'' if one else 's'} {known} {'is' if one else 'are'} statistically tied with the winner{rule}"


def over_default(result: Result) -> Ratio | None:
    """Return `speedup_over_default`, or three times the ratio of first timings; None where neither is known."""
    return result.speedup_over_default or _thrice(result.default_ratio)


def over_reference(result: Result) -> Ratio | None:
    """As `over_default`, over the reference."""
    return result.speedup_over_reference or _thrice(result.reference_ratio)


def _thrice(ratio: float | None) -> Ratio | None:
    return None if ratio is None else (ratio, ratio, ratio)


def comparison(ratio: Ratio, than: str) -> str:
    """Return a ratio of latencies, and its interval, as text: above 1 the winner is faster than `than`."""
    low, middle, high = ratio
    if abs(middle - 1) < LITTLE:
        return f"as fast as {than}"
    if low < 1 < high:
        return f"statistically tied with {than}"
    return f"{middle:.2f} times faster than {than}" if middle > 1 else f"{1 / middle:.2f} times slower than {than}"


def _rate(found: Roofline | None) -> str:
    """Return the rate of what limits the problem, with the share of the device's peak; empty where it is not known."""
    if found is None:
        return ""
    compute, memory = (found.gflops_s, "FLOP/s", found.compute_share), (found.gbytes_s, "B/s", found.memory_share)
    rate, unit, share = memory if found.gflops_s is None or found.bound in ("memory", "cache") else compute
    if rate is None:
        return ""
    number = rate_text(rate, unit, digits=3)
    return number if share is None else f"{number}, {100 * share:.0f} % of the nominal peak"


def why_unchecked(result: Result) -> str:
    """Return why no output was checked; empty where one was, where nothing was measured, or where it is not known."""
    if not result.measurements or any(one.checked for one in result.measurements) or result.header is None:
        return ""
    settings = result.header.settings.get("benchmark")
    asked = settings.get("check") if isinstance(settings, dict) else None
    if asked is True:
        return "the workload has no reference and no check, so that a wrong kernel may win: Workload(…, reference=…)"
    return "the check was switched off (--skip-check)" if asked is False else ""

"""A result's first lines: the winner against the reference, against the default, and what ties with it."""

from __future__ import annotations

from atune.journal.printing import describe_config
from atune.journal.result import Ratio, TuneResult
from atune.model.roofline import Roofline

NAMED_TIES = 5
"""Candidates that are told by their index, of those that tie with the winner."""
LITTLE = 0.005
"""Share by which two may differ and still be told to be as fast."""
MOVED = 0.02
"""Share by which the ratio of two latencies may differ from the ratio round by round without a word about it."""


def headline_lines(result: TuneResult) -> list[str]:
    """Return what to tell first of a result that has a winner."""
    assert result.best is not None
    lines = [f"latency    {latency_line(result)}"]
    if against := default_line(result):
        lines.append(f"           {against}")
    lines.append(f"winner     {describe_config(result.best.config)}")
    if result.ties:
        lines.append(f"ties       {ties_line(result)}")
    if (energy := result.energy) is not None:
        lines.append(f"energy     {energy.power_w:.0f} W, {energy.call_j:.3g} J a call")
    return lines


def no_winner_line(result: TuneResult) -> str:
    """Return what to say of a result without a winner. One that did not finish, or tried nothing, is no failure."""
    if not result.finished:
        return "no candidate has been measured"
    return "no candidate worked" if result.failed or result.pruned else "no candidate was tried"


def latency_line(result: TuneResult) -> str:
    """Return the winner's latency, beside the reference's, with its rate where the work of the problem is known."""
    parts = [f"{result.latency_ms:.4g} ms" + ("" if result.final else " by first timing")]
    if result.reference_ms is not None and result.reference_ratio is not None:
        known = result.speedup_over_reference or (result.reference_ratio,) * 3
        parts.append(f"{comparison(known, 'the reference')} ({_reference_latency(result, known)})")
    told = ", ".join(parts)
    return f"{told}; {rate}" if (rate := _rate(result.roofline)) else told


def _reference_latency(result: TuneResult, known: Ratio) -> str:
    """Return the reference's latency; beside it the winner's of its rounds, where all of the winner's tell otherwise.

    The final's later rounds have the best alone, and the machine may have become faster since.
    """
    timing, reference = result.best.timing if result.best else None, result.reference_ms or 0.0
    told = f"{reference:.4g} ms"
    if not result.final or timing is None or not result.latency_ms:
        return told
    (low, ratio, high), shown = known, reference / result.latency_ms
    sided = not low < 1 < high and abs(ratio - 1) >= LITTLE  # it is told to be faster, or slower
    contradicted = sided and (shown - 1) * (ratio - 1) <= 0
    if not contradicted and abs(shown / ratio - 1) < MOVED:
        return told
    return f"{told}, and the winner {reference / ratio:.4g} ms in the same rounds"


def default_line(result: TuneResult) -> str:
    """Return how the winner compares with the default configuration; empty where that is not known."""
    default = result.default
    if default is None:
        return ""
    if default.status in ("failed", "pruned"):
        return f"the default configuration {'failed' if default.status == 'failed' else 'was pruned'}"
    if result.best_index == default.index:
        return "the default configuration wins"
    if result.best_index == default.same_as:
        return "the default configuration has the same code as the winner"
    ratio = result.speedup_over_default
    if ratio is None:
        return ""
    return f"{comparison(ratio, 'the default configuration')} (95 % interval {ratio[0]:.2f}–{ratio[2]:.2f})"


def ties_line(result: TuneResult) -> str:
    """Return which candidates cannot be told from the winner, and what chose among them; empty without such."""
    ties = result.ties or ()
    if not ties:
        return ""
    named = [str(index) for index in ties[:NAMED_TIES]]
    if more := len(ties) - len(named):
        named.append(f"{more} more")
    known = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    default, one = result.default, len(ties) == 1
    chosen = default is not None and result.best_index in (default.index, default.same_as)
    rule = "the default is preferred among equals" if chosen else "the smallest key was chosen among equals"
    return f"candidate{'' if one else 's'} {known} cannot be told from the winner; {rule}"


def comparison(ratio: Ratio, than: str) -> str:
    """Return a ratio of latencies, and its interval, in words: above 1 the winner is faster than `than`."""
    low, middle, high = ratio
    if abs(middle - 1) < LITTLE:
        return f"as fast as {than}"
    if low < 1 < high:
        return f"not to be told from {than}"
    return f"{middle:.2f} times faster than {than}" if middle > 1 else f"{1 / middle:.2f} times slower than {than}"


def _rate(found: Roofline | None) -> str:
    """Return the rate of what limits the problem, with the share of the device's peak; empty where it is not known."""
    if found is None:
        return ""
    compute, memory = (found.gflops_s, "FLOP/s", found.compute_share), (found.gbytes_s, "B/s", found.memory_share)
    rate, unit, share = memory if found.gflops_s is None or found.bound in ("memory", "cache") else compute
    if rate is None:
        return ""
    number = f"{rate / 1e3:.3g} T{unit}" if rate >= 1e3 else f"{rate:.3g} G{unit}"
    return number if share is None else f"{number}, {100 * share:.0f} % of the {found.peaks} peak"

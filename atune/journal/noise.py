"""Signs in a run's timings that its machine was not quiet: samples that scatter, clocks that moved or were lowered."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from atune.journal.state import State
from atune.model.measurement import DISTURBS, FinalEntry, Timing

SPREAD_LIMITS = {"perf_counter": 0.1}
GPU_SPREAD_LIMIT = 0.03
"""Spread of the finalists above which a machine counts as noisy. Runs alone on an H200 have 0.01 at most."""
CLOCK_LIMIT = 0.02
"""Share by which a GPU's clock may move between timings."""
CHOSEN = ("application clocks", "display clocks")
"""Reasons for lower clocks that somebody set on purpose."""

MeasuredOn = Sequence[tuple[str, Timing]]
"""Timings with the device that each comes from."""


def noise_of(timings: MeasuredOn, contenders: MeasuredOn) -> list[str]:
    """Return a sentence for each sign of noise, with what to do; none on a quiet machine.

    `timings`: all of a run. `contenders`: those that decide who wins, whose scatter counts.
    """
    found = list(filter(None, [_scatter(contenders)]))
    for device in dict.fromkeys(name for name, _ in timings):
        found += _clocks(device, [timing for name, timing in timings if name == device])
    return found


def run_noise(state: State, final: Sequence[FinalEntry]) -> tuple[str, ...]:
    """Return what tells that the machine was not quiet, a sentence each: others on its devices, then the timings."""
    others = [message for message in state.warnings if DISTURBS in message]
    firsts = [(m.device, m.timing) for m in state.ranked()]
    finals = [(state.final.device, entry.timing) for entry in final] if state.final else []
    best = [(device, timing) for device, timing in finals if timing.n_samples == _most(final)]
    return (*others, *noise_of([*state.references.items(), *firsts, *finals], best))


def _most(final: Sequence[FinalEntry]) -> int:
    """Return the samples that those have who were in the final to its end."""
    return max((entry.timing.n_samples for entry in final), default=0)


def _scatter(contenders: MeasuredOn) -> str:
    if not contenders:
        return ""
    spread = statistics.median(timing.spread for _, timing in contenders)
    method = contenders[0][1].method
    if spread <= SPREAD_LIMITS.get(method, GPU_SPREAD_LIMIT):
        return ""
    what = "the CPU" if method == "perf_counter" else f"device {contenders[0][0]}"
    return (
        f"the best candidates' samples scatter by {spread:.1%}, so that close ones cannot be told apart: "
        f"stop what else runs on {what}, then tune again"
    )


def _clocks(device: str, timings: Sequence[Timing]) -> list[str]:
    """Return a sentence on clocks that were lowered, or else that moved."""
    seen = [timing.conditions for timing in timings if timing.conditions is not None]
    clocks = [one.sm_mhz for one in seen if one.sm_mhz]
    moved = ""
    if clocks and max(clocks) > min(clocks) * (1 + CLOCK_LIMIT):
        moved = f" between {min(clocks)} and {max(clocks)} MHz"
    lowered = [set(one.throttle).difference(CHOSEN) for one in seen]
    count = sum(bool(reasons) for reasons in lowered)
    if count:
        why = ", ".join(sorted(set().union(*lowered)))
        return [
            f"device {device} had lowered its clocks{moved} at {count} of {len(seen)} timings ({why}). Cool it, raise "
            "its power limit, or lock lower clocks with nvidia-smi -lgc; then tune again"
        ]
    if moved:
        return [f"device {device}'s clock moved{moved}: lock it with nvidia-smi -lgc, then tune again"]
    return []

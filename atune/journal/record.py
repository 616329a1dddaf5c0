"""The outcome of one candidate, as a result has it; the finalists that still stand, and what was not tried."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from atune.journal.candidate_state import Entry, Status, status_of
from atune.journal.events import BenchmarkFailed, BuildFailed, CandidateMeasured, CandidatePruned
from atune.journal.state import State
from atune.model.artifact import MachineFacts, Roles, StaticFacts
from atune.model.candidate import BASELINE, Config, describe_config
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
    """Return the signs that the machine was not quiet, a sentence each: others on its devices, then the timings."""
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
        f"the best candidates' samples scatter by {spread:.1%}, so that close ones are statistically tied: "
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


ENDED = {
    "budget": "the budget ended the run before them",
    "stopped": "the run was stopped before them",
    "exhausted": "the strategy proposed no more",
    "unlowered": "the first ones all failed to lower, for one reason",
}
"""Why candidates were not tried, by how a run finished."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one candidate.

    `index`, `key`, `config`: its number in the space, or -1 for the baseline, 16 hex digits of its configuration, and
    the configuration.
    `status`: ``duplicate`` is the same code as candidate `same_as`, which carries the measurement or failure;
    ``remaining`` was proposed and has no outcome yet. `latency_ms`, `timing`: from the final where the candidate was in
    it, else from its first timing; a duplicate has its original's. `kind`, `message`, `detail`: why it failed; for a
    pruned candidate `message` is the reason. `device`: id of the device that measured it; empty where none did.
    `facts`: what lowering found, None for a candidate that was not lowered. `code_key`: equal for equal code, else
    empty. `source_key`: equal for equal sources of device and host.
    """

    index: int
    key: str
    config: Config
    status: Status
    latency_ms: float | None = None
    timing: Timing | None = None
    device: str = ""
    same_as: int | None = None
    kind: str = ""
    message: str = ""
    detail: str = ""
    facts: StaticFacts | None = None
    code_key: str = ""
    source_key: str = ""
    machine: MachineFacts | None = None
    """Registers, stack and code; a duplicate has its original's. None for target ``c``, and where none was built."""
    instead: int | None = None
    """The layout of the same configuration that was preferred; None if no layout was chosen, or this one was."""


def record_of(state: State, entry: Entry, finals: Mapping[int, Timing]) -> Record:
    """Return the record of a candidate. `finals`: the timings of the final that stand, by credited index."""
    first = state.first(entry.index)
    timing, device, kind, message, detail = None, "", "", "", ""
    instead = None
    match first.outcome:
        case CandidateMeasured() as event:
            final = finals.get(first.index)
            timing = final or event.timing
            device = state.final.device if final and state.final else event.device
        case CandidatePruned() as event:
            message, instead = event.reason, event.instead
        case BuildFailed() | BenchmarkFailed() as event:
            kind, message, detail = event.kind, event.message, event.detail
            device = event.device if isinstance(event, BenchmarkFailed) else ""
    return Record(
        index=entry.index,
        key=entry.key,
        config=entry.config,
        status=status_of(first) if first is entry else "duplicate",
        latency_ms=None if timing is None else timing.latency_ms,
        timing=timing,
        device=device,
        same_as=None if first is entry else first.index,
        kind=kind,
        message=message,
        detail=detail,
        facts=entry.facts,
        code_key=entry.code_key,
        source_key=entry.source_key,
        machine=first.machine,
        instead=instead,
    )


def unlisted(state: State, baseline: Record | None) -> str:
    """Return which default won though the space does not list it, or was all that worked, as a sentence; else empty."""
    if baseline is None or baseline.latency_ms is None:
        return ""
    if state.winner == BASELINE:
        return f"the winner, {describe_config(baseline.config)}, is your default, which the space does not list"
    if state.winner is not None or state.finished is None or not (state.counts["failed"] or state.counts["pruned"]):
        return ""
    text = f"{describe_config(baseline.config)} ({baseline.latency_ms:.4g} ms)"
    refused = f"; {state.header.refused}" if state.header and state.header.refused else ""
    return f"nothing in the space worked; this is your default: {text}{refused}"


def standing(state: State) -> tuple[FinalEntry, ...]:
    """Return the entries of the final whose candidates are still measured, by their credited index."""
    entries = state.final.entries if state.final else ()
    firsts = [(state.first(e.index), e.timing) for e in entries]
    return tuple(FinalEntry(e.index, timing) for e, timing in firsts if isinstance(e.outcome, CandidateMeasured))


def ties_of(state: State, final: Sequence[FinalEntry]) -> tuple[int, ...] | None:
    """Return the credited index of those that tie with the winner; None where the final does not say, or lost it."""
    if state.final is None or not final:
        return None
    if state.first(state.final.entries[0].index).index != final[0].index:
        return None
    ties = {state.first(index).index for index in state.final.ties}
    return tuple(entry.index for entry in final[1:] if entry.index in ties)


def roles_of(state: State, winner: int | None) -> Roles:
    """Return the roles of the parameters, with the inputs that the winner was seen to write into."""
    found = state.finished.roles if state.finished else Roles()
    outcome = None if winner is None else state.outcome(winner)
    if not isinstance(outcome, CandidateMeasured):
        return found
    writes = tuple(sorted({*found.writes, *outcome.writes}))
    return msgspec.structs.replace(found, writes=writes, set_up=outcome.set_up)


class Untried(msgspec.Struct, frozen=True):
    """How many candidates were not tried for one reason."""

    reason: str
    count: int


def untried(state: State) -> tuple[Untried, ...]:
    """Return the untried candidates by reason, the most frequent first."""
    by_reason = Counter[str]()
    why = "the run has not ended" if state.interrupted is None else "the run was cut short before them"
    if state.finished is not None:
        why = ENDED.get(state.finished.reason, state.finished.reason)
    entries = [entry for entry in state.entries.values() if entry.key and entry.in_space]
    for entry in entries:
        outcome = state.outcome(entry.index)
        if isinstance(outcome, CandidatePruned):
            by_reason[outcome.reason] += 1
        elif outcome is None:
            by_reason[why] += 1
    if (rest := state.total - len(entries)) > 0:
        by_reason[why] += rest
    ordered = sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Untried(reason, count) for reason, count in ordered)

"""States of the compile service in a run, their transitions, and the choice from costs. No I/O."""

from __future__ import annotations

import math

import msgspec

from atune.engine.scheduler import SHARES, bounded
from atune.processes.messages import ServiceReady


class CompileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one core. Defaults: measured for TileLang GEMMs on one x86-64 core. `scaled` adapts them."""

    lower_s: float = 0.35
    """Lowering one candidate."""
    member_s: float = 0.2
    """Compiling and linking one member of a group, with either compiler."""
    nvcc_s: float = 2.0
    """Fixed cost of nvcc per group, for parsing the headers."""
    header_s: float = 1.6
    """Parsing the headers once."""
    parsed_s: float = 0.3
    """Fixed cost per group with parsed headers."""

    def scaled(self, lower_s: float) -> CompileCosts:
        """Return these costs for a machine that takes `lower_s` to lower a candidate."""
        factor = lower_s / self.lower_s
        return CompileCosts(
            lower_s=lower_s,
            member_s=self.member_s * factor,
            nvcc_s=self.nvcc_s * factor,
            header_s=self.header_s * factor,
            parsed_s=self.parsed_s * factor,
        )


def estimate(candidates: int, workers: int, costs: CompileCosts) -> tuple[float, float]:
    """Return the seconds for `candidates` on `workers` with nvcc, and with headers parsed once.

    The groups are the scheduler's for candidates that share no compile. One worker parses the headers while the
    others lower.
    """
    groups = _groups(candidates, workers)
    work = candidates * (costs.lower_s + costs.member_s) / workers
    rounds = math.ceil(groups / workers)
    nvcc_s = work + rounds * costs.nvcc_s
    lowering_s = candidates * costs.lower_s / workers
    # Parsing costs one worker's time. If lowering ends earlier, the others wait for it.
    waits_s = max(costs.header_s - lowering_s, 0.0)
    return nvcc_s, work + costs.header_s / workers + waits_s + rounds * costs.parsed_s


def _groups(candidates: int, workers: int) -> int:
    """Estimate the number of groups that the scheduler makes of lowered kernels with few accumulators."""
    left, groups = candidates, 0
    while left > 0:
        left -= math.ceil(bounded(left / (SHARES * workers), groups / workers))
        groups += 1
    return max(groups, min(candidates, workers))


def choose(candidates: int, workers: int, costs: CompileCosts) -> tuple[bool, str]:
    """Return whether parsing the headers once pays, and the reason."""
    nvcc_s, parsed_s = estimate(candidates, workers, costs)
    many = f"{candidates} candidates on {workers} workers"
    return parsed_s < nvcc_s, f"{many}: about {nvcc_s:.1f} s with nvcc, {parsed_s:.1f} s with the headers parsed once"


class Idle(msgspec.Struct, frozen=True):
    """Not started, and undecided."""


class Parsing(msgspec.Struct, frozen=True):
    """Parsing headers before the decision. `started`: when parsing began. `before`: an earlier run parsed them."""

    started: float
    before: bool = False


class Broken(msgspec.Struct, frozen=True):
    """The process ended or cannot compile, before the decision."""

    reason: str


class Warming(msgspec.Struct, frozen=True):
    """The run will use the service, which does not compile yet.

    `soon`: parsing began so early that waiting for it takes less time than nvcc.
    """

    why: str
    soon: bool


class Ready(msgspec.Struct, frozen=True):
    """The service compiles."""

    why: str


class Unused(msgspec.Struct, frozen=True):
    """The service does not compile in this run, or no longer. `why`: empty if it needs no explanation."""

    why: str = ""


State = Idle | Parsing | Broken | Warming | Ready | Unused


def begun(state: State, now: float, *, before: bool) -> State:
    """Return the next state after a process begins to parse. `before`: it turns out to have parsed them earlier."""
    return Parsing(now, before) if isinstance(state, Idle | Parsing) else state


def decided(
    state: State, *, asked: bool, candidates: int, workers: int, lower_s: float, now: float, costs: CompileCosts
) -> State:
    """Decide, once, whether to use the service. `lower_s`: seconds for lowering the first candidate.

    `asked`: the settings name the service. `candidates`: their number, zero if unknown.
    """
    if isinstance(state, Broken):
        return Unused(f"nvcc, because {state.reason}")
    if not isinstance(state, Idle | Parsing):
        return state
    costs = costs.scaled(lower_s)
    if isinstance(state, Parsing):  # time already spent on parsing does not count
        spent_s = costs.header_s if state.before else now - state.started
        costs = msgspec.structs.replace(costs, header_s=max(0.0, costs.header_s - spent_s))
    pays, why = (True, "as asked") if asked else choose(candidates, workers, costs)
    return Warming(why, soon=isinstance(state, Parsing)) if pays else Unused(why)


def listening(state: State, answer: ServiceReady) -> State:
    """Return the next state after the process can compile. `answer`: what it says of the headers."""
    if not isinstance(state, Warming):
        return state
    how = f"in {answer.header_s:.1f} s" if answer.header_s else "by the previous run"
    return Ready(f"{state.why}; headers parsed {how}")


def failed(state: State, reason: str) -> State:
    """Return the next state after the process ended or cannot compile, because of `reason`."""
    if isinstance(state, Unused):
        return state
    return Broken(reason) if isinstance(state, Idle | Parsing | Broken) else Unused(f"nvcc, because {reason}")


def left(state: State) -> State:
    """Return the next state after the process leaves this run without an error."""
    return Unused(state.why) if isinstance(state, Warming | Ready) else state

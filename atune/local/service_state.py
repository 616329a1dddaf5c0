"""States of the compile service in a run, and their transitions. No I/O."""

from __future__ import annotations

import msgspec

from atune.local.compiler_choice import CompileCosts, choose
from atune.processes.messages import ServiceReady


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

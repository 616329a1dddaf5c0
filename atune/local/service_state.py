"""States of the compile service in a run, and their transitions. No I/O."""

from __future__ import annotations

import msgspec

from atune.local.compiler_choice import CompileCosts, choose


class Idle(msgspec.Struct, frozen=True):
    """Nothing is begun, and nobody knows whether it pays."""


class Parsing(msgspec.Struct, frozen=True):
    """Headers are parsed ahead of the decision. `started`: when that was begun; `before`: the run before did it."""

    started: float
    before: bool = False


class Broken(msgspec.Struct, frozen=True):
    """The process ended, or cannot compile, ahead of the decision."""

    reason: str


class Warming(msgspec.Struct, frozen=True):
    """It was decided for, and does not compile yet.

    `soon`: parsing was begun so early that waiting for it takes less than nvcc would.
    """

    why: str
    soon: bool


class Ready(msgspec.Struct, frozen=True):
    """It compiles."""

    why: str


class Unused(msgspec.Struct, frozen=True):
    """It does not compile in this run, or not any more. `why`: empty where there is nothing to say of it."""

    why: str = ""


State = Idle | Parsing | Broken | Warming | Ready | Unused


def begun(state: State, now: float, *, before: bool) -> State:
    """Return what follows when a process begins to parse, or is taken over from the run before."""
    return Parsing(now, before) if isinstance(state, Idle | Parsing) else state


def decided(
    state: State, *, asked: bool, candidates: int, workers: int, lower_s: float, now: float, costs: CompileCosts
) -> State:
    """Decide, once, whether the service compiles, now that lowering the first candidate took `lower_s`.

    `asked`: it was asked for by name. `candidates`: zero where nobody knows how many there are.
    """
    if isinstance(state, Broken):
        return Unused(f"nvcc, because {state.reason}")
    if not isinstance(state, Idle | Parsing):
        return state
    costs = costs.scaled(lower_s)
    if isinstance(state, Parsing):  # what is spent is spent
        spent_s = costs.header_s if state.before else now - state.started
        costs = msgspec.structs.replace(costs, header_s=max(0.0, costs.header_s - spent_s))
    pays, why = (True, "as asked") if asked else choose(candidates, workers, costs)
    return Warming(why, soon=isinstance(state, Parsing)) if pays else Unused(why)


def listening(state: State, header_s: float) -> State:
    """Return what follows when the process is there to compile; `header_s`: what parsing took, zero for none."""
    if not isinstance(state, Warming):
        return state
    how = f"headers parsed in {header_s:.1f} s" if header_s else "headers parsed by the run before"
    return Ready(f"{state.why}; {how}")


def failed(state: State, reason: str) -> State:
    """Return what follows when the process ended, or cannot compile, because of `reason`."""
    if isinstance(state, Unused):
        return state
    return Broken(reason) if isinstance(state, Idle | Parsing | Broken) else Unused(f"nvcc, because {reason}")


def left(state: State) -> State:
    """Return what follows when the process is there for this run no more, and nothing went wrong."""
    return Unused(state.why) if isinstance(state, Warming | Ready) else state

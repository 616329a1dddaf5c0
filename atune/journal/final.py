"""The final of a run, as its result tells it: who still stands, who ties with the winner, and how quiet it was."""

from __future__ import annotations

from collections.abc import Sequence

from atune.journal.events import CandidateMeasured
from atune.journal.noise import noise_of
from atune.journal.state import State
from atune.model.measurement import DISTURBS, FinalEntry


def standing(state: State) -> tuple[FinalEntry, ...]:
    """Return the entries of the final whose candidates are still measured, by their credited index."""
    entries = state.final.entries if state.final else ()
    firsts = [(state.first(e.index), e.timing) for e in entries]
    return tuple(FinalEntry(e.index, timing) for e, timing in firsts if isinstance(e.outcome, CandidateMeasured))


def ties_of(state: State, final: Sequence[FinalEntry]) -> tuple[int, ...] | None:
    """Return the credited index of those that tie with the winner; None where the final does not say, or lost it."""
    if state.final is None or state.final.ties is None or not final:
        return None
    if state.first(state.final.entries[0].index).index != final[0].index:
        return None
    ties = {state.first(index).index for index in state.final.ties}
    return tuple(entry.index for entry in final[1:] if entry.index in ties)


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

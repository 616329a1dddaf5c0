"""Layouts in a run: of each base configuration those are compiled that lowering tells to be the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from atune.engine.screen import screen
from atune.errors import UsageError
from atune.journal.state import State
from atune.model.candidate import Candidate
from atune.model.device import DeviceLimits
from atune.model.layouts import OWN, Alternative, Choice, Passed, choose
from atune.workload.workload import WorkloadSpec


class LayoutChoice:
    """Chooses `most` of the layouts of each base configuration: those that differ in `axes` alone.

    A pure function of the events: what each candidate lowered to, or that it failed to.
    """

    def __init__(self, candidates: Mapping[int, Candidate], axes: Sequence[str], most: int) -> None:
        self._candidates, self._axes, self._most = candidates, frozenset(axes), most
        self._groups: dict[bytes, list[int]] = {}
        for index, candidate in candidates.items():
            self._groups.setdefault(self._base(candidate), []).append(index)
        self._made: dict[bytes, Choice] = {}

    def group(self, index: int) -> list[int]:
        """Return the candidates of one base configuration, `index` among them."""
        return self._groups[self._base(self._candidates[index])]

    def choice(self, state: State, index: int, limits: DeviceLimits) -> Choice | None:
        """Return what is chosen of the layouts that candidate `index` is one of; None until all of them are lowered."""
        base = self._base(self._candidates[index])
        if base not in self._made:
            members = self._groups[base]
            if not all(state.entry(one).facts is not None or state.outcome(one) is not None for one in members):
                return None
            self._made[base] = choose(self._alternatives(state, members, limits), self._most)
        return self._made[base]

    def passed(self, state: State, index: int, limits: DeviceLimits) -> Passed | None:
        """Return what there is instead of a candidate whose layouts are chosen from; None where it is kept.

        Of layouts that come to the same code the first one stands for all.
        """
        choice = self.choice(state, index, limits)
        if choice is None:
            return None
        codes = {state.entry(one).code_key for one in choice.kept}
        return None if state.entry(index).code_key in codes else choice.passed.get(self._first(state, index))

    def _alternatives(self, state: State, members: Sequence[int], limits: DeviceLimits) -> list[Alternative]:
        own = {state.entry(one).code_key for one in members if self._own(one)}
        found = []
        for index in members:
            facts, code = state.entry(index).facts, state.entry(index).code_key
            if facts is None or screen(facts, limits)[0] == "prune":
                found.append(Alternative(index, valid=False, own=self._own(index)))
            elif index == self._first(state, index):
                found.append(Alternative(index, facts.layouts, own=code in own))
        return found

    def _first(self, state: State, index: int) -> int:
        """Return the first of the layouts with the code of candidate `index`."""
        code = state.entry(index).code_key
        return next(one for one in self.group(index) if state.entry(one).code_key == code)

    def _own(self, index: int) -> bool:
        config = self._candidates[index].config
        return all(config.get(name) in OWN for name in self._axes)

    def _base(self, candidate: Candidate) -> bytes:
        rest = {name: value for name, value in candidate.config.items() if name not in self._axes}
        return msgspec.json.encode(rest, order="deterministic")


def layout_choice(spec: WorkloadSpec, candidates: Mapping[int, Candidate], most: int | None) -> LayoutChoice | None:
    """Return the choice of a run that measures `most` layouts of a configuration; None where it measures all.

    Raises `UsageError` for a space that is not listed, or has no axis of layouts.
    """
    if most is None:
        return None
    if spec.points is not None:
        raise UsageError(f"layouts={most}: the space has {spec.points:,} points, of which only some are searched: give "
                         "fewer, or leave layouts out")  # fmt: skip
    if not spec.layout_axes:
        raise UsageError(
            f"layouts={most}: the space has no axis of layouts to choose from: give one that atune.layout.fragments(), "
            "loops() or coalesced_widths() returns, or leave layouts out"
        )
    return LayoutChoice(candidates, spec.layout_axes, most)

"""Decisions on lowered candidates: build now, build last, wait, or do not build.

The facts from lowering show whether a candidate can run, is likely to lose, or has one of the best layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from atune.engine.prior import exceeded_limit
from atune.engine.run_state import Run
from atune.errors import UsageError
from atune.journal.state import State
from atune.model.artifact import Lowered, StaticFacts
from atune.model.candidate import Candidate
from atune.model.device import DeviceLimits
from atune.model.layouts import COMPILER, Alternative, LayoutSelection, choose
from atune.workload.workload import WorkloadSpec

LIKELY = "likely"
"""First word of the reason for pruning a candidate that could run, but is likely to lose."""
SPILL_REGISTERS = 256
"""Accumulators that take this many registers of a thread spill, because a thread has at most 255 registers (CUDA C++
Programming Guide, compute capabilities)."""


@dataclass(frozen=True)
class Verdict:
    """The decision on a lowered candidate.

    ``build``: build the candidate now. ``defer``: build the candidate last. ``wait``: judge the candidate again when
    other candidates are lowered. ``duplicate``: the candidate has the same code as candidate `same_as`. ``prune``: do
    not build the candidate, for the reason `why`. `likely`: whether the only reason is that the candidate is likely to
    lose. `instead`: the candidate that will probably win instead, or None.
    """

    becomes: Literal["build", "defer", "wait", "duplicate", "prune"]
    why: str = ""
    same_as: int = -1
    likely: bool = False
    instead: int | None = None


class Screen:
    """Judges the lowered candidates of a run.

    `codes`: candidates by the key of their code, from earlier parts of the run. `skips`: whether to prune likely losers
    rather than build them last. `layouts`: the choice among layouts; None to build all layouts. If the default
    configuration can run, it is built immediately, because the winner is compared with it.
    """

    def __init__(self, run: Run, codes: Mapping[str, int], *, skips: bool, layouts: LayoutChoice | None) -> None:
        self._run, self._codes, self._skips, self._layouts = run, dict(codes), skips, layouts

    @property
    def prunes_losers(self) -> bool:
        """Whether the screen prunes candidates that could run, but are likely to lose."""
        return self._skips or self._layouts is not None

    def keep_losers(self) -> None:
        """From now on, prune only candidates that cannot run."""
        self._skips, self._layouts = False, None

    def judge(self, lowered: Lowered) -> Verdict:
        """Judge a candidate whose lowering is recorded."""
        index, limits, state = lowered.index, self._run.limits, self._run.recorder.state
        same_as = self._codes.setdefault(lowered.code_key, index)
        if same_as != index:
            return Verdict("duplicate", same_as=same_as)
        if why := exceeded_limit(lowered.facts, limits):
            return Verdict("prune", why)
        if index == state.default_index:
            return Verdict("build")
        if self._layouts is not None:
            verdict = self._layouts.judge(state, index, limits)
            if verdict.becomes != "build":
                return verdict
        if not (why := reason_to_defer(lowered.facts)):
            return Verdict("build")
        return Verdict("prune", f"{LIKELY}: {why}", likely=True) if self._skips else Verdict("defer", why)


def reason_to_defer(facts: StaticFacts) -> str:
    """Return the reason that a candidate is likely to be slow; empty if there is none."""
    if facts.accumulators is not None and facts.accumulators >= SPILL_REGISTERS:
        return f"accumulators take {facts.accumulators} registers per thread, and are likely to spill"
    return ""


class LayoutChoice:
    """Chooses up to `most` layouts of each base configuration. Candidates with the same base differ only in `axes`.

    The choice is a pure function of the events that record how candidates were lowered or failed.
    """

    def __init__(self, candidates: Mapping[int, Candidate], axes: Sequence[str], most: int) -> None:
        self._candidates, self._axes, self._most = candidates, frozenset(axes), most
        self._groups: dict[bytes, list[int]] = {}
        for index, candidate in candidates.items():
            self._groups.setdefault(self._base(candidate), []).append(index)
        self._made: dict[bytes, LayoutSelection] = {}

    def group(self, index: int) -> list[int]:
        """Return the candidates with the base configuration of `index`, including `index` itself."""
        return self._groups[self._base(self._candidates[index])]

    def judge(self, state: State, index: int, limits: DeviceLimits) -> Verdict:
        """Judge a candidate that is not a duplicate. A candidate waits until all layouts of its base are lowered.

        If several layouts compile to the same code, the first one represents them.
        """
        base = self._base(self._candidates[index])
        if base not in self._made:
            members = self._groups[base]
            if any(state.entry(member).facts is None and state.outcome(member) is None for member in members):
                return Verdict("wait")
            self._made[base] = choose(self._alternatives(state, members, limits), self._most)
        choice = self._made[base]
        rejected = choice.rejected.get(self._first(state, index))
        if rejected is None or state.entry(index).code_key in {state.entry(kept).code_key for kept in choice.kept}:
            return Verdict("build")
        return Verdict("prune", f"{LIKELY}: {rejected.why}", likely=True, instead=rejected.instead)

    def _alternatives(self, state: State, members: Sequence[int], limits: DeviceLimits) -> list[Alternative]:
        own = {state.entry(member).code_key for member in members if self._own(member)}
        alternatives = []
        for index in members:
            facts, code = state.entry(index).facts, state.entry(index).code_key
            if facts is None or exceeded_limit(facts, limits):
                alternatives.append(Alternative(index, valid=False, own=self._own(index)))
            elif index == self._first(state, index):
                alternatives.append(Alternative(index, facts.layouts, own=code in own))
        return alternatives

    def _first(self, state: State, index: int) -> int:
        """Return the first candidate of the group of `index` that has the same code."""
        code = state.entry(index).code_key
        return next(member for member in self.group(index) if state.entry(member).code_key == code)

    def _own(self, index: int) -> bool:
        config = self._candidates[index].config
        return all(config.get(name) == COMPILER for name in self._axes)

    def _base(self, candidate: Candidate) -> bytes:
        rest = {name: value for name, value in candidate.config.items() if name not in self._axes}
        return msgspec.json.encode(rest, order="deterministic")


def layout_choice(spec: WorkloadSpec, candidates: Mapping[int, Candidate], most: int | None) -> LayoutChoice | None:
    """Return the choice for a run that measures `most` layouts of a configuration; None if it measures all layouts.

    Raises `UsageError` if the space has no axis of layouts, or is so large that only a sample is searched.
    """
    if most is None:
        return None
    if spec.points is not None:
        raise UsageError(f"layouts={most}: only a sample of the space with {spec.points:,} points is searched, so the "
                         "layouts cannot be compared. Give a smaller space, or omit layouts")  # fmt: skip
    if not spec.layout_axes:
        raise UsageError(
            f"layouts={most}: the space has no axis of layouts to choose from. Add an axis from "
            "atune.layout.fragments() or atune.layout.loops(), or omit layouts"
        )
    return LayoutChoice(candidates, spec.layout_axes, most)

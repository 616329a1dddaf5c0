"""Decisions on lowered candidates: build now, build last, wait, or no build.

By lowered facts: which cannot run, which are likely to lose, and which layouts of one configuration are the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from atune.engine.prior import why_never
from atune.engine.run_state import Run
from atune.errors import UsageError
from atune.journal.state import State
from atune.model.artifact import Lowered, StaticFacts
from atune.model.candidate import Candidate
from atune.model.device import DeviceLimits
from atune.model.layouts import COMPILER, Alternative, LayoutSelection, choose
from atune.workload.workload import WorkloadSpec

LIKELY = "likely"
"""The reason of a candidate that was skipped as a likely loser begins so."""
SPILL_REGISTERS = 256
"""A thread has at most 255 registers (CUDA C++ Programming Guide, compute capabilities): an array of 256 must spill."""


@dataclass(frozen=True)
class Verdict:
    """The decision on a lowered candidate.

    ``build``, or ``defer``: last. ``wait``: it is judged again once others are lowered. ``duplicate``: it has the code
    of candidate `same_as`. ``prune``: it is not built, because of `why`. `likely`: only because it is likely to lose,
    to `instead` if that is one.
    """

    becomes: Literal["build", "defer", "wait", "duplicate", "prune"]
    why: str = ""
    same_as: int = -1
    likely: bool = False
    instead: int | None = None


class Screen:
    """Judges the lowered candidates of a run.

    `codes`: candidates by the key of their code, as earlier parts of the run found them. `skips`: whether likely losers
    are not built at all. `layouts`: chooses layouts; None builds all. `default`: the default configuration, which is
    built at once if it can run, because the winner is compared with it.
    """

    def __init__(
        self,
        run: Run,
        codes: Mapping[str, int],
        *,
        skips: bool = False,
        layouts: LayoutChoice | None = None,
        default: int | None = None,
    ) -> None:
        self._run, self._codes, self._skips, self._layouts = run, dict(codes), skips, layouts
        self._default = default

    @property
    def leaves_out(self) -> bool:
        """Whether it prunes candidates only because they are likely to lose."""
        return self._skips or self._layouts is not None

    def leave_none_out(self) -> None:
        """From now on prune only what cannot run."""
        self._skips, self._layouts = False, None

    def judge(self, lowered: Lowered) -> Verdict:
        """Judge a candidate whose lowering is recorded."""
        index, limits, state = lowered.index, self._run.limits, self._run.recorder.state
        same_as = self._codes.setdefault(lowered.code_key, index)
        if same_as != index:
            return Verdict("duplicate", same_as=same_as)
        if why := why_never(lowered.facts, limits):
            return Verdict("prune", why)
        if index == self._default:
            return Verdict("build")
        if self._layouts is not None:
            verdict = self._layouts.judge(state, index, limits)
            if verdict.becomes != "build":
                return verdict
        if not (why := why_last(lowered.facts)):
            return Verdict("build")
        return Verdict("prune", f"{LIKELY}: {why}", likely=True) if self._skips else Verdict("defer", why)


def why_last(facts: StaticFacts) -> str:
    """Return why a candidate is likely to be slow; empty if nothing says so."""
    if facts.accumulators is not None and facts.accumulators >= SPILL_REGISTERS:
        return f"{facts.accumulators} registers of accumulators a thread: likely to spill"
    return ""


class LayoutChoice:
    """Chooses `most` of the layouts of each base configuration: those that differ in `axes` alone.

    A pure function of the events: what each candidate lowered to, or that it failed to.
    """

    def __init__(self, candidates: Mapping[int, Candidate], axes: Sequence[str], most: int) -> None:
        self._candidates, self._axes, self._most = candidates, frozenset(axes), most
        self._groups: dict[bytes, list[int]] = {}
        for index, candidate in candidates.items():
            self._groups.setdefault(self._base(candidate), []).append(index)
        self._made: dict[bytes, LayoutSelection] = {}

    def group(self, index: int) -> list[int]:
        """Return the candidates of one base configuration, `index` among them."""
        return self._groups[self._base(self._candidates[index])]

    def judge(self, state: State, index: int, limits: DeviceLimits) -> Verdict:
        """Judge a candidate whose code is its own: it waits until all layouts of its configuration are lowered.

        Of layouts that come to the same code the first one stands for all.
        """
        base = self._base(self._candidates[index])
        if base not in self._made:
            members = self._groups[base]
            if not all(state.entry(one).facts is not None or state.outcome(one) is not None for one in members):
                return Verdict("wait")
            self._made[base] = choose(self._alternatives(state, members, limits), self._most)
        choice = self._made[base]
        rejected = choice.rejected.get(self._first(state, index))
        if rejected is None or state.entry(index).code_key in {state.entry(one).code_key for one in choice.kept}:
            return Verdict("build")
        return Verdict("prune", f"{LIKELY}: {rejected.why}", likely=True, instead=rejected.instead)

    def _alternatives(self, state: State, members: Sequence[int], limits: DeviceLimits) -> list[Alternative]:
        own = {state.entry(one).code_key for one in members if self._own(one)}
        found = []
        for index in members:
            facts, code = state.entry(index).facts, state.entry(index).code_key
            if facts is None or why_never(facts, limits):
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
        return all(config.get(name) == COMPILER for name in self._axes)

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
            "or loops() returns, or leave layouts out"
        )
    return LayoutChoice(candidates, spec.layout_axes, most)

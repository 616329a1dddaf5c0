"""Handles the compile stage's answers: records them as events, and hands artifacts to devices."""

from __future__ import annotations

from collections.abc import Sequence

from anyio.streams.memory import MemoryObjectSendStream

from atune.engine.audit import Audit
from atune.engine.compile_deadline import HOPELESS, compile_deadline_s
from atune.engine.layout_choice import LayoutChoice
from atune.engine.proof import Proofs
from atune.engine.run_state import Run
from atune.engine.screen import LIKELY, Verdict, screen
from atune.journal.events import (
    BuildFailed,
    CandidateAliased,
    CandidateLowered,
    CandidatePruned,
    CompileRepeated,
    GroupSplit,
)
from atune.model.artifact import Artifact, Failure, Lowered


class Recorded:
    """The `Answers` of a run that measures. `deliver`: where artifacts go.

    `audit`: decides which likely losers are tried although they are skipped; None if none is.
    `skips`: whether candidates that the screen puts last are skipped. `layouts`: chooses layouts; None tries all.
    `end_hopeless`: whether compiles that take far longer than the others' are ended.
    """

    def __init__(
        self,
        run: Run,
        proofs: Proofs,
        deliver: MemoryObjectSendStream[Artifact],
        compile_timeout_s: float,
        audit: Audit | None = None,
        *,
        skips: bool = True,
        layouts: LayoutChoice | None = None,
        end_hopeless: bool = True,
    ) -> None:
        self.compile_timeout_s, self._audit = compile_timeout_s, audit
        self._skips, self._layouts, self._end_hopeless = skips, layouts, end_hopeless
        self.run, self._proofs, self._deliver = run, proofs, deliver
        self.emit = run.recorder.emit

    def lowered(self, worker: str, lowered: Lowered) -> Verdict:
        self.run.params = self.run.params or lowered.params
        verdict, why = screen(lowered.facts, self.run.limits)
        self.emit(
            CandidateLowered,
            worker=worker,
            index=lowered.index,
            code_key=lowered.code_key,
            facts=lowered.facts,
            seconds=lowered.seconds,
            deferred=why if verdict == "defer" else "",
        )
        return self.judged(lowered)

    def judged(self, lowered: Lowered) -> Verdict:
        index, limits = lowered.index, self.run.limits
        verdict, why = screen(lowered.facts, limits)
        if verdict == "prune" or (self._audit is not None and not self._audit.skips(index)):
            return verdict, why
        if self._layouts is not None:
            state = self.run.recorder.state
            if self._layouts.choice(state, index, limits) is None:
                return "wait", ""
            if (passed := self._layouts.passed(state, index, limits)) is not None:
                return "prune", f"{LIKELY}: {passed.why}"
        if verdict == "defer" and self._audit is not None and self._skips:
            return "prune", f"{LIKELY}: {why}"
        return verdict, why

    def same(self, worker: str, index: int, same_as: int) -> None:
        self.emit(CandidateAliased, worker=worker, index=index, same_as=same_as)
        self.run.outcomes.settled(index)

    def pruned(self, worker: str, index: int, why: str) -> None:
        likely, instead = why.startswith(LIKELY), None
        if likely and self._layouts is not None:
            passed = self._layouts.passed(self.run.recorder.state, index, self.run.limits)
            instead = None if passed is None else passed.instead
        self.emit(CandidatePruned, worker=worker, index=index, reason=why, likely=likely, instead=instead)
        self.run.outcomes.settled(index)

    def failed(self, worker: str, failure: Failure) -> None:
        index, kind = failure.index, failure.kind
        message, detail = failure.message, failure.detail
        ended = kind == "timeout" and message.startswith(HOPELESS)
        self.emit(BuildFailed, worker=worker, index=index, kind=kind, message=message, detail=detail, hopeless=ended)
        self.run.outcomes.settled(index)

    def repeated(self, worker: str, indices: Sequence[int], reason: str) -> None:
        self.emit(CompileRepeated, worker=worker, indices=tuple(indices), reason=reason)

    def split(self, worker: str, group: Sequence[Lowered], message: str) -> None:
        self.emit(GroupSplit, worker=worker, indices=tuple(lowered.index for lowered in group), message=message)

    async def built(self, worker: str, members: Sequence[tuple[Lowered, Artifact]], reason: str) -> None:
        artifacts = [artifact for _, artifact in members]
        self.run.built(worker, artifacts, reason, artifacts[0].seconds)
        for lowered, artifact in members:
            self._proofs.remember(lowered, artifact)
        for artifact in artifacts:
            await self._deliver.send(artifact)

    def deadline_s(self, group: Sequence[Lowered]) -> float | None:
        """Return the seconds after which compiling `group` is hopeless; None if only the user's deadline applies."""
        tried = self._audit is not None and not all(self._audit.skips(one.index) for one in group)
        if tried or not self._end_hopeless:
            return None
        return compile_deadline_s(self.run.recorder.state, group, self.compile_timeout_s)

    def end(self) -> None:
        self._deliver.close()

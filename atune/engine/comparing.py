"""Compares each compiler state that is not known yet: one library that cicc built, with what nvcc makes of it.

A free compile worker compares, when nothing else can start. The run waits for it before the final. If the code
differs, nvcc alone compiles from then on, and the finalists are built again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from atune.engine.interfaces import CompileWorker
from atune.engine.run_state import Run
from atune.errors import AtuneError, MachineError
from atune.journal.events import Warned
from atune.model.artifact import Artifact, Failure
from atune.model.candidate import Candidate
from atune.model.jobs import CompareJob

TRIES = 2
"""How many workers one comparison may lose."""


class CompilerStates:
    """The compiler states of a run. `candidate`: returns one by its index."""

    def __init__(self, run: Run, candidate: Callable[[int], Candidate]) -> None:
        self.run, self.candidate = run, candidate
        self.differs = False
        """Whether cicc's code differs from nvcc's in a state."""
        self._equal, self._seen = set[str](), set[str]()
        self._due, self._begun = list[tuple[Artifact, int]](), 0
        """Libraries to compare, with the tries that are left, and how many comparisons are under way."""

    @property
    def due(self) -> bool:
        """Whether a state waits for a worker that compares it."""
        return bool(self._due)

    def saw(self, artifacts: Sequence[Artifact]) -> None:
        """Have the states of new libraries compared, unless they are known."""
        for artifact in artifacts:
            if artifact.state and not artifact.compared and artifact.state not in self._seen:
                self._seen.add(artifact.state)
                self._due.append((artifact, TRIES))
                self.run.wake()

    async def compare(self, worker: CompileWorker) -> None:
        """Compare the next state that is due. If the worker is lost, another one tries."""
        artifact, tries = self._due.pop(0)
        self._begun += 1
        try:
            answer = await worker.run(CompareJob(self.candidate(artifact.index), artifact))
            if isinstance(answer, Failure):
                self._warn(artifact, f"could not be compared with nvcc's ({answer.kind}: {answer.message})")
            elif answer.difference:
                self.differs = True
                self._warn(artifact, f"differs from nvcc's ({answer.difference}): nvcc compiles the finalists again")
            else:
                self._equal.add(artifact.state)
        except MachineError:
            raise
        except AtuneError as error:
            if tries > 1:
                self._due.append((artifact, tries - 1))
            else:
                self._warn(artifact, f"could not be compared with nvcc's ({error})")
        finally:
            self._begun -= 1
            self.run.wake()

    def _warn(self, artifact: Artifact, what: str) -> None:
        self.run.recorder.emit(Warned, message=f"the code of candidate {artifact.index} by cicc {what}")

    async def settle(self) -> set[int]:
        """Wait until all states are compared, and return the candidates whose library must be built again."""
        while self._due or self._begun:
            await self.run.changed()
        artifacts = self.run.artifacts
        wrong = {index for index, artifact in artifacts.items() if self.differs and not artifact.plain}
        for index, artifact in list(artifacts.items()):
            if index in wrong:
                del artifacts[index]
            elif artifact.state in self._equal:
                artifacts[index] = msgspec.structs.replace(artifact, compared=True)
        return wrong

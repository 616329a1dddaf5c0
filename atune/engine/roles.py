"""The roles of the kernel's parameters, found in its code before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from atune.engine.interfaces import CompileWorker
from atune.engine.run_state import Run
from atune.model.artifact import Roles
from atune.model.candidate import Candidate
from atune.model.jobs import RolesJob

FIRST = 16
"""Candidates that are tried in order. After that, one that was lowered meanwhile will do."""


async def find_roles(run: Run, worker: CompileWorker, candidates: Sequence[Candidate]) -> None:
    """Set the roles of `run`: those in the code of the first of `candidates` that elaborates.

    Raises `WorkloadError` if an output that is named is not there.
    """
    for tried, candidate in enumerate(candidates):
        lowered = run.lowered if tried >= FIRST else None
        answer = await worker.run(RolesJob(lowered or candidate))
        if isinstance(answer, Roles):
            run.roles = answer
            break
        if lowered is not None or run.stopping:
            break
    run.found_roles.set()

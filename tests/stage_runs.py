"""The compile steps in this process, for a workload's file: what a compile worker does, without one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.session import session
from atune.workers.processes.messages import Session
from atune.workload.workload import FileRef, candidates_of, load

CUDA = Target("cuda", "sm_90a")
DISABLE = "TILELANG_DISABLE_CACHE"


@contextmanager
def session_of(
    ref: FileRef,
    run_dir: Path,
    target: Target = CUDA,
    *,
    accelerators: Sequence[str] = (),
    compile: CompileSettings | None = None,
    benchmark: BenchmarkSettings | None = None,
) -> Iterator[list[Candidate]]:
    """Make this process a worker of a run in `run_dir` meanwhile; give the workload's candidates."""
    before = getattr(session._state, "session", None), session._state.workload
    cache = os.environ.get(DISABLE)
    os.environ[DISABLE] = "1"  # as in a worker: else what nvcc made before is found
    settings = compile or CompileSettings(), benchmark or BenchmarkSettings()
    session._state.session = Session(ref, target, *settings, str(run_dir), accelerators=tuple(accelerators))
    session._state.workload = work = load(ref)
    try:
        yield candidates_of(work)
    finally:
        session._state.session, session._state.workload = before  # type: ignore[assignment]
        if cache is None:
            del os.environ[DISABLE]
        else:
            os.environ[DISABLE] = cache

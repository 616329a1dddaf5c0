"""The compile steps in this process, for a workload's file: what a compile worker does, without one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages import session
from atune.workers.messages import Session
from atune.workload.pickling import FileRef, load
from atune.workload.workload import candidates_of

CUDA = Target("cuda", "sm_90a")


@contextmanager
def session_of(
    ref: FileRef,
    run_dir: Path,
    target: Target = CUDA,
    *,
    compile: CompileSettings | None = None,
    benchmark: BenchmarkSettings | None = None,
) -> Iterator[list[Candidate]]:
    """Make this process a worker of a run in `run_dir` meanwhile; give the workload's candidates.

    Unlike in a worker, tilelang's cache has the code of a source that nvcc compiled before with the same options.
    """
    before = getattr(session._state, "session", None), session._state.workload
    settings = compile or CompileSettings(), benchmark or BenchmarkSettings()
    session._state.session = Session(ref, target, *settings, str(run_dir))
    session._state.workload = work = load(ref)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILELANG_DISABLE_CACHE", "0")
            patch.setenv("TILELANG_CACHE_DIR", os.path.join(tempfile.gettempdir(), "tilelang"))
            yield candidates_of(work)
    finally:
        session._state.session, session._state.workload = before  # type: ignore[assignment]

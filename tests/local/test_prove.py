"""Proving a winner plain: what is asked of the worker, what is kept, and what becomes of a worker that breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atune.errors import RemoteError, WorkerLost, WorkerTimeout
from atune.model.artifact import Artifact, Failure, Proof
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.model.jobs import ProveJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.compile_service import CompileService
from atune.workers.local.compile_worker import CompileContext, LocalCompileWorker, RunStore
from atune.workers.local.retry import Patience, Room
from atune.workers.local.workers import Workers
from atune.workers.processes.messages import Session
from atune.workers.storage.artifact_store import ArtifactStore
from atune.workload.workload import FileRef

pytestmark = pytest.mark.anyio
WORKLOADS = Path(__file__).parents[1] / "workloads.py"
ACCELERATED = Path(__file__).parents[1] / "accelerated_kernels.py"
CANDIDATE = Candidate(3, "key", {"x": 1})
KEY, PLAIN_KEY = "a" * 32, "b" * 32


class Answering(LocalCompileWorker):
    """A compile worker that gives the answer that it has."""

    answer: Any = None
    asked: list[Any]

    async def _call(self, job: Any, limit_s: float | None = None) -> Any:
        self.asked.append(job)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def worker(tmp_path: Path, store: ArtifactStore) -> Answering:
    ref, settings = FileRef("x.py", "X"), CompileSettings(compile_timeout_s=7)
    session = Session(
        ref=ref, target=Target("c"), compile=settings, benchmark=BenchmarkSettings(), run_dir=str(tmp_path)
    )
    context = CompileContext(
        session=session,
        workers=Workers(ref),
        store=RunStore(store),
        service=CompileService(settings, "c"),
        room=Room(1, print, lambda: None),
        patience=Patience(str(tmp_path), print),
    )
    made = Answering(context, "compile-0", None)
    made.asked = []
    return made


def library(folder: Path, name: str, code_key: str) -> Artifact:
    path = folder / f"{name}.so"
    path.write_bytes(name.encode())
    return Artifact(index=3, path=str(path), symbol="K", params=(), target="c", store_key=code_key)


async def test_a_proof_and_the_plain_library_are_kept(worker: Answering, store: ArtifactStore, tmp_path: Path) -> None:
    measured, plain = library(tmp_path, "measured", KEY), library(tmp_path, "plain", PLAIN_KEY)
    worker.answer = proof = Proof(index=3, plain=plain, seconds=1.5)
    assert await worker.run(ProveJob(CANDIDATE, measured)) == proof
    [job] = worker.asked
    assert isinstance(job, ProveJob) and (job.candidate, job.measured) == (CANDIDATE, measured)
    assert Path(job.path).parent == tmp_path / "artifacts"
    assert store.find_proof(KEY, measured.path) and not store.find_proof(PLAIN_KEY, plain.path)
    found = store.find(PLAIN_KEY, 3)
    assert found is not None and Path(found.path).read_bytes() == b"plain" and found.store_key == PLAIN_KEY

    again = await worker.run(ProveJob(CANDIDATE, measured))
    assert again == Proof(index=3) and len(worker.asked) == 1  # nothing is proven twice


async def test_what_differs_is_not_proven_and_the_plain_library_is_kept(
    worker: Answering, store: ArtifactStore, tmp_path: Path
) -> None:
    measured, plain = library(tmp_path, "measured", KEY), library(tmp_path, "plain", PLAIN_KEY)
    worker.answer = Proof(index=3, difference="the generated source", plain=plain)
    assert await worker.run(ProveJob(CANDIDATE, measured)) == worker.answer
    assert not store.find_proof(KEY, measured.path) and store.find(PLAIN_KEY, 3) is not None
    await worker.run(ProveJob(CANDIDATE, measured))
    assert len(worker.asked) == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_what_may_not_be_kept_is_proven_each_time(worker: Answering, tmp_path: Path, stored: bool) -> None:
    """Code that includes the user's own files, which no key covers; and any code without a store."""
    measured, plain = library(tmp_path, "measured", "" if stored else KEY), library(tmp_path, "plain", PLAIN_KEY)
    if not stored:
        worker.context = replace(worker.context, store=RunStore())
    worker.answer = Proof(index=3, plain=plain)
    for _ in range(2):
        assert await worker.run(ProveJob(CANDIDATE, measured)) == worker.answer
    assert len(worker.asked) == 2 and not list((tmp_path / "store").rglob("*.json"))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (WorkerTimeout("late", "output"), "timeout", "compiling ran past compile_timeout_s=7"),
        (WorkerLost("compile-0-1 died in x: killed by SIGSEGV", "output"), "crash", "killed by SIGSEGV"),
        (RemoteError("KeyError: 'x'", "output", "KeyError"), "codegen", "KeyError: 'x'"),
    ],
)
async def test_a_worker_that_breaks_is_a_failure(
    worker: Answering, tmp_path: Path, error: Exception, kind: str, message: str
) -> None:
    worker.answer = error
    answer = await worker.run(ProveJob(CANDIDATE, library(tmp_path, "measured", KEY)))
    assert isinstance(answer, Failure) and (answer.index, answer.kind, answer.detail) == (3, kind, "output")
    assert message in answer.message

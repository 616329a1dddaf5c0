"""Compiler states from end to end: built by cicc, compared by nvcc, and known to the next run."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from services import artifacts, lowered_by, until
from versions import needs_cicc

from atune.model.artifact import Artifact, Compared, Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.jobs import BuildJob, CompareJob, FindJob
from atune.model.settings import CompileSettings
from atune.workers.artifact_store import recall
from atune.workers.compile_service import NEW_STATE
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

pytestmark = [
    pytest.mark.anyio,
    needs_cicc,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
]
KERNELS = FileRef(str(Path(__file__).parents[2] / "accelerated_kernels.py"), "PLUS")
CONFIG = {"block": 64}
CANDIDATE = Candidate(0, config_key(CONFIG), CONFIG)


@asynccontextmanager
async def run(
    candidates: int = 100, kernels: FileRef = KERNELS
) -> AsyncGenerator[tuple[LocalMachine, LocalCompileWorker]]:
    machine = LocalMachine(kernels, target="sm_90a", devices=(), compile=CompileSettings(workers=1))
    async with machine.open():
        await machine.describe()
        await machine.discover()
        await machine.prepare(candidates)
        (worker,) = machine.compile_workers()
        yield machine, worker


async def built(machine: LocalMachine, worker: LocalCompileWorker) -> Artifact | None:
    """Return the candidate's library from a run: None if the store has it."""
    [lowered] = await lowered_by(worker, CONFIG)
    assert isinstance(lowered, Lowered) and lowered.use and lowered.source_key
    if await worker.run(FindJob(lowered)) is not None:
        return None
    await until(machine, lambda: not machine.service.warming, 60)
    [artifact] = artifacts(list(await worker.run(BuildJob((lowered,)))))
    return artifact


async def test_a_state_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with run() as (machine, worker):
        first = await built(machine, worker)
        assert first is not None and first.compiler == "cicc" and first.state and not first.compared
        assert await worker.run(CompareJob(CANDIDATE, first)) == Compared(0)
    assert len(list((tmp_path / "atune" / "states").iterdir())) == 1
    async with run() as (machine, worker):  # the state is known, and the store has its library
        [lowered] = await lowered_by(worker, CONFIG)
        found = await worker.run(FindJob(lowered))
        assert found is not None and (found.state, found.compared) == (first.state, True)
    shutil.rmtree(tmp_path / "atune" / "artifacts")
    async with run() as (machine, worker):
        again = await built(machine, worker)
        assert again is not None and (again.compiler, again.state, again.compared) == ("cicc", first.state, True)


async def test_a_new_state_of_few_candidates_is_compared_while_nvcc_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvcc builds what the run measures; in the next run, cicc does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with run(1) as (machine, worker):
        first = await built(machine, worker)
        assert first is not None and (first.compiler, first.state, first.why) == ("nvcc", "", NEW_STATE)
        with anyio.fail_after(60):
            while not list(tmp_path.glob("atune/states/*.json")):
                await anyio.sleep(0.05)
    shutil.rmtree(tmp_path / "atune" / "artifacts")
    async with run(1) as (machine, worker):
        again = await built(machine, worker)
        assert again is not None and (again.compiler, again.compared, again.why) == ("cicc", True, "")


async def test_each_state_of_a_group_of_few_candidates_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members add in two types, so they use different parts of the headers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with run(2, FileRef(KERNELS.path, "GEMM")) as (machine, worker):
        group = await lowered_by(
            worker, *({"block": 64, "swizzle": False, "sums": f"float{bits}"} for bits in (16, 32))
        )
        assert len({lowered.use for lowered in group}) == 2 and len({lowered.merge_key for lowered in group}) == 1
        assert await worker.run(FindJob(group[0])) is None
        assert [one.compiler for one in artifacts(list(await worker.run(BuildJob(tuple(group)))))] == ["nvcc"] * 2
        with anyio.fail_after(60):
            while len(list(tmp_path.glob("atune/states/*.json"))) < 2:
                await anyio.sleep(0.05)
        states = [recall(machine.store.tools, lowered.use) for lowered in group]
        assert [state is not None and state[1] for state in states] == ["", ""]


async def test_a_state_that_differs_is_left_to_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with run() as (machine, worker):
        first = await built(machine, worker)
        assert first is not None
        wrong = Artifact(**{name: getattr(first, name) for name in first.__struct_fields__} | {"source_key": "other"})
        assert await worker.run(CompareJob(CANDIDATE, wrong)) == Compared(0, "the generated source")
    async with run() as (machine, worker):  # what cicc built is not found any more
        again = await built(machine, worker)
        assert again is not None and again.plain and again.state == ""

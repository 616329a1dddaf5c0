"""The library of one configuration, from the artifact store or from a compile worker."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
import msgspec

from atune.api.blocking import run_blocking
from atune.api.compile_all import compiled, raise_failures
from atune.engine.run_state import Run
from atune.local.machine import LocalMachine
from atune.model.artifact import Artifact
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.server import in_worker
from atune.storage.artifact_store import ArtifactStore
from atune.workload.listing import candidates_of
from atune.workload.workload import Workload, describe, ship

T = TypeVar("T")
Use = Callable[[Artifact | None], T]


def with_library(workload: Workload, target: Target, settings: CompileSettings, use: Use[T]) -> T:
    """Do what `with_library_async` does, blocking. Works inside a running event loop too."""
    plain = _plain(settings)
    found = _stored(workload, target, plain)
    if found is not None or in_worker():
        return use(found)
    made: T = run_blocking(_built, workload, target, plain, use)
    return made


async def with_library_async(workload: Workload, target: Target, settings: CompileSettings, use: Use[T]) -> T:
    """Call `use` in a thread with the library of `workload`, which has one configuration. Returns its result.

    This process lowers and compiles nothing. If the artifact store lacks the library, a worker process makes it. A
    worker process may start no workers: there `use` gets None, and compiles itself. Raises `CompileFailed` if the
    kernel fails to compile. Cancelling it ends the worker.
    """
    plain = _plain(settings)
    found = await anyio.to_thread.run_sync(_stored, workload, target, plain)
    if found is not None or in_worker():
        return await anyio.to_thread.run_sync(use, found)
    return await _built(workload, target, plain, use)


def _plain(settings: CompileSettings) -> CompileSettings:
    """Return `settings` for compiling one kernel as tilelang does."""
    return msgspec.structs.replace(settings, accelerate="off", workers=1, group_size=None, verbose=False)


def _stored(workload: Workload, target: Target, settings: CompileSettings) -> Artifact | None:
    if not settings.store:
        return None
    (candidate,) = candidates_of(workload)
    store = ArtifactStore()
    try:
        key = importlib.import_module("atune.stages.compile.keys").store_key(
            workload.kernel, workload.arguments, candidate.config, target, settings, workload.pass_configs
        )
        return store.find(key, candidate.index) if key else None
    except Exception:
        return None  # a worker will report what is wrong
    finally:
        store.close()


async def _built(workload: Workload, target: Target, settings: CompileSettings, use: Use[T]) -> T:
    spec = describe(workload)
    exact = BenchmarkSettings(n_final=0)
    machine = LocalMachine(ship(workload), spec=spec, target=target, devices=(), compile=settings, benchmark=exact)
    candidates: list[Candidate] = candidates_of(workload)
    run = Run()
    async with machine.open(wake=run.wake):
        await machine.discover()
        answers = await compiled(machine, candidates, run)
        raise_failures(candidates, answers)
        artifact = answers[0]
        assert isinstance(artifact, Artifact)
        return await anyio.to_thread.run_sync(use, artifact)

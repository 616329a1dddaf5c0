"""Questions about a workload's file that a worker answers: without compiling, or by compiling some configurations."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import msgspec

from atune.errors import RemoteError, WorkerLost, WorkerTimeout, translated
from atune.model.artifact import Failure
from atune.model.candidate import Candidate, Config, config_key
from atune.model.folders import run_folder
from atune.model.jobs import Explained, ExplainJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.workers import Workers, fork_server, how_it_ended, process_folders
from atune.workers.processes.messages import DISCOVER, EXPLAIN, SURVEY_SPACE, Discovery, Session
from atune.workload.pickling import FileRef, WorkloadRef
from atune.workload.workload import SpaceSurvey


@asynccontextmanager
async def asking(workload: WorkloadRef) -> AsyncGenerator[tuple[Workers, str], None]:
    """Start the fork server, or take the parked one. Yield its workers and the folder that they may write to.

    Leaving kills the workers and removes the folder.
    """
    with run_folder() as run_dir:
        async with fork_server() as server:
            workers = Workers(workload)
            workers.attach(server, process_folders(run_dir))
            yield workers, run_dir


async def survey_space(ref: FileRef) -> SpaceSurvey:
    """Return the counts of a workload's space, from a worker. Raises `WorkloadError` and `SpaceError`."""
    async with asking(ref) as (workers, _):
        reply = await workers.ask_once("survey", SURVEY_SPACE, msgspec.msgpack.encode(ref))
    return msgspec.msgpack.decode(reply, type=SpaceSurvey)


async def discover(ref: FileRef, target: str, devices: Sequence[str], compile: CompileSettings) -> Discovery:
    """Return the target and the devices that a run would have. Raises `TargetError`."""
    async with asking(ref) as (workers, _):
        return await _discovered(workers, target, devices, compile)


async def _discovered(workers: Workers, target: str, devices: Sequence[str], compile: CompileSettings) -> Discovery:
    question = (target, tuple(devices), compile)
    reply = await workers.ask_once("discover", DISCOVER, msgspec.msgpack.encode(question))
    return msgspec.msgpack.decode(reply, type=Discovery)


Answer = Explained | Failure
N_STEPS = 2
"""Lowering and compiling. Each step has the compile timeout."""


async def explain(
    ref: FileRef, configs: Sequence[Config], *, target: str, compile: CompileSettings
) -> tuple[bool, list[Answer]]:
    """Compile each of `configs` for `target` and return its facts or its failure; before them, whether that is the CPU
    only because there is no GPU.

    Raises `TargetError`, `WorkloadError` and `WorkerError`.
    """
    async with asking(ref) as (workers, run_dir):
        found = await _discovered(workers, target, (), compile)
        session = Session(ref, found.target, compile, BenchmarkSettings(), run_dir)
        answers = [await _one(workers, session, index, config) for index, config in enumerate(configs)]
        return bool(found.fallback), answers


async def _one(workers: Workers, session: Session, index: int, config: Config) -> Answer:
    candidate = Candidate(index, config_key(config), config)
    job = ExplainJob(candidate, os.path.join(session.run_dir, f"explained-{index}.so"))
    worker = await workers.loaded("explain", session)
    limit = N_STEPS * session.compile.compile_timeout_s
    try:
        reply = await worker.call(EXPLAIN, msgspec.msgpack.encode(job), limit)
    except WorkerTimeout as error:
        return Failure(index, "timeout", f"compiling ran past {limit:g} s", error.detail)
    except WorkerLost as error:
        return Failure(index, "crash", f"compiling ended its process: {how_it_ended(error)}", error.detail)
    except RemoteError as error:
        raise translated(error) from error
    finally:
        await worker.kill()
    answer: Answer = msgspec.msgpack.decode(reply, type=Explained | Failure)
    return answer

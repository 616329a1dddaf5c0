"""Explaining configurations in a worker, which compiles them and neither loads nor runs them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from atune.errors import RemoteError, WorkerLost, WorkerTimeout, translated
from atune.local.entry_points import DISCOVER, EXPLAIN
from atune.local.questions import asking_in_folder
from atune.local.workers import Workers, how_it_ended
from atune.model.artifact import Failure
from atune.model.candidate import Candidate, Config, config_key
from atune.model.explained import Explained, ExplainJob
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery, Session
from atune.workload.workload import FileRef

Answer = Explained | Failure
N_STEPS = 2
"""Lowering and compiling. Each step has the compile timeout."""


async def explain(
    ref: FileRef, configs: Sequence[Config], *, target: str, compile: CompileSettings, picture: str | None = None
) -> list[Answer]:
    """Compile each of `configs` for `target` and return its facts or its failure.

    `picture`: the fragment to draw, empty for the largest. Raises `TargetError`, `WorkloadError` and `WorkerError`.
    """
    benchmark = BenchmarkSettings()
    async with asking_in_folder(ref) as (workers, run_dir):
        question = (target, (), True, compile)
        reply = await workers.ask_once("discover", DISCOVER, msgspec.msgpack.encode(question))
        found = msgspec.msgpack.decode(reply, type=Discovery)
        session = Session(ref, found.target, compile, benchmark, run_dir)
        return [await _one(workers, session, index, config, picture) for index, config in enumerate(configs)]


async def _one(workers: Workers, session: Session, index: int, config: Config, picture: str | None) -> Answer:
    candidate = Candidate(index, config_key(config), config)
    job = ExplainJob(candidate, os.path.join(session.run_dir, f"explained-{index}.so"), picture)
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

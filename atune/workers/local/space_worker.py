"""The process that evaluates a workload's space, and answers the command line's questions about a file.

It isolates the user's file, constraints and generators.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path

import msgspec

import atune
from atune.engine.run_state import background
from atune.errors import (
    ServerLost,
    SpaceError,
    WorkerLost,
    WorkerTimeout,
    WorkloadError,
)
from atune.model.candidate import Config, thaw
from atune.model.folders import run_folder
from atune.model.settings import CompileSettings
from atune.workers.local.workers import Workers, fork_server
from atune.workers.processes.messages import (
    DISCOVER,
    LIST_SPACE,
    LOAD_SPACE,
    SURVEY_SPACE,
    Discovery,
    LoadSpace,
    SpacePart,
)
from atune.workers.processes.worker import Worker
from atune.workload.pickling import FileRef, WorkloadRef
from atune.workload.workload import SpaceSurvey, WorkloadSpec

FILE_TIMEOUT_S = 120.0
"""For running the user's file, including its imports."""
ANSWER_TIMEOUT_S = 60.0
"""For one call of a constraint, of a function of an axis or of the configurations, or of a generator."""


async def described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    """Load the workload in a process of its own, and describe its space, of which `seed` draws if it is large.

    `known`: the description without the space if the caller has it; otherwise the worker makes it. Raises
    `WorkloadError` if loading fails or hangs. Raises `SpaceError`, with the function's name, if a function of the space
    fails, hangs or ends the process.
    """
    return await workers.again_if_killed(partial(_described, workers, ref, known, seed))


async def _described(workers: Workers, ref: WorkloadRef, known: WorkloadSpec | None, seed: int) -> WorkloadSpec:
    asked, configs = LoadSpace(ref, known, FILE_TIMEOUT_S), list[Config]()
    async with workers.asked("describe") as worker:
        try:
            await worker.call(LOAD_SPACE, msgspec.msgpack.encode(asked), FILE_TIMEOUT_S)
        except WorkerTimeout as error:
            raise WorkloadError(_hung_while_loading(workers.what, error.detail)) from error
        while True:
            part = await _next_part(worker, seed, workers.what)
            configs += part.configs
            if part.spec is not None:
                spec = part.spec
                return msgspec.structs.replace(spec, configs=tuple(configs), arguments=thaw(spec.arguments))


async def _next_part(worker: Worker, seed: int, what: str) -> SpacePart:
    payload = msgspec.msgpack.encode((seed, ANSWER_TIMEOUT_S))
    try:
        return msgspec.msgpack.decode(await worker.call(LIST_SPACE, payload, ANSWER_TIMEOUT_S), type=SpacePart)
    except WorkerTimeout as error:
        raise SpaceError(_hung(what, error.detail)) from error
    except WorkerLost as error:
        if error.outside or isinstance(error, ServerLost):
            raise
        output = f"\n{error.detail}".rstrip()
        raise SpaceError(f"a function of the space of {what} ended the process: {error}{output}") from error


def _hung_while_loading(what: str, stack: str) -> str:
    where = f": it hangs in {place}" if (place := _place(stack)) else ""
    return (
        f"loading {what} was ended after {FILE_TIMEOUT_S:g} s{where}. Several processes load a workload's file, which "
        'only defines the workload: put slow code under if __name__ == "__main__":'
    )


def _hung(what: str, stack: str) -> str:
    who = _place(stack) or "a constraint, or another function of the space"
    return (
        f"the space of {what}: {who}, had not answered after {ANSWER_TIMEOUT_S:g} s and was ended. It hangs or is far "
        "too slow: it is called once for each configuration"
    )


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _place(stack: str) -> str:
    """Return which of the user's functions was called and where it hangs, by faulthandler's `stack`, or nothing."""
    ours = os.path.dirname(atune.__file__) + os.sep
    for thread in reversed(stack.split("Thread 0x")):
        frames = [frame for frame in _FRAME.findall(thread) if not frame[0].startswith("<frozen ")]
        users = list(takewhile(lambda frame: not frame[0].startswith(ours), frames))  # the innermost first
        if users and len(users) < len(frames):
            places = [f"{name} ({Path(file).name}, line {line})" for file, line, name in users]
            return places[0] if len(places) == 1 else f"{places[-1]}, in {places[0]}"
    return ""


# ---- questions about a file, by the command line


@asynccontextmanager
async def asking(workload: WorkloadRef) -> AsyncGenerator[tuple[Workers, str], None]:
    """Start the fork server, or take the parked one. Yield its workers and the folder that they may write to.

    Leaving kills the workers and removes the folder.
    """
    with run_folder() as run_dir:
        async with fork_server() as server, background(cancel=False) as tasks:
            workers = Workers(workload)
            workers.attach(server, run_dir, tasks)
            yield workers, run_dir


async def survey_space(ref: FileRef) -> SpaceSurvey:
    """Return the counts of a workload's space, from a worker. Raises `WorkloadError` and `SpaceError`."""
    async with asking(ref) as (workers, _):
        reply = await workers.ask_once("survey", SURVEY_SPACE, msgspec.msgpack.encode(ref))
    return msgspec.msgpack.decode(reply, type=SpaceSurvey)


async def discover(ref: FileRef, target: str, devices: Sequence[str], compile: CompileSettings) -> Discovery:
    """Return the target and the devices that a run would have. Raises `TargetError`."""
    async with asking(ref) as (workers, _):
        question = (target, tuple(devices), compile)
        reply = await workers.ask_once("discover", DISCOVER, msgspec.msgpack.encode(question))
    return msgspec.msgpack.decode(reply, type=Discovery)

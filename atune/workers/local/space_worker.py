"""The process that evaluates a workload's space. It isolates the user's file, constraints and generators."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

import atune
from atune.errors import ServerLost, SpaceError, WorkerLost, WorkerTimeout, WorkloadError
from atune.model.candidate import Config, thaw
from atune.workers.local.workers import Workers
from atune.workers.processes.messages import LIST_SPACE, LOAD_SPACE, LoadSpace, SpacePart
from atune.workers.processes.worker import Worker
from atune.workload.pickling import WorkloadRef
from atune.workload.workload import WorkloadSpec

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
    worker, configs = await workers.spawn("describe"), list[Config]()
    asked = LoadSpace(ref, known, FILE_TIMEOUT_S)
    try:
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
    finally:  # the user's code may have started anything in it
        if not workers.start_soon(worker.kill):
            await worker.kill()


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
    frames, _ = _frames(stack)
    where = f": it hangs in {_place(frames)}" if frames else ""
    return (
        f"loading {what} was ended after {FILE_TIMEOUT_S:g} s{where}. Several processes load a workload's file, which "
        'only defines the workload: put slow code under if __name__ == "__main__":'
    )


def _hung(what: str, stack: str) -> str:
    frames, callers = _frames(stack)
    kind = next((text for name, text in _KINDS.items() if name in callers), "a function of the configurations")
    who = f"{kind}, {_place(frames)}," if frames else "a constraint, or another function of the space,"
    return (
        f"the space of {what}: {who} had not answered after {ANSWER_TIMEOUT_S:g} s and was ended. It hangs or is far "
        "too slow: it is called once for each configuration"
    )


_KINDS = {
    "admits": "a constraint (where)",
    "_values": "the function of an axis",
    "_read": "the generator of configurations",
    "given": "the generator of configurations",
}
"""The user's function in messages, by the function of `atune.model` that calls it."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _frames(stack: str) -> tuple[list[tuple[str, str, str]], set[str]]:
    """Split faulthandler's stack into the user's frames, innermost first, and the names of atune's callers."""
    ours = os.path.dirname(atune.__file__) + os.sep
    threads: list[list[tuple[str, str, str]]] = [_FRAME.findall(text) for text in stack.split("Thread 0x")]
    frames = next((t for t in reversed(threads) if any(file.startswith(ours) for file, _, _ in t)), [])
    first = next((i for i, (file, _, _) in enumerate(frames) if file.startswith(ours)), len(frames))
    users = [frame for frame in frames[:first] if not frame[0].startswith("<frozen ")]
    return users, {name for file, _, name in frames[first:] if file.startswith(ours)}


def _place(frames: Sequence[tuple[str, str, str]]) -> str:
    """Return which function was called and where it hangs, from its frames, innermost first."""
    file, line, name = frames[-1]
    asked = f"{name} ({Path(file).name}, line {line})"
    if len(frames) == 1:
        return asked
    file, line, name = frames[0]
    return f"{asked}, in {name} ({Path(file).name}, line {line})"

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
from atune.workers.processes.messages import LIST_SPACE, LOAD_SPACE, NEAREST, FindNeighbours, LoadSpace, SpacePart
from atune.workers.processes.worker import Worker
from atune.workload.workload import WorkloadRef, WorkloadSpec

FILE_TIMEOUT_S = 120.0
"""For running the user's file, including its imports."""
ANSWER_TIMEOUT_S = 60.0
"""For one call of a constraint, of a function of an axis or of the configurations, or of a generator."""


class SpaceWorker:
    """Lists a workload's space, or draws from it and finds neighbours, in a worker that can be killed.

    `known`: the description without the space if the caller has it; otherwise the worker makes it. `what`: the
    workload's name in messages.
    """

    def __init__(self, workers: Workers, known: WorkloadSpec | None, what: str) -> None:
        self._workers, self._known, self._what = workers, known, what
        self._ref: WorkloadRef
        self._worker: Worker | None = None

    async def describe(self, ref: WorkloadRef, seed: int) -> WorkloadSpec:
        """Load the workload and describe its space. The process stays alive if `seed` drew from a large one.

        Raises `WorkloadError` if loading fails or hangs. Raises `SpaceError`, with the function's name, if a function
        of the space fails or hangs.
        """
        self._ref = ref
        spec = await self._workers.again_if_killed(partial(self._describe, seed))
        if spec.points is None:
            await self._end()
        return spec

    def adopt(self, ref: WorkloadRef) -> None:
        """Take the workload as another machine described it. It is loaded at the first look."""
        self._ref = ref

    async def neighbours(self, configs: Sequence[Config]) -> list[Config]:
        """Return the neighbours that `configs` have in the space.

        Raises `SpaceError`, with the constraint's name, if a constraint hangs, fails or ends the process.
        """
        wanted = FindNeighbours(tuple(configs), ANSWER_TIMEOUT_S)
        reply = await self._workers.again_if_killed(partial(self._neighbours, wanted))
        return [thaw(config) for config in msgspec.msgpack.decode(reply, type=list[Config])]

    async def _load(self) -> Worker:
        await self._end()
        self._worker = worker = await self._workers.spawn("describe")
        asked = LoadSpace(self._ref, self._known, FILE_TIMEOUT_S)
        try:
            await worker.call(LOAD_SPACE, msgspec.msgpack.encode(asked), FILE_TIMEOUT_S)
        except WorkerTimeout as error:
            raise WorkloadError(_hung_while_loading(self._what, error.detail)) from error
        return worker

    async def _describe(self, seed: int) -> WorkloadSpec:
        worker = await self._load()
        payload, configs = msgspec.msgpack.encode((seed, ANSWER_TIMEOUT_S)), list[Config]()
        while True:
            part = msgspec.msgpack.decode(await self._answer(worker, LIST_SPACE, payload), type=SpacePart)
            configs += part.configs
            if part.spec is not None:
                spec = part.spec
                return msgspec.structs.replace(spec, configs=tuple(configs), arguments=thaw(spec.arguments))

    async def _neighbours(self, wanted: FindNeighbours) -> bytes:
        worker = self._worker
        if worker is None or not worker.alive:
            worker = await self._load()
        return await self._answer(worker, NEAREST, msgspec.msgpack.encode(wanted))

    async def _answer(self, worker: Worker, entry: str, payload: bytes) -> bytes:
        try:
            return await worker.call(entry, payload, ANSWER_TIMEOUT_S)
        except WorkerTimeout as error:
            raise SpaceError(_hung(self._what, error.detail)) from error
        except WorkerLost as error:
            if error.outside or isinstance(error, ServerLost):
                raise
            output = f"\n{error.detail}".rstrip()
            raise SpaceError(f"a function of the space of {self._what} ended the process: {error}{output}") from error

    async def _end(self) -> None:
        """Kill the process, because the user's code may have started anything in it. Does not wait for its end."""
        worker, self._worker = self._worker, None
        if worker is not None and not self._workers.start_soon(worker.kill):
            await worker.kill()


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

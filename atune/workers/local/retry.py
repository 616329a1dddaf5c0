"""Waiting for resources that the machine is short of, and for a free place among the compile workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, get_args

import anyio

from atune.errors import MachineError, RemoteError, WorkerError
from atune.workers.system.resources import Resource, ShortOf, shortage_in, shortage_of, what_to_do

T = TypeVar("T")

PAUSES_S = (0.5, 2.0, 8.0)
"""Successive waits, in seconds, for a resource that the machine is short of."""


class Patience:
    """Retries work that failed because the machine was short of a resource. `folder`: the folder of the run's files."""

    def __init__(self, folder: str, warn: Callable[[str], None]) -> None:
        self.folder, self.warn = folder, warn
        self._warned_of: set[Resource] = set()

    async def until_it_works(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`. Raises `MachineError` if the shortage lasts."""
        for pause_s in PAUSES_S:
            try:
                return await attempt()
            except (OSError, WorkerError) as error:
                if (short_of := shortage(error)) is None:
                    raise
            if short_of not in self._warned_of:
                self._warned_of.add(short_of)
                self.warn(f"waiting, up to {sum(PAUSES_S):g} s at a time: {what_to_do(short_of, self.folder)}")
            await anyio.sleep(pause_s)
        try:
            return await attempt()
        except (OSError, WorkerError) as error:
            if (short_of := shortage(error)) is None:
                raise
            raise machine_error(short_of, self.folder) from error


def machine_error(short_of: Resource, folder: str) -> MachineError:
    """Return the error that ends a run for want of a resource. `folder` holds the run's files."""
    return MachineError(
        f"{what_to_do(short_of, folder)}. What was measured stays, and `atune resume JOURNAL` continues the run"
    )


def shortage(error: OSError | WorkerError) -> Resource | None:
    """Return the resource that the machine is short of, from a worker's or the system's error. None: another cause."""
    if isinstance(error, OSError):
        return shortage_of(error)
    if isinstance(error, RemoteError):
        if error.kind != ShortOf.__name__:
            return shortage_in(str(error)) if str(error).startswith("[Errno ") else None
        named = str(error).partition(":")[0]
        return next((one for one in get_args(Resource) if one == named), None)
    return shortage_in(str(error)) if "did not start" in str(error) else None


class Room:
    """Limits the compile workers that work at once: `workers`, and half as many after each lack of memory.

    `kills` returns the number of processes that the kernel killed for want of memory, or None if unknown.
    """

    def __init__(self, workers: int, warn: Callable[[str], None], kills: Callable[[], int | None]) -> None:
        self._limiter = anyio.CapacityLimiter(workers)
        self._warn, self._kills = warn, kills
        self._seen = kills() or 0

    @property
    def workers(self) -> int:
        return int(self._limiter.total_tokens)

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None, None]:
        """Take a worker's place, when one is free."""
        async with self._limiter:
            yield

    def made(self) -> bool:
        """Halve the places if the kernel killed a worker for want of memory. Call it from within the worker's place.

        Returns whether a retry may help: only if other workers took memory at the same time.
        """
        if (self._kills() or 0) <= self._seen:
            return False
        self._seen += 1  # each kill counts for one worker
        others_work = self._limiter.borrowed_tokens > 1
        if self.workers > 1:
            self._limiter.total_tokens = max(1, self.workers // 2)
            self._warn(
                f"memory ran out and the kernel killed a compile worker: {self.workers} at once from now on; "
                "CompileSettings(workers=…) sets the initial number"
            )
        return others_work

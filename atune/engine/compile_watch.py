"""Ends compiles that become hopeless while they run, because the others took far less time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from atune.engine.compile_deadline import FLOOR_S, hopeless
from atune.engine.interfaces import CompileWorker
from atune.model.artifact import Built, Failure, Lowered
from atune.model.jobs import BuildJob, GroupFailed

LOOK_S = 0.5
"""Seconds between two looks at the compiles under way."""

DeadlineOf = Callable[[Sequence[Lowered]], float | None]
"""Returns the seconds that compiling a group may take, as known now; None if only the user's deadline applies."""


@dataclass(eq=False)
class _Compile:
    """A group that a worker was given to compile. `call`: which call of the worker was seen last."""

    worker: CompileWorker
    group: Sequence[Lowered]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    call: int = 0
    age_s: float = 0.0
    limit_s: float = 0.0


class CompileWatch:
    """Looks at all compiles twice a second, and cancels hopeless ones, which kills them.

    Ages are counted in looks. So time in which this program is stopped does not count, nor does time in which a call
    waits for memory, for a free place or for a process. `sleep` lets the machine's time pass.
    """

    def __init__(self, deadline_s: DeadlineOf, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._deadline_s, self._sleep = deadline_s, sleep
        self._compiles: list[_Compile] = []
        self._begun = anyio.Event()

    async def build(self, worker: CompileWorker, group: Sequence[Lowered]) -> list[Built] | GroupFailed:
        """Have `worker` compile `group`, and answer as it does. A hopeless compile counts as a missed deadline."""
        one = _Compile(worker, group)
        self._compiles.append(one)
        self._begun.set()
        try:
            with one.scope:
                return await worker.run(BuildJob(tuple(group)))
        finally:
            self._compiles.remove(one)
        if len(group) > 1:
            return GroupFailed(hopeless(one.limit_s))
        return [Failure(group[0].index, "timeout", hopeless(one.limit_s))]

    async def serve(self) -> None:
        """Look at the compiles until cancelled."""
        while True:
            await self._begun.wait()
            while self._compiles:
                await self._sleep(LOOK_S)
                for one in self._compiles:
                    self._look_at(one)
            self._begun = anyio.Event()

    def _look_at(self, one: _Compile) -> None:
        call = one.worker.compiling
        one.age_s = one.age_s + LOOK_S if call and call == one.call else 0.0
        one.call = call
        if one.age_s < FLOOR_S:
            return
        limit_s = self._deadline_s(one.group)
        if limit_s is not None and one.age_s >= limit_s and not one.scope.cancel_called:
            one.limit_s = limit_s
            one.scope.cancel()

"""The NVRTC service of a run: when it is started, whether it is there, and why not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.abc
import msgspec

from atune.artifact import Artifact, Lowered
from atune.background import background
from atune.device import Target
from atune.device_compiler import CompileCosts, choose
from atune.errors import WorkerError
from atune.protocol import NvrtcReady

if TYPE_CHECKING:
    from atune.local import LocalBackend

PREPARE_TIMEOUT_S = 120.0


class NvrtcService(anyio.AsyncContextManagerMixin):
    """Owns the process that compiles with a precompiled header. Started by the first lowered candidate, if it pays.

    While `warming`, lowering goes on and building waits; `ready` tells builds to use it. `why` says what was decided.
    """

    def __init__(self, backend: LocalBackend, nice: int = 0) -> None:
        self.backend = backend
        self.warming = self.ready = False
        self.why = ""
        self.wake: Callable[[], None] = lambda: None
        self._lanes, self._candidates, self._nice = 1, 0, nice
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[None, None]:
        async with background() as self._tasks:
            yield

    def expect(self, candidates: int | None, lanes: int) -> None:
        """Learn how much will be compiled: None when nobody knows."""
        self._candidates, self._lanes = candidates or 0, lanes

    def saw(self, lowered: Lowered, target: Target) -> None:
        """Decide, on the first candidate of a CUDA run that has to be compiled, whether to start."""
        if self.why or target.kind != "cuda":
            return
        asked = self.backend.compile.compiler
        costs = CompileCosts().scaled(lowered.seconds)
        name, self.why = (asked, "as asked") if asked != "auto" else choose(self._candidates, self._lanes, costs)
        if name == "nvrtc":
            self.warming = True
            self._tasks.start_soon(self._run, lowered)

    def explain(self, artifact: Artifact) -> Artifact:
        """Note beside what compiled `artifact` why it did."""
        return artifact if artifact.why or not self.why else msgspec.structs.replace(artifact, why=self.why)

    async def _run(self, lowered: Lowered) -> None:
        backend = self.backend
        payload = msgspec.msgpack.encode((lowered.blob, lowered.index))
        try:
            worker = await backend.spawn("nvrtc", nice=self._nice)
            await backend.session(worker)
            reply = await worker.call("atune.stages.nvrtc:prepare", payload, PREPARE_TIMEOUT_S)
            answer = msgspec.msgpack.decode(reply, type=NvrtcReady)
            self.ready = answer.ok
            if answer.ok:
                self.why += f"; header made in {answer.header_s:.1f} s"
                self._changed()
                await worker.call("atune.stages.nvrtc:serve", b"", None)
            self.why = f"nvcc, because {answer.reason}"
        except (WorkerError, OSError, msgspec.MsgspecError) as error:
            self.why = f"nvcc, because NVRTC's process ended: {error}"
        finally:
            self.ready = False
            self._changed()

    def _changed(self) -> None:
        self.warming = False
        self.wake()

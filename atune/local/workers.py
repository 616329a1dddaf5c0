"""The processes of one run, as the fork server makes them: workers that know the session, and questions asked once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from anyio.abc import TaskGroup

from atune.errors import RemoteError, ServerLost, WorkerError, WorkerLost, WorkerTimeout, WorkloadError, translated
from atune.local.entry_points import BEGIN, LOAD
from atune.local.patience import shortage
from atune.processes.messages import Session
from atune.processes.pool import ForkServer
from atune.processes.worker import Worker
from atune.system.folders import made_folder
from atune.system.paths import CACHE_VARIABLE, cache_folder
from atune.workload.sources import Module, changed, written_since
from atune.workload.workload import FileRef, WorkloadRef

T = TypeVar("T")

LOAD_TIMEOUT_S = 300.0
"""For loading the user's file and for making a device's context: hard, but never what a slow machine needs."""


def process_folders(run_dir: str) -> dict[str, str]:
    """Make the folders that the processes of a run write to, and return what tells them."""
    return {
        "TMPDIR": made_folder(run_dir, "tmp"),
        "TILELANG_CACHE_DIR": made_folder(run_dir, "tilelang"),
        CACHE_VARIABLE: str(cache_folder()),
    }


class Workers:
    """Forks the workers of one run, once it is `attach`ed to a fork server.

    `workload`: what they load.
    """

    def __init__(self, workload: WorkloadRef) -> None:
        self.what = workload.origin if isinstance(workload, FileRef) else "the workload"
        """The workload, for messages."""
        self._server: ForkServer
        self._env: dict[str, str] = {}
        self._background: TaskGroup | None = None
        self._modules = workload.modules
        self._loaded_as = ""
        """The fingerprint of the workload in the run's first worker."""
        self._programs = "" if isinstance(workload, FileRef) else workload.loaded_as
        self._began = time.time()

    def attach(
        self, server: ForkServer, env: Mapping[str, str] | None = None, background: TaskGroup | None = None
    ) -> None:
        """Fork from `server` from now on, with `env` on top of its environment.

        `background` has what goes on beside the run, and ends with it; without one nothing does.
        """
        self._server, self._env, self._background = server, dict(env or {}), background

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Have `work` done beside the run; false where there is no run to do it beside."""
        if self._background is None:
            return False
        self._background.start_soon(work)
        return True

    async def spawn(
        self, role: str, *, env: Mapping[str, str] | None = None, cpus: Sequence[int] | None = None, nice: int = 0
    ) -> Worker:
        """Fork a worker of this run."""
        return await self._server.spawn(role, env={**self._env, **(env or {})}, cpus=cpus, nice=nice)

    def keep(self, loaded_as: str, modules: Mapping[str, Module]) -> None:
        """Learn what the run's first worker has loaded."""
        self._loaded_as, self._modules = loaded_as, dict(modules)

    def agree(self, loaded_as: str) -> None:
        """Hold the fingerprint of a worker's workload against the first one's. Raises `WorkloadError`."""
        self._loaded_as = self._loaded_as or loaded_as
        if loaded_as == self._loaded_as:
            return
        written = written_since(self._began, self._modules)
        cause = f"; written since the run began: {', '.join(written)}" if written else ""
        raise WorkloadError(
            f"{self.what} loads as other work than when the run began, although its Python files are loaded as they "
            f"were then: something else that it reads while it is loaded has changed{cause}. What was measured until "
            "then stays in the journal. Undo the change and resume, or tune with another journal"
        )

    def last_words(self) -> list[str]:
        """Say which of the workload's files were edited during the run, and where the workers had other work."""
        words = []
        if files := changed(self._modules):
            words.append(
                f"edited during the run: {', '.join(files)}; the result is that of the text at the run's start, which "
                "all workers were given. Tune again for the new one"
            )
        if self._programs and self._loaded_as not in ("", self._programs):
            words.append(
                f"the workers loaded {self.what} as other work than this program has: the program changed a global "
                "that the kernel uses, or what its modules read was edited since. The result is the workers'; give "
                "such values as arguments, or start the program anew"
            )
        return words

    @staticmethod
    async def begin(worker: Worker, session: Session) -> None:
        """Tell a new worker what it works on."""
        await worker.call(BEGIN, msgspec.msgpack.encode(session), LOAD_TIMEOUT_S)

    async def loaded(self, role: str, session: Session, *, cpus: Sequence[int] | None = None, nice: int = 0) -> Worker:
        """Fork a worker that knows the session and has the workload loaded, which no candidate's deadline covers."""

        async def load() -> Worker:
            worker = await self.spawn(role, cpus=cpus, nice=nice)
            try:
                await self.begin(worker, session)
                self.agree((await worker.call(LOAD, b"", LOAD_TIMEOUT_S)).decode())
            except (WorkerError, WorkloadError):
                await worker.kill()
                raise
            return worker

        return await self.again_if_killed(load)

    async def ask_once(self, role: str, entry: str, payload: bytes) -> bytes:
        """Ask a worker that is killed afterwards: the user's code may have started anything in it."""

        async def ask() -> bytes:
            worker = await self.spawn(role)
            try:
                reply = await worker.call(entry, payload, LOAD_TIMEOUT_S)
            except BaseException:
                await worker.kill()
                raise
            if not self.start_soon(worker.kill):  # nobody waits until it is reaped
                await worker.kill()
            return reply

        return await self.again_if_killed(ask)

    async def again_if_killed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Load the workload by `ask`, and once more where its process was killed from outside.

        Where its server was lost it says nothing, and `spawn` raises the second time. Raises `WorkloadError` for what
        the workload's code does to a process, and `WorkerError` the second time that one was killed.
        """
        last = False
        while True:
            try:
                return await ask()
            except RemoteError as error:
                if shortage(error) is not None:
                    raise
                raise translated(error) from error
            except ServerLost:
                continue
            except WorkerLost as error:
                if not error.outside:
                    raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error
                if last:
                    message = f"the worker that loads {self.what} was lost twice: {how_it_ended(error)}"
                    raise WorkerError(message, error.detail) from error
                last = True
            except WorkerTimeout as error:
                raise WorkloadError(f"loading {self.what} failed: {error}\n{error.detail}".strip()) from error


def how_it_ended(error: WorkerLost) -> str:
    """Return how a worker ended, without its name: failures of one kind are counted together."""
    return str(error).rpartition(": ")[2]

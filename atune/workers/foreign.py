"""A machine that measures strangers' kernels beside the default configuration of a task.

The default configuration is compiled as in any other run. A stranger's kernel is first elaborated in a sandbox. The
compile workers then get the elaborated kernel as data, and never run the stranger's Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atune.errors import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, RemoteError, WorkerLost, WorkerTimeout
from atune.model.artifact import Failure, FailureKind
from atune.model.candidate import BASELINE, FOREIGN
from atune.model.folders import made_folder
from atune.model.jobs import PAST_COMPILE_TIMEOUT, A, Job, RolesJob
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine
from atune.workers.messages import ELABORATE_FOREIGN, Session
from atune.workers.resources import COMPILE_NICE
from atune.workers.supervised import STARVED


class ForeignMachine(LocalMachine):
    """Measures the kernels of `programs`: each program is a text and the name of its kernel function (or ``""``).

    Candidate n is program n, and the baseline is the workload's default configuration. `allow`: names of external
    functions that programs may call, or ``source``.
    """

    def __init__(self, *given: Any, programs: Sequence[tuple[str, str]], allow: Sequence[str], **options: Any) -> None:
        super().__init__(*given, **options)
        self._programs, self._allow, self._kernels = programs, tuple(allow), dict[int, bytes]()
        self.isolation = "unknown, because no process answered"
        """Whether the strangers' Python was isolated, and if not, why."""

    def compile_workers(self) -> list[LocalCompileWorker]:
        for worker in (workers := super().compile_workers()):
            worker.prepare = self._prepare
        return workers

    def device_workers(self) -> list[LocalDeviceWorker]:
        workers = super().device_workers()
        self._devices = [] if self._on_cpu else workers  # no other run gets a process that ran a stranger's native code
        return workers

    def _session(self) -> Session:
        return msgspec.structs.replace(super()._session(), allow=self._allow)

    async def _prepare(self, job: Job[A]) -> Job[A] | Failure:
        """Return `job` with the stranger's elaborated kernel in its configuration, or a failure if elaborating
        fails."""
        candidate = getattr(job, "candidate", None)
        if candidate is None or candidate.index == BASELINE:
            return job
        assert self.spec is not None, "the run has described its work"
        config = dict(self.spec.baseline or {})
        if not isinstance(job, RolesJob):  # a stranger's kernel has the roles of the task's
            kernel = self._kernels.get(candidate.index) or await self._elaborated(candidate.index)
            if isinstance(kernel, Failure):
                return kernel
            self._kernels[candidate.index] = config[FOREIGN] = kernel
        return msgspec.structs.replace(job, candidate=msgspec.structs.replace(candidate, config=config))

    async def _elaborated(self, index: int) -> bytes | Failure:
        folder, limit_s = made_folder(self.run_dir, f"foreign-{index}"), self.compile.compile_timeout_s
        worker = await self.workers.spawn(f"foreign-{index}", env={"CUDA_VISIBLE_DEVICES": ""}, nice=COMPILE_NICE)
        assert self.spec is not None, "the run has described its work"
        given = *self._programs[index], self.spec.name, self.spec.arguments, self.discovery.target, folder
        try:
            answer = await worker.call(ELABORATE_FOREIGN, msgspec.msgpack.encode(given), limit_s)
        except WorkerTimeout as error:
            doubt = STARVED if error.starved else ""
            message = PAST_COMPILE_TIMEOUT.format(doing="elaborating", limit_s=limit_s)
            return Failure(index, "timeout", message, error.detail, doubt)
        except (WorkerLost, RemoteError) as error:
            outside = isinstance(error, WorkerLost) and error.outside
            doubt = "its process was lost" if outside else ""
            return Failure(index, "crash", f"elaborating failed: {error}", error.detail, doubt)
        finally:
            await worker.kill()
        why, _, kernel = answer.partition(b"\n")
        self.isolation = f"not isolated: {why.decode()}" if why else "isolated"
        if kernel[:1] != b"-":
            return kernel
        try:
            message, detail = msgspec.json.decode(kernel[1:], type=tuple[str, str])
        except msgspec.MsgspecError as error:
            message, detail = "its answer is not valid", str(error)
        kind: FailureKind = "out_of_memory" if message.startswith("MemoryError") else "lower"
        return Failure(index, kind, message[:MESSAGE_CHARACTERS], detail[-DETAIL_CHARACTERS:])

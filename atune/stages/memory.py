"""Device memory: the memory that a process used, the session's limit, and the reasons why memory was lacking."""

from __future__ import annotations

import msgspec

from atune.errors import WorkloadError
from atune.model.artifact import Failure
from atune.model.jobs import Finals
from atune.model.measurement import Measurement
from atune.stages.gpu import holders
from atune.stages.observer import Answer, Observer
from atune.stages.session import session

CONTEXT_BYTES = 600 << 20
"""Bytes of device memory that a CUDA context takes on an H100. The context counts as used memory."""
OWN_CONTEXT_BYTES = 1 << 30
"""Upper bound in bytes for this process's CUDA context. Memory in use beyond this bound belongs to other processes."""


class MemoryObserver(Observer):
    """Enforces the session's memory limit on the GPU `uuid`, and adds the process's use of memory to answers. Raises
    `WorkloadError` if the context alone exceeds the limit."""

    def __init__(self, uuid: str) -> None:
        import torch

        self._uuid = uuid
        torch.cuda.reset_peak_memory_stats()
        if (limit := session().memory_bytes) is None:
            return
        if (left := limit - CONTEXT_BYTES) <= 0:
            own = f"CUDA's context alone takes {CONTEXT_BYTES >> 20} MiB"
            raise WorkloadError(f"memory_limit: {limit >> 20} MiB for a process is too little: {own}")
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, left / total))

    def record(self, answer: Answer) -> Answer:
        import torch

        if isinstance(answer, Measurement | Finals):
            return msgspec.structs.replace(answer, memory_bytes=CONTEXT_BYTES + torch.cuda.max_memory_reserved())
        return msgspec.structs.replace(answer, **self._why(answer)) if answer.kind == "out_of_memory" else answer

    def _why(self, failure: Failure) -> dict[str, str]:
        """Return new fields of `failure`: a doubt if other processes use the memory, or else a message with the
        limit."""
        if others := self._others():
            return {"doubt": others}
        if (limit := session().memory_bytes) is None:
            return {}
        return {"message": f"memory_limit allows {limit >> 20} MiB in this process: {failure.message}"}

    def _others(self) -> str:
        """Describe other processes that use the memory; empty if they use little, or leave enough for the limit."""
        import torch

        (free, total), own, limit = torch.cuda.mem_get_info(), torch.cuda.memory_reserved(), session().memory_bytes
        if limit is not None and free + own + CONTEXT_BYTES >= limit:
            return ""
        others = total - free - own - OWN_CONTEXT_BYTES
        if others <= 256 << 20:
            return ""
        return f"other processes use about {others >> 20} MiB of the device's memory ({holders(self._uuid)})"

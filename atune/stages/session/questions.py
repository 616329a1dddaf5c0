"""Entry points of a worker that is asked about a workload's file and compiles nothing."""

from __future__ import annotations

import msgspec

from atune.workload.kernel_site import Sought, locate


def locate_kernel(payload: bytes) -> bytes:
    """Load what `payload` (`Sought`) names and return its `KernelSite`. Raises `WorkloadError`."""
    return msgspec.msgpack.encode(locate(msgspec.msgpack.decode(payload, type=Sought)))

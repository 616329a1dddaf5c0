"""Entry points of a device's process, named after its jobs: bytes in, bytes out, and all work on its own stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from atune.errors import in_one_line
from atune.model.device import DeviceInfo
from atune.model.jobs import BitsJob, FinalJob, MeasureJob, PrepareJob, Started
from atune.stages import benchmark
from atune.stages.bits import BitsObserver, digests
from atune.stages.clocks import ClocksObserver
from atune.stages.gpu import holders, kind_of
from atune.stages.memory import MemoryObserver
from atune.workers.resources import ShortOf


def begin(payload: bytes) -> bytes:
    """Begin a run: `DeviceInfo` → `Started`. Raises `ShortOf` without memory for the device's context."""
    info = msgspec.msgpack.decode(payload, type=DeviceInfo)
    try:
        uuid = benchmark.begin(info)
    except Exception as error:
        if kind_of(error) != "out_of_memory":
            raise
        raise ShortOf(f"device memory: {in_one_line(error)} ({holders(info.uuid)})") from error
    observers = (BitsObserver(), MemoryObserver(uuid), ClocksObserver(uuid)) if uuid else (BitsObserver(),)
    benchmark.device.observers = observers
    return msgspec.msgpack.encode(Started(info, benchmark.device.stream.handle))


def rest(_: bytes) -> bytes:
    """Forget the run, and free its memory: another one has the process next."""
    benchmark.rest()
    return b""


def _answered(do: Callable[[Any], Any], kind: type[Any], payload: bytes) -> bytes:
    """Do the job of `kind` that `payload` holds."""
    job = msgspec.msgpack.decode(payload, type=kind)
    with benchmark.device.stream.current():
        return msgspec.msgpack.encode(do(job))


prepare = partial(_answered, benchmark.prepare, PrepareJob)
measure = partial(_answered, benchmark.measure, MeasureJob)
bits = partial(_answered, digests, BitsJob)
final = partial(_answered, benchmark.final, FinalJob)

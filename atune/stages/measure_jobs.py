"""Entry points of a device's process, named after its jobs: begin, prepare, measure, bits, final, rest.

Bytes in, bytes out. All jobs are done on the device's own stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from atune.model.device import DeviceInfo
from atune.model.jobs import BitsJob, FinalJob, MeasureJob, PrepareJob
from atune.stages.measure import benchmark
from atune.stages.measure.bits import BitsObserver
from atune.stages.measure.bits import bits as bits_of
from atune.stages.measure.clocks import ClocksObserver
from atune.stages.measure.memory import MemoryObserver
from atune.stages.measure.observer import Observer

J = TypeVar("J")


def begin(payload: bytes) -> bytes:
    """Make the device's context, before any artifact exists, once a process: `DeviceInfo` → `Started`."""
    info = msgspec.msgpack.decode(payload, type=DeviceInfo)
    observers: tuple[Observer, ...] = (BitsObserver(),)
    if info.id != "cpu":
        observers = (*observers, MemoryObserver(info.uuid), ClocksObserver())
    return msgspec.msgpack.encode(benchmark.begin(info, observers))


def prepare(payload: bytes) -> bytes:
    """Make the inputs and run the reference: `PrepareJob` → `Prepared`."""
    return _answered(benchmark.prepare, payload, PrepareJob)


def measure(payload: bytes) -> bytes:
    """Check and time a candidate: `MeasureJob` → `Measurement` or `Failure`."""
    return _answered(benchmark.measure, payload, MeasureJob)


def bits(payload: bytes) -> bytes:
    """Call artifacts on inputs of other seeds: `BitsJob` → `Bits`."""
    return _answered(bits_of, payload, BitsJob)


def final(payload: bytes) -> bytes:
    """Time the finalists in turn: `FinalJob` → `Finals`."""
    return _answered(benchmark.final, payload, FinalJob)


def rest(_: bytes) -> bytes:
    """Forget the run, and free its memory: another one has the process next."""
    benchmark.rest()
    return b""


def _answered(do: Callable[[J], Any], payload: bytes, kind: type[J]) -> bytes:
    job = msgspec.msgpack.decode(payload, type=kind)
    with benchmark.device.stream.current():
        return msgspec.msgpack.encode(do(job))

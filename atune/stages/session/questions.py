"""Entry points of a worker that is asked about a workload's file and compiles nothing."""

from __future__ import annotations

import msgspec

from atune.workload.kernel_site import Sought, locate
from atune.workload.pickling import FileRef, load
from atune.workload.space_survey import survey


def locate_kernel(payload: bytes) -> bytes:
    """Load what `payload` (`Sought`) names and return its `KernelSite`. Raises `WorkloadError`."""
    return msgspec.msgpack.encode(locate(msgspec.msgpack.decode(payload, type=Sought)))


def survey_space(payload: bytes) -> bytes:
    """Load the workload that `payload` (`FileRef`) names and return its `SpaceSurvey`. Raises `SpaceError`."""
    return msgspec.msgpack.encode(survey(load(msgspec.msgpack.decode(payload, type=FileRef))))

"""Fakes that take no time, for runs whose own cost counts."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import anyio
import anyio.lowlevel

from atune.model.device import DeviceInfo
from atune.model.jobs import A, FinalJob, Finals, Job, MeasureJob, Prepared, PrepareJob, Started, StartJob
from atune.model.measurement import Measurement, Timing
from atune.testing import FakeClock
from atune.workers.local.machine import LocalMachine


class InstantClock(FakeClock):
    """Virtual time in which every finite sleep ends at once, even if others sleep. For measuring the engine's own cost.

    An infinite sleep does not end.
    """

    async def sleep(self, seconds: float) -> None:
        if math.isinf(seconds):
            await anyio.sleep_forever()
        self.now += seconds
        await anyio.lowlevel.checkpoint()


class IdleDeviceWorker:
    """A device worker without a device. It counts a delivered library as measured, for runs that only compile."""

    name, alive = "none", False

    async def run(self, job: Job[A]) -> A:
        answer: Any = None
        match job:
            case StartJob():
                self.alive, answer = True, Started(DeviceInfo(id="none", name="none"))
            case PrepareJob():
                answer = Prepared(None)
            case MeasureJob(artifact=artifact):
                if not os.path.getsize(artifact.path):
                    raise ValueError(f"{artifact.path} is empty")
                answer = Measurement(artifact.index, Timing.of([1.0], "none"))
            case FinalJob():
                answer = Finals((), None)
        return cast(A, answer)


class CompileOnly(LocalMachine):
    """Compile workers, and a device that does nothing."""

    def device_workers(self) -> Any:
        return [IdleDeviceWorker()]

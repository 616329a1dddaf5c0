"""Observer of a GPU's clocks, which are read from NVML right after samples were taken."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from atune.model.measurement import Conditions, Timing
from atune.stages.gpu import handle, nvml
from atune.stages.observer import Observer

THROTTLE = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "temperature", 0x40: "hardware temperature", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Reasons for reduced clocks, by NVML's bit (NVML API reference, «Clocks Event Reasons»; 0x1 means an idle GPU)."""


class ClocksObserver(Observer):
    """Adds the clocks of the GPU with this `uuid` to each timing, if NVML reports the clocks."""

    def __init__(self, uuid: str) -> None:
        self._uuid, self._nvml = uuid, None
        with suppress(Exception):  # no driver or no permission: measuring does not need the clocks
            self._handle, self._nvml = handle(uuid), nvml()

    def after(self, timing: Timing) -> Timing:
        return msgspec.structs.replace(timing, conditions=self._now())

    def _now(self) -> Conditions:
        if self._nvml is None:
            return Conditions(uuid=self._uuid)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") or self._ask(
            "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        return Conditions(
            uuid=self._uuid,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            throttle=tuple(name for bit, name in THROTTLE.items() if reasons and reasons & bit),
        )

    def _ask(self, name: str, *arguments: Any) -> int | None:
        try:
            return int(getattr(self._nvml, name)(self._handle, *arguments))
        except Exception:  # not supported by the GPU, or by this version of the bindings
            return None

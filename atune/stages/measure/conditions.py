"""The conditions of a device's measurements: clocks, temperature and throttling, from NVML."""

from __future__ import annotations

from typing import Any

from atune.model.measurement import Conditions

THROTTLE = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "temperature", 0x40: "hardware temperature", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Reasons for lower clocks, by bit (NVML API reference, «Clocks Event Reasons»; 0x1 is an idle GPU)."""


class Observer:
    """Asks NVML about one GPU, by its UUID. Facts that NVML does not tell are omitted."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = pynvml
        except Exception:  # no driver, no permission: measuring goes on without
            self._nvml = None

    def now(self) -> Conditions:
        nvml = self._nvml
        if nvml is None:
            return Conditions(uuid=self.uuid)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") or self._ask(
            "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        return Conditions(
            uuid=self.uuid,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle=tuple(name for bit, name in THROTTLE.items() if reasons and reasons & bit),
        )

    def energy_mj(self) -> int | None:
        """Return the energy that the GPU has taken since its driver was loaded, in mJ; None where it does not tell."""
        return None if self._nvml is None else self._ask("nvmlDeviceGetTotalEnergyConsumption")

    def _ask(self, name: str, *arguments: Any) -> int | None:
        try:
            return int(getattr(self._nvml, name)(self._handle, *arguments))
        except Exception:  # not supported here, or not by this version of the bindings
            return None

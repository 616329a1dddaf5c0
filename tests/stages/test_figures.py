"""A GPU's figures by NVML; a driver that knows fewer of them takes no GPU away. What limits the blocks on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from atune.errors import TargetError
from atune.model.device import DeviceInfo, Occupancy, occupancy_of
from atune.stages import gpu


def nvml(**functions: Any) -> SimpleNamespace:
    known = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1 << 37),
    }
    return SimpleNamespace(**known, **functions)


def test_a_gpu_has_its_multiprocessors_clock_and_memory_rate() -> None:
    full = nvml(
        nvmlDeviceGetNumGpuCores=lambda handle: 16896,
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: {1: 1980, 2: 3201}[clock],
        nvmlDeviceGetMemoryBusWidth=lambda handle: 6144,
    )
    found = gpu._gpu(full, "handle")
    assert (found.name, found.sms, found.clock_hz) == ("NVIDIA H200", 132, 1.98e9)
    assert found.memory_bytes_s == pytest.approx(4.917e12, rel=1e-3)


def test_a_driver_that_knows_none_of_them_still_has_its_gpu() -> None:
    found = gpu._gpu(nvml(), "handle")
    assert (found.name, found.sms, found.clock_hz, found.memory_bytes_s) == ("NVIDIA H200", 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("target", "wanted", "fallback"),
    [
        ("auto", ("all",), gpu.NO_GPU),
        ("auto", (), gpu.NO_GPU),
        ("auto", ("cpu",), ""),
        ("c", ("all",), ""),
    ],
)
def test_only_who_did_not_ask_for_the_cpu_is_told_that_it_is_the_target(
    target: str, wanted: tuple[str, ...], fallback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "visible_gpus", list)
    found = gpu.find_devices(target, wanted)
    assert (found.target.kind, found.fallback) == ("c", fallback)


def test_devices_that_measure_are_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [DeviceInfo(id=str(n), name=name, arch="sm_90a") for n, name in enumerate(("H100", "H200", "H200"))]
    monkeypatch.setattr(gpu, "visible_gpus", lambda: models)
    monkeypatch.setattr(gpu.tilelang, "nvcc", lambda: __file__)
    with pytest.raises(TargetError, match=r"of the same model, but there are 0: H100, .* choose with --devices"):
        gpu.find_devices("auto", ("all",))
    assert gpu.find_devices("auto", ("1", "2")).devices == tuple(models[1:])
    assert str(gpu.find_devices("auto", ()).target) == "cuda (sm_90a)"  # only to compile


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem_bytes", "expected"),
    [
        ("sm_90a", 1024, 32, 0, Occupancy(2, ("threads", "registers"))),
        ("sm_90a", 256, 32, 227 << 10, Occupancy(1, ("smem",))),  # with 1 KiB that is reserved all there is
        ("sm_90a", 32, 16, 0, Occupancy(32, ("blocks",))),
        ("sm_86", 512, 40, 0, Occupancy(3, ("threads", "registers"))),
        ("sm_90a", 384, 168, 0, Occupancy(1, ("registers",))),  # 12 warps of 5,376
        ("sm_90a", 1024, 255, 0, Occupancy(0, ("registers",))),
    ],
)
def test_what_limits_the_blocks_is_named(
    arch: str, threads: int, registers: int, smem_bytes: int, expected: Occupancy
) -> None:
    """By the figures of the CUDA C++ Programming Guide."""
    assert occupancy_of(arch, threads, registers, smem_bytes) == expected


def test_an_unknown_multiprocessor_has_no_occupancy() -> None:
    assert occupancy_of("sm_50", 128, 32, 0) is None
    assert occupancy_of("", 128, 32, 0) is None

"""``atune doctor --calibrate``: peaks measured once, kept by device and clock, and taken before the data sheet's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from atune.cli.calibrate import ask, calibrate
from atune.local.entry_points import CALIBRATE, VISIBLE_GPUS
from atune.local.peaks import nominal_peaks, with_peaks
from atune.model.device import DeviceInfo
from atune.storage.calibration import find_peaks

H200 = DeviceInfo("0", "NVIDIA H200", uuid="GPU-1-2", arch="sm_90a", clock_hz=1.98e9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    return tmp_path


def answers(entry: str, *arguments: Any) -> Any:
    if entry == VISIBLE_GPUS:
        return msgspec.to_builtins([H200])
    assert (entry, arguments) == (CALIBRATE, (0,))
    return {"flops_s": 7.5e14, "bytes_s": 4.2e12}


def test_what_was_measured_is_kept_and_wins_over_the_data_sheet() -> None:
    before = with_peaks(H200).peaks
    assert before is not None and not before.measured and before.flops_s == pytest.approx(989e12, rel=0.02)
    [check] = calibrate(answers)
    assert check.ok and "750 TFLOP/s in 16 bits (76 % of nominal)" in check.found
    after = with_peaks(H200).peaks
    assert after is not None and after.measured and (after.flops_s, after.bytes_s) == (7.5e14, 4.2e12)


def test_another_device_or_another_clock_has_no_calibration() -> None:
    calibrate(answers)
    assert find_peaks(H200) is not None
    assert find_peaks(msgspec.structs.replace(H200, uuid="GPU-3")) is None
    assert find_peaks(msgspec.structs.replace(H200, clock_hz=1.2e9)) is None


def test_a_damaged_calibration_is_as_none(cache: Path) -> None:
    calibrate(answers)
    [file] = (cache / "calibration").iterdir()
    file.write_text('{"flops_s": 0')
    assert with_peaks(H200).peaks == nominal_peaks(H200)


def test_a_device_without_room_is_a_finding_with_advice() -> None:
    def fails(entry: str, *arguments: Any) -> Any:
        if entry == CALIBRATE:
            raise ValueError("CUDA out of memory")
        return answers(entry)

    [check] = calibrate(fails)
    assert not check.ok and "CUDA out of memory" in check.found and check.advice
    assert [c.found for c in calibrate(lambda entry: [])] == ["there is no GPU"]


def test_a_cpu_has_no_peaks() -> None:
    assert with_peaks(DeviceInfo("cpu", "a CPU")).peaks is None


@pytest.mark.gpu
def test_a_gpu_is_measured_to_do_a_part_of_its_data_sheet() -> None:
    """At least a third of the nominal figures, and no more than a clock above the sheet's allows."""
    assert all(check.ok for check in calibrate())
    for device in msgspec.convert(ask(VISIBLE_GPUS), list[DeviceInfo]):
        found, nominal = find_peaks(device), nominal_peaks(device)
        assert found is not None and nominal is not None
        assert 0.33 < found.flops_s / nominal.flops_s < 1.15 and 0.33 < found.bytes_s / nominal.bytes_s < 1.1

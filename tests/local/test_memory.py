"""Device memory: how much a run used, and a limit for all processes of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

import atune
from atune.errors import UsageError, WorkloadError
from atune.model.artifact import KernelParam, Roles
from atune.model.device import DeviceInfo
from atune.model.settings import BenchmarkSettings
from atune.stages.measure.arguments import KernelArguments
from atune.workers.local import device_worker
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workload.workload import Workload

KERNELS = Path(__file__).parent.parent / "contract_kernels.py"
X = KernelParam("float32", (64, 64))


@pytest.mark.parametrize(
    ("given", "n"), [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1.5 g", 3 << 29), (1 << 30, 1 << 30), ("100", 100)]
)
def test_a_limit_is_a_number_of_bytes_or_a_size(given: Any, n: int) -> None:
    assert BenchmarkSettings(memory_limit=given).memory_limit == n


@pytest.mark.parametrize("given", ["", "4 GiBs", "-1", 0, "much", "1e3", True])
def test_another_limit_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="memory_limit must be a size, such as '4GiB'"):
        BenchmarkSettings(memory_limit=given)


def test_copies_on_the_host_restore_what_a_kernel_wrote() -> None:
    work = Workload(lambda x: None, [{"x": 1}])
    made = KernelArguments(work, [X, X], Roles((1,)), "cpu", spare=True)
    before = made.inputs[0].clone()
    assert made.changed() == set()
    made.inputs[0][3] = 7
    assert made.restore_inputs() == {0} and torch.equal(made.inputs[0], before)
    assert torch.equal(made.copies()[0], before)


@pytest.mark.anyio
async def test_another_run_on_the_device_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Fake(LocalDeviceWorker):
        up = False
        alive = property(lambda self: self.up)  # type: ignore[assignment]

        def __init__(self, device: str, mine: int) -> None:
            self.info, self.name, self._device, self._starting = (
                DeviceInfo(id=device, name="fake"),
                device,
                device,
                False,
            )
            settings = BenchmarkSettings(memory_limit="4GiB")
            self.session = type("S", (), {"memory_bytes": mine, "benchmark": settings})()  # type: ignore[assignment]
            self.workers = type("W", (), {"warn": staticmethod(said.append)})()

    monkeypatch.setattr(device_worker, "POLL_S", 0.001)
    one, other, elsewhere, rest = Fake("0", 3 << 30), Fake("0", 2 << 30), Fake("1", 4 << 30), Fake("0", 1 << 30)
    for worker in (one, elsewhere, rest):
        await worker._wait_for_memory()
        worker.up = True
    assert said == []
    with anyio.move_on_after(0.05) as waited:
        await other._wait_for_memory()
    assert waited.cancelled_caught and len(said) == 1 and "waiting" in said[0]
    one.up = False
    with anyio.fail_after(5):
        await other._wait_for_memory()


def test_on_the_cpu_a_limit_is_said_to_hold_for_gpus_alone(tmp_path: Path) -> None:
    settings = BenchmarkSettings(memory_limit="1GiB")
    result = atune.run(f"{KERNELS}:SCALED", target="c", benchmark=settings, journal=tmp_path / "j", progress=False)
    assert "memory_limit holds for GPUs alone, and the kernels run on the CPU" in result.warnings
    assert result.memory_bytes == 0


@pytest.mark.gpu
def test_beside_a_full_card_a_run_stays_within_its_limit(tmp_path: Path) -> None:
    """Another program holds all but the limit. Copies that do not fit go to the host; what needs more fails."""
    limit, kept = 3 << 30, 256 << 20
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - limit - kept, dtype=torch.uint8, device="cuda").fill_(7)
    settings = BenchmarkSettings(memory_limit=limit)
    work = f"{Path(__file__).parent.parent / 'memory_kernels.py'}"
    given: dict[str, Any] = {"target": "cuda", "benchmark": settings, "progress": False}
    result = atune.run(f"{work}:FITS", journal=tmp_path / "fits", **given)
    assert result.measured == 2 and not result.failures and 2 << 30 < result.memory_bytes <= limit
    found = atune.run(f"{work}:SOME", journal=tmp_path / "some", **given)
    assert [record.kind for record in found.failures] == ["out_of_memory"]
    assert "memory_limit allows 3072 MiB" in found.failures[0].message
    with pytest.raises(WorkloadError, match="memory_limit, 3072 MiB for this process, does not suffice"):
        atune.run(f"{work}:NONE", journal=tmp_path / "none", **given)
    assert bool((hog == 7).all())

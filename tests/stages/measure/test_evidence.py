"""A candidate that changes what candidates are judged by fails, and costs no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from stage_runs import session_of

from atune.model.artifact import Artifact, Failure, KernelParam, Roles
from atune.model.device import Target
from atune.model.jobs import FinalJob, MeasureJob
from atune.model.measurement import Measurement, Timing
from atune.model.settings import BenchmarkSettings
from atune.stages.measure import benchmark
from atune.stages.measure.timer import CpuTimer, DeviceStream
from atune.stages.session import session
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workload.pickling import FileRef

KERNELS = Path(__file__).parents[2] / "contract_kernels.py"
PARAMS = (KernelParam("float32", (32,)), KernelParam("float32", (32,)))
ROLES = Roles(outputs=(1,))
calls: list[str] = []


def double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


def overwrites(x: torch.Tensor, out: torch.Tensor) -> None:
    judging().expected[1].zero_()
    out.zero_()


def overwrites_once_timed(x: torch.Tensor, out: torch.Tensor) -> None:
    calls.append("")
    if len(calls) < 3:
        return double(x, out)
    overwrites(x, out)


def overwrites_inputs(x: torch.Tensor, out: torch.Tensor) -> None:
    judging()._pristine[0].zero_()
    double(x, out)


def is_wrong(x: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()


def judging() -> Any:
    assert benchmark.device.arguments is not None
    return benchmark.device.arguments


def artifact(kernel: Callable[..., None]) -> Artifact:
    return Artifact(0, "", kernel.__name__, PARAMS, "c")


def measured(kernel: Callable[..., None]) -> Measurement | Failure:
    return benchmark.measure(MeasureJob(artifact(kernel), ROLES))


@pytest.fixture(autouse=True)
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process a device's. Artifacts are functions of this file."""
    calls.clear()
    settings = BenchmarkSettings(n_repeat=3)
    with session_of(FileRef(str(KERNELS), "MOODY"), tmp_path, Target("c"), benchmark=settings):
        monkeypatch.setattr(session._state, "session", msgspec.structs.replace(session.session(), device="cpu"))
        monkeypatch.setattr(benchmark.device, "timer", CpuTimer(DeviceStream("cpu")), raising=False)
        monkeypatch.setattr(benchmark.device, "arguments", None)
        monkeypatch.setattr(benchmark, "load", lambda artifact: globals()[artifact.symbol])
        yield


@pytest.mark.parametrize("kernel", [overwrites, overwrites_once_timed, overwrites_inputs])
def test_who_changes_what_others_are_judged_by_fails_and_they_do_not(kernel: Callable[..., None]) -> None:
    assert isinstance(measured(double), Measurement)
    found = measured(kernel)
    assert isinstance(found, Failure) and found.kind == "out_of_bounds"
    assert found.message.startswith(benchmark.OVERWRITTEN)
    assert isinstance(measured(double), Measurement) and isinstance(measured(double), Measurement)
    wrong = measured(is_wrong)
    assert isinstance(wrong, Failure) and wrong.kind == "mismatch"


def test_in_the_final_only_the_one_that_is_wrong_fails() -> None:
    job = FinalJob((artifact(double), artifact(overwrites_once_timed)), ROLES, 4)
    finals = benchmark.final(job)
    assert len(calls) > 3 and [failure.kind for failure in finals.failures] == ["out_of_bounds"]


def test_a_check_of_the_users_may_write_into_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.workload(), "check", lambda outputs, expected: expected[0].zero_() is None or True)
    assert isinstance(measured(double), Measurement) and isinstance(measured(double), Measurement)


@pytest.mark.anyio
async def test_a_second_failure_beside_the_same_right_one_is_decided_in_a_fresh_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one that is right was right by what it had changed, the others would all be wrong."""
    right, wrong = MeasureJob(artifact(double), ROLES), MeasureJob(artifact(is_wrong), ROLES)

    async def answers(self: Any, job: MeasureJob, used: bool) -> Measurement | Failure:
        return Measurement(0, Timing.of([1.0], "", None), True) if job is not wrong else Failure(0, "mismatch", "")

    async def nothing(*_: Any) -> None:
        pass

    for name, value in {"_measured": answers, "_compare": nothing, "alive": True}.items():
        monkeypatch.setattr(LocalDeviceWorker, name, value)
    device = LocalDeviceWorker.__new__(LocalDeviceWorker)
    vars(device).update(_prepared=True, _used=False, _right=None, _accused=0, _printed="", _worker=None)

    async def doubts(*jobs: MeasureJob) -> list[bool]:
        return [bool(getattr(await device._measure(job), "doubt", "")) for job in jobs]

    assert await doubts(right, wrong, wrong, wrong) == [False, False, True, False]
    assert await doubts(right, wrong, right, wrong, wrong) == [False, False, False, False, True]

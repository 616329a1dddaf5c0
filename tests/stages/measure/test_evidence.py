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
from atune.model.candidate import BASELINE
from atune.model.device import Target
from atune.model.jobs import FinalJob, MeasureJob
from atune.model.measurement import Measurement, Timing
from atune.model.settings import BenchmarkSettings
from atune.stages import benchmark, session
from atune.stages.timer import CpuTimer, DeviceStream
from atune.workers.device_worker import LocalDeviceWorker
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
async def test_in_a_used_process_wrong_outputs_count_where_a_right_candidate_is_still_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they are in doubt, as what may be another's fault always is there."""
    kinds: list[Any] = [None, "mismatch", "launch"]

    async def answers(self: Any, job: MeasureJob, *_: Any) -> Measurement | Failure:
        index, kind = job.artifact.index, kinds[job.artifact.index]
        return Failure(index, kind, "") if kind else Measurement(index, Timing.of([1.0], "", None), True)

    monkeypatch.setattr(LocalDeviceWorker, "_answered", answers)
    monkeypatch.setattr(LocalDeviceWorker, "alive", True)
    device = LocalDeviceWorker.__new__(LocalDeviceWorker)
    known = {"_prepared": True, "ran": set(), "_right": None, "_accused": 0, "_lost": None, "_said": "", "printed": ""}
    vars(device).update(known, session=session.session())

    async def doubts(*indices: int) -> list[bool]:
        jobs = [MeasureJob(msgspec.structs.replace(artifact(double), index=index), ROLES) for index in indices]
        return [bool(getattr(await device._measure(job), "doubt", "")) for job in jobs]

    assert await doubts(0, 1, 2, 1, 1) == [False, False, True, True, False]  # the second one may be right here alone
    assert await doubts(0, 1, 0, 1) == [False, False, False, False]
    kinds[0] = "mismatch"
    assert await doubts(1) == [True]
    device.ran = {None}  # by another run
    assert await doubts(BASELINE) == [True]

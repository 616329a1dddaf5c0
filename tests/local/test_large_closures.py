"""A workload whose closure holds much: workers map one file of it, or get it by value where there is no room."""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec
import pytest
import torch
from workloads import scale

from atune.frontends.api.tuner import tune
from atune.model.settings import CompileSettings
from atune.workers.local import machine as machines
from atune.workers.local.machine import LocalMachine
from atune.workload.packing import LARGE_BYTES
from atune.workload.pickling import ship
from atune.workload.workload import Workload, describe

pytestmark = pytest.mark.anyio
N = LARGE_BYTES // 4


class Watched(LocalMachine):
    """Keeps the session that its workers get."""

    sent = b""

    def compile_workers(self) -> Any:
        self.sent = msgspec.msgpack.encode(self._session())
        return super().compile_workers()


@pytest.mark.parametrize("room", [True, False], ids=["", "and no room for a file"])
async def test_a_large_closure_reaches_the_workers(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = torch.full((N,), 2.0)

    def reference(A: torch.Tensor) -> torch.Tensor:
        return A * twice

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not room:
        monkeypatch.setattr(machines, "write", full)
    space = [{"factor": 2, "block": 64}, {"factor": 3, "block": 64}]
    workload = Workload(scale, space, arguments={"n": N}, reference=reference)
    settings = CompileSettings(workers=1)
    machine = Watched(ship(workload), spec=describe(workload), target="c", compile=settings)
    result = await tune(machine=machine, compile=settings)
    assert result.best_config == space[0]
    assert [record.kind for record in result.failures] == ["mismatch"]
    assert (len(machine.sent) < LARGE_BYTES) == room

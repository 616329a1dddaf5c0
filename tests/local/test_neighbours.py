"""Others on the GPU that a run measures on: who is named, and when nothing is reported rather than something false."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from processes import wait_until

import atune
from atune.model.device import DeviceInfo, Target
from atune.model.folders import SERVER_FOLDER
from atune.model.measurement import DISTURBS
from atune.stages.gpu import foreign_users
from atune.workers.device_worker import REMEDY
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
MEMORY = 300 << 20
Stranger = Callable[..., int]

NVML = """
import os
NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0
class Process:
    def __init__(self, pid): self.pid, self.usedGpuMemory = pid, 300 << 20
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 0
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetComputeRunningProcesses(handle):
    with open(os.environ["OTHERS"]) as file:
        return [Process(int(pid)) for pid in file.read().replace("SELF", str(os.getpid())).split()]
def nvmlDeviceGetUtilizationRates(handle):
    with open(os.environ["OTHERS"] + ".busy") as file:
        class Rates: gpu, memory = int(file.read()), 0
    return Rates
"""


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """Starts a process that sleeps and does not descend from this one; returns its pid."""
    with ExitStack() as stack:

        def start(*, user: int | None = None, **environment: str) -> int:
            command = ["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]
            env = {"PATH": os.environ["PATH"], **environment}
            pid = int(subprocess.run(command, env=env, user=user, check=True, capture_output=True, cwd="/").stdout)
            stack.callback(lambda: os.kill(pid, signal.SIGKILL))
            wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 10, "the sleep after its fork")
            return pid

        yield start


def running(*pids: int) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=MEMORY) for pid in pids]


def test_nobody_is_named_where_nobody_else_is_sure_to_compute(stranger: Stranger) -> None:
    """Of what descends from this program, of what has ended, and in a container, where the numbers are the host's."""
    with subprocess.Popen(["true"]) as ended:
        pass
    with subprocess.Popen(["sleep", "300"]) as child:
        try:
            assert not foreign_users(running(os.getpid(), child.pid, ended.pid), os.getpid())
        finally:
            child.kill()
    assert not foreign_users(running(stranger()), os.getpid()) and not foreign_users([], os.getpid())


def test_a_run_that_takes_turns_does_not_count_and_one_with_another_tmpdir_does(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SERVER_FOLDER, f"{tmp_path}/atune-0/server-1")
    same = stranger(**{SERVER_FOLDER: f"{tmp_path}/atune-0/server-2"})
    other = stranger(**{SERVER_FOLDER: f"{tmp_path}/elsewhere/atune-0/server-3"})
    assert list(foreign_users(running(os.getpid(), same, other), os.getpid())) == [other]


class OnAGpu(LocalMachine):
    """Measures on the CPU, and has NVML asked as for a GPU."""

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        target, [device] = await super().discover()
        device = msgspec.structs.replace(device, uuid="GPU-fake")
        self.discovery = msgspec.structs.replace(self.discovery, devices=(device,))
        return target, [device]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Have workers load a library that lists the processes in a file, which is returned.

    It stays for all tests, so that their runs have one environment, and one fork server.
    """
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "pynvml.py").write_text(NVML)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("OTHERS", str(folder / "others"))
        yield folder / "others"


def warnings_of_a_run() -> list[str]:
    machine = OnAGpu(
        FileRef(str(KERNELS), "SCALED"),
        target="c",
        compile=atune.CompileSettings(workers=1, store=False),
        benchmark=atune.BenchmarkSettings(n_repeat=2, n_warmup=1),
    )
    result = atune.run(machine=machine)
    assert result.measured == 5
    return [warning for warning in result.warnings if DISTURBS in warning]


@pytest.mark.parametrize(
    ("listed", "busy", "warning"),
    [
        ("SELF {program} {stranger}", 0, "is also used by process {stranger} (sleep, 300 MiB), which "),
        ("SELF", 0, ""), ("1 2 3", 0, ""), ("no such list", 0, ""), ("SELF", 43, ""),
        ("1 2 3", 43, "was 43 % busy before the run used it, because another program computes there and "),
    ],
    ids=["a stranger", "itself", "another namespace", "an error", "busy by itself", "busy, and nobody is named"],
)  # fmt: skip
def test_what_a_run_says_of_its_gpu(library: Path, stranger: Stranger, listed: str, busy: int, warning: str) -> None:
    """It warns once of each other process, and where the GPU is busy before the run and nobody can be named."""
    names = {"program": os.getpid(), "stranger": stranger()}
    library.write_text(listed.format(**names))
    library.with_name("others.busy").write_text(str(busy))
    told = f"device cpu {warning.format(**names)}{DISTURBS}; {REMEDY}"
    assert warnings_of_a_run() == ([told] if warning else [])

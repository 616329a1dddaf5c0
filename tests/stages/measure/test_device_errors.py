"""Which of the device's messages mean that a context is beyond repair, and, on a GPU, that its process is replaced."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet, ref

import msgspec
import pytest
import torch
from processes import wait_until

import atune
from atune.errors import WorkloadError, in_one_line, whole_message
from atune.journal.events import BenchmarkRepeated, DeviceLost, Event
from atune.model.artifact import Artifact, KernelParam, Roles
from atune.model.device import DeviceInfo
from atune.model.jobs import BitsJob, PrepareJob
from atune.model.settings import BenchmarkSettings
from atune.stages import benchmark, bits, entry_points, gpu, memory
from atune.stages.gpu import kind_of
from atune.workers.resources import ShortOf

KERNELS = Path(__file__).parents[2] / "device_fault_kernels.py"

FAULTS = [
    # torch (cudaGetErrorString)
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: operation not supported on global/shared address space",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    # TVM (cuGetErrorName)
    "CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDAError: cuModuleUnload(module_[i]) failed with error: CUDA_ERROR_LAUNCH_FAILED",
    "CUDALaunch Error: CUDA_ERROR_INVALID_ADDRESS_SPACE",
    # the runtime's names
    "cudaErrorAssert", "cudaErrorECCUncorrectable", "cudaErrorIllegalAddress", "cudaErrorLaunchFailure",
]  # fmt: skip
OTHERS = {
    "CUDA error: invalid argument": "launch",
    "CUDALaunch Error: CUDA_ERROR_INVALID_VALUE": "launch",
    "Expected 3 arguments, unnecessary eccentric ones were given": "launch",
    "strides[0] of A must be 1024": "launch",
    "CUDA out of memory. Tried to allocate 4096.00 GiB": "out_of_memory",
    "CUDALaunch Error: CUDA_ERROR_OUT_OF_MEMORY": "out_of_memory",
    # torch's advice, which names assertions, follows every error
    "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.": "out_of_memory",
    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: out of memory": "out_of_memory",
}


@pytest.mark.parametrize(("message", "kind"), [*((message, "fault") for message in FAULTS), *OTHERS.items()])
def test_what_spoils_a_context_is_a_fault_and_nothing_else(message: str, kind: str) -> None:
    assert kind_of(RuntimeError(message)) == kind


def test_the_message_is_the_devices_in_short_and_the_rest_is_kept() -> None:
    said = "CUDA error: device-side assert triggered\n\nCompile with TORCH_USE_CUDA_DSA\nmore"
    assert in_one_line(RuntimeError(said)) == "RuntimeError: CUDA error: device-side assert triggered"
    assert whole_message(RuntimeError(said)) == said and whole_message(RuntimeError("one line")) == ""
    assert len(in_one_line(RuntimeError("x" * 900))) == 500


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_an_assertion_and_a_trap_on_the_device_are_named_and_the_good_ones_measured() -> None:
    """Each fault costs its process. One is repeated where other candidates had run in that process, and only there."""
    events: list[Event] = []
    settings = BenchmarkSettings(benchmark_timeout_s=20, n_final=0)
    result = atune.run(f"{KERNELS}:WORKLOAD", target="cuda", devices=["0"], benchmark=settings, on_event=events.append)
    kinds = {record.config["mode"]: record.kind for record in result.failures}
    assert kinds == {"assert": "fault", "trap": "fault"}, [(r.config, r.kind, r.message) for r in result.failures]
    repeated = [e.index for e in events if isinstance(e, BenchmarkRepeated)]
    assert result.measured == 2 and len(repeated) == len(set(repeated))
    assert sum(isinstance(e, DeviceLost) for e in events) == 2 + len(repeated)
    messages = {record.config["mode"]: record.message for record in result.failures}
    assert "assert" in messages["assert"] and "launch failure" in messages["trap"], messages


def measuring(monkeypatch: pytest.MonkeyPatch, fit: Any, device: str, limit: int | None = None) -> None:
    """Make this process a device's, in which `fit` makes the inputs."""
    monkeypatch.setattr(benchmark, "fit_arguments", fit)
    monkeypatch.setattr(benchmark, "workload", lambda: atune.Workload(lambda x: None, [{"x": 1}]))
    monkeypatch.setattr(benchmark, "session", lambda: SimpleNamespace(device=device, memory_bytes=limit))


@pytest.mark.parametrize(("device", "found"), [("cpu", [False]), ("0", [False, True])])
def test_inputs_that_do_not_fit_into_the_memory_are_the_workloads_mistake(
    device: str, found: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU only if they do not fit without copies beside them."""

    tried, made = list[bool](), list[Any]()

    def refuse(*_: object, anew: bool) -> None:
        tried.append(benchmark.device.copies_on_host)
        assert not [one for one in made if one() is not None], "the first ones take memory beside the second ones"
        inputs = torch.zeros(8)
        made.append(ref(inputs))
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 549755813632 bytes.")

    measuring(monkeypatch, refuse, device)
    monkeypatch.setattr(benchmark, "release", lambda: None)
    monkeypatch.setattr(benchmark.device, "copies_on_host", False)
    with pytest.raises(WorkloadError, match=rf"{device} has too little memory for .*: make the problem smaller"):
        benchmark.prepare(PrepareJob((), Roles(), timed=True))
    assert tried == found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have NVML list this process, one that sleeps and one that has ended; return how the others are named."""
    with subprocess.Popen(["true"]) as ended:
        pass
    with subprocess.Popen(["sleep", "300"]) as sleeping:
        comm = Path(f"/proc/{sleeping.pid}/comm")
        wait_until(lambda: comm.read_text() == "sleep\n", 10, "the sleep after its fork")
        listed = [SimpleNamespace(pid=pid, usedGpuMemory=70 << 30) for pid in (os.getpid(), sleeping.pid, ended.pid)]
        asked = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=lambda handle: listed)
        monkeypatch.setattr(gpu, "nvml", lambda: asked)
        monkeypatch.setattr(gpu, "handle", lambda uuid: uuid)
        yield f"NVML names process {sleeping.pid} (sleep, 71680 MiB), process {ended.pid}"
        sleeping.kill()


@pytest.mark.parametrize("allocates", ["the context", "the timer"])
def test_a_device_without_memory_names_who_holds_it(allocates: str, nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "init", refuse if allocates == "the context" else lambda: None)
    monkeypatch.setattr(benchmark, "DeviceStream", refuse)
    monkeypatch.delattr(benchmark.device, "timer", raising=False)
    info, message = msgspec.msgpack.encode(DeviceInfo("0", "a GPU", "GPU-1")), "CUDA error: out of memory"
    with pytest.raises(ShortOf) as caught:
        entry_points.open_device(info)
    assert str(caught.value) == f"device memory: RuntimeError: CUDA error: out of memory ({nvml})"
    message = "CUDA error: no kernel image is available"
    with pytest.raises(RuntimeError, match="no kernel image"):
        entry_points.open_device(info)


@pytest.mark.parametrize(
    ("free_gib", "limit", "raised"),
    [(8, None, ShortOf), (79, None, WorkloadError), (8, 8, WorkloadError), (8, 9, ShortOf)],
)
def test_inputs_wait_for_memory_that_others_hold(
    free_gib: int, limit: int | None, raised: Any, nvml: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for that which the problem alone is too large for, or the run's own limit."""

    def refuse(*_: object, anew: bool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 GiB")

    measuring(monkeypatch, refuse, "0", limit and limit << 30)
    monkeypatch.setattr(benchmark, "_moves_copies_to_host", lambda: False)
    monkeypatch.setattr(memory, "session", benchmark.session)
    observer = object.__new__(memory.MemoryObserver)
    observer._uuid = "GPU-1"
    monkeypatch.setattr(benchmark.device, "observers", (observer,))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_gib << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    with pytest.raises(raised, match="has too little memory for the inputs and the reference") as caught:
        benchmark.prepare(PrepareJob((), Roles(), timed=True))
    assert (nvml in str(caught.value)) == (raised is ShortOf)


def test_bits_are_compared_in_the_memory_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of one seed, and of one signature, at a time; their copies are on the host once memory was short."""
    alive, most = WeakSet[Any](), list[int]()

    class Arguments:
        values = ()

        def __init__(self, work: Any, params: Any, roles: Any, device: str, seed: int, copies_on_host: bool) -> None:
            assert copies_on_host
            self.params, self.digest = params, lambda: f"{seed} {len(params)}"
            alive.add(self)
            most.append(len(alive))

        def fill_outputs(self, poison: int) -> None: ...

        def restore_inputs(self) -> None: ...

    monkeypatch.setattr(benchmark, "KernelArguments", Arguments)
    monkeypatch.setattr(bits, "load", lambda artifact: lambda: None)
    monkeypatch.setattr(bits, "workload", lambda: SimpleNamespace(inputs=None))
    monkeypatch.setattr(benchmark, "workload", lambda: SimpleNamespace(inputs=None))
    monkeypatch.setattr(benchmark, "session", lambda: SimpleNamespace(device="cpu", allow=None))
    monkeypatch.setattr(benchmark.device, "timer", SimpleNamespace(synchronise=lambda: None), raising=False)
    monkeypatch.setattr(benchmark.device, "copies_on_host", True)
    one, other = (Artifact(n, "a.so", "f", (KernelParam("float32", (4,)),) * n, "c") for n in (1, 2))
    job = BitsJob((one, one, other), Roles(), (1, 2))
    found = bits.digests(job)
    assert found.digests == (("1 1", "2 1"), ("1 1", "2 1"), ("1 2", "2 2")) and most == [1, 1, 1, 1]

"""A device's process works on a stream of its own: launches, what comes before them, and the events around them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atune
from atune.stages.measure.timer import CudaTimer, Timed


class Cuda:
    """As much of `torch.cuda` as the timers use; `log` has what was queued, with the stream that was current then."""

    def __init__(self) -> None:
        self.current, self.streams = "default", 0
        self.log: list[tuple[str, str]] = []

    def queue(self, what: str) -> None:
        self.log.append((what, self.current))

    def Stream(self) -> str:
        self.streams += 1
        return f"stream {self.streams}"

    def set_stream(self, stream: str) -> None:
        self.current = stream

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(L2_cache_size=64)

    def synchronize(self) -> None:
        pass

    def _sleep(self, cycles: int) -> None:
        self.queue("sleep")

    def Event(self, enable_timing: bool = False) -> Any:
        return SimpleNamespace(
            record=lambda: self.queue("event"), query=lambda: False, elapsed_time=lambda other: 0.001
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    zeros = SimpleNamespace(max=lambda: cuda.queue("flush"))
    torch = SimpleNamespace(cuda=cuda, zeros=lambda *size, **options: zeros, int32="int32")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return cuda


def test_all_that_the_timer_queues_goes_to_a_stream_of_its_own(cuda: Cuda) -> None:
    timer = CudaTimer()
    timed = Timed(lambda: cuda.queue("launch"), before=lambda: cuda.queue("restore"))
    assert timer.samples(timed, 2, 3) == [1.0] * 3
    assert timer.interleaved([timed, timed], 2, 1) == [[1.0] * 2] * 2
    assert {stream for _, stream in cuda.log} == {timer.stream} != {"default"}
    assert {"sleep", "event", "flush", "restore", "launch"} <= {what for what, _ in cuda.log}


WORKLOAD = """
import torch, tilelang.language as T, atune
N = 1024
def doubled(block: int = 128):
    @T.prim_func
    def main(x: T.Tensor((N,), "float32"), out: T.Tensor((N,), "float32")):
        with T.Kernel(N // block, threads=block) as b:
            for i in T.Parallel(block):
                out[b * block + i] = x[b * block + i] * 2.0
    return main
def reference(x):
    assert torch.cuda.current_stream() != torch.cuda.default_stream()
    return x * 2
WORKLOAD = atune.Workload(doubled, atune.Space(block=[64, 128]), reference=reference)
"""


@pytest.mark.gpu
def test_a_device_process_measures_on_its_own_stream(tmp_path: Path) -> None:
    """The reference says so: a worker calls it where it calls the kernels."""
    (tmp_path / "work.py").write_text(WORKLOAD)
    result = atune.run(f"{tmp_path}/work.py:WORKLOAD", target="cuda", devices=["0"])
    assert result.measured == 2 and all(measurement.checked for measurement in result.measurements)

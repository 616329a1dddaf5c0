"""A device's process works on a stream of its own: launches, what comes before them, and the events around them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atune
from atune.stages import tilelang, timer
from atune.stages.timer import CudaTimer, DeviceStream, Timed


class Cuda:
    """As much of `torch.cuda` as the timers use; `log` has what was queued, with the stream that was current then."""

    def __init__(self) -> None:
        self.current, self.streams = "default", 0
        self.log: list[tuple[str, str]] = []
        self.sleeps = False
        """Whether the device sleeps before what is queued now."""
        self.late = 0
        """How many of the next launches the host is late with."""

    def queue(self, what: str) -> None:
        self.log.append((what, self.current))

    def launch(self) -> None:
        self.queue("launch")
        if self.late:
            self.sleeps, self.late = False, self.late - 1

    def wait(self) -> None:
        """Launch a kernel whose host code waits for the device."""
        self.queue("launch")
        self.synchronize()

    def Stream(self) -> Any:
        self.streams += 1
        return type("Stream", (str,), {"cuda_stream": 7})(f"stream {self.streams}")

    def default_stream(self) -> str:
        return "default"

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(L2_cache_size=64)

    def synchronize(self) -> None:
        self.sleeps = False

    def _sleep(self, cycles: int) -> None:
        self.queue("sleep")
        self.sleeps = True

    def Event(self, enable_timing: bool = False) -> Any:
        return SimpleNamespace(
            record=lambda: self.queue("event"), query=lambda: not self.sleeps, elapsed_time=lambda other: 0.001
        )


Hooks = dict[str, Callable[..., Any]]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """Functions that tilelang has registered, by name: those of L2 windows."""
    functions: Hooks = {}
    for name in tilelang.L2_WINDOW:
        functions[name] = lambda *_: None
    tvm = SimpleNamespace(
        get_global_func=lambda name, allow_missing: functions.get(name),
        register_global_func=lambda name, function, override: functions.update({name: function}),
    )
    monkeypatch.setattr(timer, "tilelang", SimpleNamespace(tvm=tvm, L2_WINDOW=tilelang.L2_WINDOW))
    return functions


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, hooks: Hooks) -> Cuda:
    cuda = Cuda()
    zeros = SimpleNamespace(max=lambda: cuda.queue("flush"))
    torch = SimpleNamespace(cuda=cuda, zeros=lambda *size, **options: zeros, int32="int32")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return cuda


def test_all_that_the_timer_queues_goes_to_a_stream_of_its_own(cuda: Cuda) -> None:
    clock = CudaTimer(DeviceStream("0"))
    timed = Timed(cuda.launch, before=lambda: cuda.queue("restore"))
    assert clock.samples(timed, 2, 3) == [1.0] * 3
    assert clock.interleaved([timed, timed], 2, 1) == [[1.0] * 2] * 2
    assert {stream for _, stream in cuda.log} == {"stream 1"} and clock.stream.handle == 7
    with clock.stream.current():
        assert cuda.current == "stream 1"
    assert cuda.current == "default", "it is torch's current one only meanwhile"
    assert {"sleep", "event", "flush", "restore", "launch"} <= {what for what, _ in cuda.log}
    assert clock.method(timed) == "events"


def test_a_call_that_waits_for_the_device_is_timed_alone_on_the_default_stream(cuda: Cuda) -> None:
    clock, waiting, other = CudaTimer(DeviceStream("0")), Timed(cuda.wait), Timed(cuda.launch)
    assert clock.samples(waiting, 1, 3) == [1.0] * 3
    assert clock.method(waiting) == "events, one call at a time"
    cuda.log.clear()
    assert clock.samples(waiting, 0, 2) == [1.0] * 2
    assert cuda.log == [(what, "default") for what in ("flush", "event", "launch", "event")] * 2
    assert clock.interleaved([waiting, other], 3, 1) == [[1.0] * 3] * 2
    assert clock.method(other) == "events"


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_host_that_is_late_by_chance_makes_no_call_one_that_waits(cuda: Cuda, late: int) -> None:
    clock, timed = CudaTimer(DeviceStream("0")), Timed(cuda.launch)
    cuda.late = late
    assert clock.samples(timed, 0, 1) == [1.0]
    assert clock.method(timed) == ("events, one call at a time" if late == 3 else "events")  # thrice: no chance


def test_setting_and_resetting_an_l2_window_is_not_timed(cuda: Cuda, hooks: Hooks) -> None:
    for name, what in zip(tilelang.L2_WINDOW, ("set", "reset"), strict=True):
        hooks[name] = lambda *_, what=what: cuda.queue(what)
    clock = CudaTimer(DeviceStream("0"))
    set_window, reset_window = (hooks[name] for name in tilelang.L2_WINDOW)

    def call() -> None:
        set_window("address", 1 << 20, 0.5)
        cuda.synchronize()  # as setting a limit of the context does
        cuda.queue("launch")
        reset_window()

    timed = Timed(call)
    clock.samples(timed, 0, 1)
    cuda.log.clear()
    assert clock.samples(timed, 0, 1) == [1.0]
    steps = ("flush", "event", "set", "sleep", "event", "launch", "event", "reset")
    assert cuda.log == [(what, "default") for what in steps]


def test_a_warm_call_follows_another_one_of_itself_and_nothing_empties_the_cache(cuda: Cuda) -> None:
    clock, calls = (
        CudaTimer(DeviceStream("0")),
        [Timed(functools.partial(cuda.queue, name), warm=True) for name in "ab"],
    )
    assert clock.samples(calls[0], 0, 3) == pytest.approx([0.2] * 3)
    assert [what for what, _ in cuda.log] == ["sleep", "event", "a", *["event", *"aaaaa", "event"] * 3]
    cuda.log.clear()
    clock.interleaved(calls, 2, 0)
    called = "".join(what for what, _ in cuda.log if what in "ab")
    assert called == "a" * 6 + "b" * 6 + "b" * 5 + "a" * 6  # the second round begins with b
    assert clock.method(calls[0]) == "events, L2 warm"


WINDOW = """
import torch, tilelang.language as T, atune
ROWS, COLS, N, f16 = 16384, 512, 131072, "float16"
def looked_up(ratio: float = 0.0):
    @T.prim_func
    def main(W: T.Tensor((ROWS, COLS), f16), A: T.Tensor((N, COLS), f16), B: T.Tensor((N, COLS), f16)):
        with T.Kernel(N, threads=64) as bx:
            if ratio:
                T.annotate_l2_hit_ratio({W: ratio})
            for j in T.Parallel(COLS):
                B[bx, j] = A[bx, j] + W[(bx * 9973) % ROWS, j]
    return main
def reference(W, A):
    rows = (torch.arange(N, device=A.device) * 9973) % ROWS
    assert rows.sum().item() > 0  # waits for the device
    return A + W[rows]
WORKLOAD = atune.Workload(looked_up, atune.Space(ratio=[0.0, 1.0]), reference=reference)
"""


@pytest.mark.gpu
def test_an_l2_window_counts_in_a_kernel_that_waits_for_the_device(tmp_path: Path) -> None:
    """The table of 16 MiB stays in the L2 cache while 256 MiB pass it, so the kernel with the window is faster."""
    (tmp_path / "work.py").write_text(WINDOW)
    references: list[Any] = []
    result = atune.run(
        f"{tmp_path}/work.py:WORKLOAD",
        target="cuda",
        devices=["0"],
        on_event=lambda event: references.append(event) if isinstance(event, atune.events.ReferenceMeasured) else None,
    )
    plain, windowed = (record.timing for record in result.records)
    assert plain.method == "events" and windowed.method == "events, one call at a time"
    assert result.best_config == {"ratio": 1.0} and windowed.latency_ms < plain.latency_ms
    assert [one.timing.method for one in references] == ["events, one call at a time"]
    with pytest.raises(atune.errors.UsageError, match=r"access_policy_window\w* for T.annotate_l2_hit_ratio"):
        result.save_bundle(tmp_path / "bundle")

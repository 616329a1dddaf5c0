"""How a call is timed on a device: the same way for kernel and reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Call = Callable[[], Any]


class Timer(Protocol):
    """Times calls; samples are microseconds a call."""

    method: str

    def samples(self, call: Call, n_warmup: int, n_repeat: int) -> list[float]: ...

    def interleaved(self, calls: Sequence[Call], rounds: int, n_warmup: int) -> list[list[float]]:
        """Return each call's samples; sample r of all calls is from round r, whose order rotates with r."""
        ...

    def synchronise(self) -> None: ...


def make_timer(device: str) -> Timer:
    return CpuTimer() if device == "cpu" else CudaTimer()


class CpuTimer:
    """Wall time of calls in this thread. A short call is repeated within a sample until the clock's grain is small."""

    method = "perf_counter"
    MIN_SAMPLE_US = 200.0

    def samples(self, call: Call, n_warmup: int, n_repeat: int) -> list[float]:
        for _ in range(max(n_warmup, 1)):
            call()
        inner = self._inner(call)
        return [self._sample(call, inner) for _ in range(n_repeat)]

    def interleaved(self, calls: Sequence[Call], rounds: int, n_warmup: int) -> list[list[float]]:
        for call in calls:
            for _ in range(max(n_warmup, 1)):
                call()
        inner = [self._inner(call) for call in calls]
        found: list[list[float]] = [[] for _ in calls]
        for r in range(rounds):
            for k in range(len(calls)):
                i = (k + r) % len(calls)
                calls[i]()  # its own data in the caches, not its neighbour's
                found[i].append(self._sample(calls[i], inner[i]))
        return found

    def synchronise(self) -> None:
        pass

    def _inner(self, call: Call) -> int:
        return max(1, int(self.MIN_SAMPLE_US / max(self._sample(call, 1), 0.1)))

    @staticmethod
    def _sample(call: Call, inner: int) -> float:
        started = time.perf_counter_ns()
        for _ in range(inner):
            call()
        return (time.perf_counter_ns() - started) / 1e3 / inner


class CudaTimer:
    """Device time between CUDA events, with every launch queued before the device reaches it.

    The stream first runs a device sleep; launches and events are queued behind it, so that nothing the host does can
    stand between two of them. When the device woke before the queue was complete, the batch is thrown away and taken
    again behind a longer sleep. Before each launch a buffer larger than the L2 cache is overwritten.
    """

    method = "events"
    BATCH = 64
    """Timed launches a batch: well below the driver's launch queue (1024 entries), three entries each."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        properties = torch.cuda.get_device_properties(0)
        self.flush = torch.empty(2 * properties.L2_cache_size // 4, dtype=torch.int32, device="cuda")
        self.sleep_cycles = 4_000_000  # about 2 ms; grows where the host is slower than that

    def samples(self, call: Call, n_warmup: int, n_repeat: int) -> list[float]:
        for _ in range(n_warmup):
            call()
        found: list[float] = []
        while len(found) < n_repeat:
            found += self._batch([call] * min(self.BATCH, n_repeat - len(found)))
        return found

    def interleaved(self, calls: Sequence[Call], rounds: int, n_warmup: int) -> list[list[float]]:
        for call in calls:
            for _ in range(n_warmup):
                call()
        n = len(calls)
        order = [(k + r) % n for r in range(rounds) for k in range(n)]
        found: list[list[float]] = [[] for _ in calls]
        for start in range(0, len(order), self.BATCH):
            part = order[start : start + self.BATCH]
            for i, us in zip(part, self._batch([calls[i] for i in part]), strict=True):
                found[i].append(us)
        return found

    def synchronise(self) -> None:
        self.torch.cuda.synchronize()

    def _batch(self, calls: Sequence[Call]) -> list[float]:
        torch = self.torch
        event = torch.cuda.Event
        while True:
            pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in calls]
            awake = event()
            torch.cuda.synchronize()
            torch.cuda._sleep(self.sleep_cycles)
            awake.record()
            for call, (begin, end) in zip(calls, pairs, strict=True):
                self.flush.zero_()
                begin.record()
                call()
                end.record()
            in_time = not awake.query()
            torch.cuda.synchronize()
            if in_time or self.sleep_cycles > 2_000_000_000:
                return [begin.elapsed_time(end) * 1e3 for begin, end in pairs]
            self.sleep_cycles *= 2

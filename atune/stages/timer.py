"""Time calls of kernels and references on a device, and decide how many samples each call gets."""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from atune.model.measurement import median_interval
from atune.model.settings import BenchmarkSettings
from atune.stages import tilelang


@dataclass(eq=False)
class Timed:
    """A call to time. The step `before`, for example restoring the inputs, precedes each call and is not timed."""

    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    warm: bool = False
    """Whether the call finds its data in the L2 cache."""
    waits: bool | None = None
    """Whether the call waits until the device is idle before it returns; None until this is known."""

    @property
    def in_a_row(self) -> int:
        """Number of calls per sample: five, as in a CUDA graph, if each call must find its data in the cache."""
        return 5 if self.warm and self.before is None else 1


class DeviceStream:
    """The CUDA stream on which a device's process does all of its work. The device ``cpu`` has no stream. `handle`:
    CUDA's handle of the stream; 0 on the CPU."""

    def __init__(self, device: str) -> None:
        import torch

        self._stream: Any = None if device == "cpu" else torch.cuda.Stream()
        self.handle: int = 0 if self._stream is None else self._stream.cuda_stream

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which this stream is torch's current stream, so that kernels also run on this stream."""
        import torch

        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


MAX_SAMPLES = 10_000


class Timer(ABC):
    """Takes samples on `stream`, in microseconds per call. The samples of a batch are taken without a pause. `BATCH`:
    largest number of samples in a batch. `BURST`: largest number of samples of one call in a batch."""

    BATCH = BURST = MAX_SAMPLES

    def __init__(self, stream: DeviceStream) -> None:
        self.stream = stream

    def samples(self, timed: Timed, n_warmup: int, n_repeat: int) -> list[float]:
        """Return `n_repeat` samples, after `n_warmup` calls that are not timed."""
        with self.stream.current():
            self._warm(timed, n_warmup)
            samples: list[float] = []
            while len(samples) < n_repeat:
                samples += self._batch([timed] * min(self.BURST, n_repeat - len(samples)))
            return samples

    def interleaved(self, calls: Sequence[Timed], rounds: int, n_warmup: int) -> list[list[float]]:
        """Take samples in rounds, and return the samples of each call. The order of calls rotates between rounds."""
        n = len(calls)
        order = [(k + r) % n for r in range(rounds) for k in range(n)]
        samples: list[list[float]] = [[] for _ in calls]
        with self.stream.current():
            for timed in calls:
                self._warm(timed, n_warmup)
            for start in range(0, len(order), self.BATCH):
                part = order[start : start + self.BATCH]
                for i, us in zip(part, self._batch([calls[i] for i in part]), strict=True):
                    samples[i].append(us)
        return samples

    def _warm(self, timed: Timed, n: int) -> None:
        for _ in range(n):
            if timed.before is not None:
                timed.before()
            timed.call()

    @abstractmethod
    def method(self, timed: Timed) -> str:
        """Describe how samples of the call `timed` are taken."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until all calls are done."""

    @abstractmethod
    def _batch(self, calls: Sequence[Timed]) -> list[float]:
        """Return a sample for each of `calls`, in order."""


class CpuTimer(Timer):
    """Wall time of calls in this thread. For a short call, a sample is the mean of many calls: the clock is coarse."""

    MIN_SAMPLE_US = 200.0

    def method(self, timed: Timed) -> str:
        return "perf_counter"

    def synchronise(self) -> None:
        pass

    def _batch(self, calls: Sequence[Timed]) -> list[float]:
        inner: dict[int, int] = {}
        samples: list[float] = []
        for i, timed in enumerate(calls):
            if id(timed) not in inner:
                inner[id(timed)] = self._inner(timed)
            if timed is not calls[i - 1]:
                self._warm(timed, 1)  # so that the caches hold its data, not the previous call's
            samples.append(self._sample(timed, inner[id(timed)]))
        return samples

    def _inner(self, timed: Timed) -> int:
        if timed.before is not None:
            return 1  # each call needs its inputs restored
        return max(1, int(self.MIN_SAMPLE_US / max(self._sample(timed, 1), 0.1)))

    @staticmethod
    def _sample(timed: Timed, inner: int) -> float:
        if timed.before is not None:
            timed.before()
        call = timed.call
        started = time.perf_counter_ns()
        for _ in range(inner):
            call()
        return (time.perf_counter_ns() - started) / 1e3 / inner


class CudaTimer(Timer):
    """Device time between CUDA events. Every launch is queued before the device reaches the launch.

    The stream first runs a device sleep. Launches and events are queued during the sleep, so delays of the host cannot
    fall between an event and its launch. If the device wakes before the queue is complete, the batch is discarded and
    repeated with a longer sleep. Before each launch, a buffer of twice the L2 cache's size is read to evict the cache.
    Reading leaves no dirty lines, so no write-back falls into the timed call. A call that must find its data in the
    cache follows another call of the same kernel, without reading the buffer.

    A call waits for the device if its host code sets a limit of the context, allocates memory, or copies to the host.
    Nothing can be queued behind a waiting call, so a waiting call is timed alone. A waiting call is timed on the
    default stream, because the call's host code may change settings of only the default stream. Setting and resetting
    an L2 window is not timed.
    """

    BATCH = 64
    """Number of timed launches per batch. The driver's launch queue has 1024 entries. Each timed launch takes three
    entries, and a few more if inputs are restored."""
    SLEEP_CYCLES, CYCLES_PER_LAUNCH = 200_000, 60_000
    """Cycles of sleep before a batch: about 0.1 ms, plus 35 µs for each launch that is queued during the sleep."""
    LONGEST_SLEEP = 2_000_000_000
    PROBES = (40_000_000, 80_000_000)
    """Cycles of two sleeps, of about 20 and 40 ms. Only a call that waits for the device outlasts both sleeps."""
    BURST = 10
    """Largest number of samples of one call in a batch. All samples of a batch share effects such as the device's
    clock, so a median over several batches varies less."""

    def __init__(self, stream: DeviceStream) -> None:
        import torch

        super().__init__(stream)
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        with stream.current():
            self.flush = torch.zeros(2 * properties.L2_cache_size // 4, dtype=torch.int32, device="cuda")
        self.patience = 1.0
        """Factor by which all sleeps are longer: doubled whenever the host was late, and reduced otherwise."""
        self._alone: tuple[Any, Any] | None = None
        """Events around the call that is currently timed alone; None if there is no such call."""
        self._windowed = False
        """Whether the call that is timed alone has already launched its kernel and reset an L2 window."""
        for name, hook in zip(tilelang.L2_WINDOW, (self._after_set, self._before_reset), strict=True):
            if (original := tilelang.tvm.get_global_func(name, allow_missing=True)) is not None:
                tilelang.tvm.register_global_func(name, functools.partial(hook, original), override=True)

    def method(self, timed: Timed) -> str:
        return f"events{', L2 warm' * timed.warm}{', one call at a time' * bool(timed.waits)}"

    def synchronise(self) -> None:
        self.torch.cuda.synchronize()

    def _batch(self, calls: Sequence[Timed]) -> list[float]:
        in_batch: list[float] | None = None
        while in_batch is None:
            queued = [timed for timed in calls if not timed.waits]
            if (in_batch := self._queued(queued) if queued else []) is None:
                for timed in queued:
                    timed.waits = self._waits(timed) if timed.waits is None else timed.waits
        samples = iter(in_batch)
        return [self._sample(timed) if timed.waits else next(samples) for timed in calls]

    def _queued(self, calls: Sequence[Timed]) -> list[float] | None:
        """Queue all calls during a sleep, and return a sample of each; None if the device woke before the last call."""
        pairs = [self._events() for _ in calls]
        launches = sum(timed.in_a_row for timed in calls)
        cycles = int(self.patience * (self.SLEEP_CYCLES + self.CYCLES_PER_LAUNCH * launches))

        def launch() -> None:
            for timed, last, (begin, end) in zip(calls, (None, *calls[:-1]), pairs, strict=True):
                self._settle(timed, last)
                begin.record()
                for _ in range(timed.in_a_row):
                    timed.call()
                end.record()

        if not self._in_time(cycles, launch) and cycles <= self.LONGEST_SLEEP:
            self.patience *= 2
            return None
        self.patience = max(1.0, self.patience * 0.9)
        timings = zip(calls, pairs, strict=True)
        return [begin.elapsed_time(end) * 1e3 / timed.in_a_row for timed, (begin, end) in timings]

    def _settle(self, timed: Timed, last: Timed | None) -> None:
        """Prepare the inputs and the L2 cache for a timed call. `last`: the previous call."""
        if timed.warm and timed is not last:
            self._warm(timed, 1)
        if timed.before is not None:
            timed.before()
        if not timed.warm:
            self.flush.max()  # reading it also evicts the restored inputs from the L2 cache

    def _waits(self, timed: Timed) -> bool:
        """Tell whether a call returns only when the device is idle. Try twice, because a host may be late by chance."""
        return not any(self._in_time(cycles, lambda: self._warm(timed, 1)) for cycles in self.PROBES)

    def _sample(self, timed: Timed) -> float:
        """Return a sample of a call that waits for the device."""
        cuda = self.torch.cuda
        with cuda.stream(cuda.default_stream()):
            self._settle(timed, None)
            cuda.synchronize()
            begin, end = self._alone = self._events()
            self._windowed = False
            begin.record()
            timed.call()
            if not self._windowed:
                end.record()
            self._alone = None
            cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def _after_set(self, set_window: Callable[..., Any], *arguments: Any) -> Any:
        """Set the L2 window that tilelang's code asks for. Then start the timing, because the launch comes next."""
        done = set_window(*arguments)
        if self._alone is not None and not self._windowed:
            self.torch.cuda._sleep(self.CYCLES_PER_LAUNCH)
            self._alone[0].record()
        return done

    def _before_reset(self, reset_window: Callable[..., Any], *arguments: Any) -> Any:
        """End the timing, because the launch is over. Then reset the L2 window, as tilelang's code asks."""
        if self._alone is not None:
            self._windowed = True
            self._alone[1].record()
        return reset_window(*arguments)

    def _in_time(self, cycles: int, launch: Callable[[], None]) -> bool:
        """Tell whether `launch` returns while the device sleeps. Waits until the device is idle."""
        cuda = self.torch.cuda
        awake = cuda.Event()
        cuda.synchronize()
        cuda._sleep(cycles)
        awake.record()
        launch()
        in_time = not awake.query()
        cuda.synchronize()
        return in_time

    def _events(self) -> tuple[Any, Any]:
        event = self.torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)


def make_timer(stream: DeviceStream) -> Timer:
    return CudaTimer(stream) if stream.handle else CpuTimer(stream)


PROBE = 3
"""Number of samples that every candidate gets."""
SECOND_LOOK = 8
"""Number of samples after which a candidate that is not clearly slow is judged again."""
PLAINLY_SLOW, SLOW = 1.5, 1.1
"""Largest ratios of a candidate's fastest sample to the best median, after `PROBE` and after `SECOND_LOOK` samples. A
candidate with a larger ratio gets no more samples. The fastest sample decides, so that disturbed samples exclude no
candidate."""
KNOWN_WITHIN = 0.005
"""The median is known if its 95 % interval extends to either side by at most this share of the median."""
MOST_TIMES = 4
"""While a candidate's median is not known, the candidate gets at most this number times `n_repeat` samples."""
EXTRA_US = 20_000.0
"""Total microseconds after which a candidate gets no more than `n_repeat` samples, because long calls vary little."""


def still_wanted(
    samples_us: Sequence[float],
    n_repeat: int,
    best_ms: float | None,
    *,
    factor: float | None = None,
    until_known: bool = False,
) -> int:
    """Return the number of samples to take after `samples_us`; 0 if there are enough samples.

    `best_ms`: the best median of first timings so far; None to take all `n_repeat` samples at once. `factor`: replaces
    `PLAINLY_SLOW` and `SLOW`. `until_known`: whether to take `n_repeat` more samples while the median is not known.
    """
    have = len(samples_us)
    steps = [(PROBE, PLAINLY_SLOW), (SECOND_LOOK, SLOW)] if factor is None else [(PROBE, factor)]
    for n, slow in steps if best_ms is not None else []:
        if have < min(n, n_repeat):
            return min(n, n_repeat) - have
        if min(samples_us) > slow * (best_ms or 0) * 1e3:
            return 0
    if have < n_repeat:
        return n_repeat - have
    if not until_known or have < SECOND_LOOK or have >= MOST_TIMES * n_repeat or sum(samples_us) > EXTRA_US:
        return 0
    low, median, high = median_interval(samples_us)
    return n_repeat if max(high - median, median - low) > KNOWN_WITHIN * median else 0


def counts(settings: BenchmarkSettings, estimate_us: float) -> tuple[int, int]:
    """Return the numbers of warm-up calls and of samples, which `settings` gives as numbers or as total times."""
    n_warmup, n_repeat = settings.n_warmup, settings.n_repeat
    if settings.warmup_ms is not None:
        n_warmup = math.ceil(settings.warmup_ms * 1e3 / max(estimate_us, 0.1))
    if settings.rep_ms is not None:
        n_repeat = max(PROBE, math.ceil(settings.rep_ms * 1e3 / max(estimate_us, 0.1)))
    return min(n_warmup, MAX_SAMPLES), min(n_repeat, MAX_SAMPLES)

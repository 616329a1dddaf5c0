"""Measures a GPU's peaks: large products on its tensor cores, and a large copy in its memory.

Runs in its own process on an idle device; about a second. A peak is what the device reaches in short bursts. A product
that runs on draws so much power that clocks fall, and a kernel of a fraction of a millisecond would seem faster than
the peak.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

SIDES = (4096, 8192)
"""Of the products' matrices. Some devices are faster with the smaller, some with the larger."""
COPIED_BYTES = 1 << 30
"""Far more than any L2 cache holds; the copy reads and writes as many."""
LONG_S = 0.2
"""Seconds for each measurement, with at least three bursts."""
BURST = 5
"""Calls in a row, timed one by one."""
REST_S = 0.005
"""Seconds between bursts, in which the device cools."""
FASTEST = 10
"""One in so many samples is faster than the figure that counts. A single fastest one may be a timer's error."""


def calibrate(index: int) -> dict[str, float]:
    """Entry point: the peaks of CUDA device `index`, as `Peaks` has them.

    The best of bfloat16 and float16 and of `SIDES` counts. Where memory is scarce smaller sizes do. Raises what torch
    raises.
    """
    import torch

    with torch.cuda.device(index):
        free, _ = torch.cuda.mem_get_info()
        n_bytes = min(COPIED_BYTES, free // 4)
        scale = 1 if free > 8 * 2 * max(SIDES) ** 2 else 4
        sides = [side // scale for side in SIDES]
        flops_s = max(2.0 * n**3 / _product_s(torch, n, t) for n in sides for t in (torch.bfloat16, torch.float16))
        return {"flops_s": flops_s, "bytes_s": 2.0 * n_bytes / _copy_s(torch, n_bytes)}


def _product_s(torch: Any, side: int, dtype: Any) -> float:
    one, other = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    result = torch.empty(side, side, device="cuda", dtype=dtype)
    return _burst_s(torch, lambda: torch.mm(one, other, out=result))


def _copy_s(torch: Any, n_bytes: int) -> float:
    source = torch.zeros(n_bytes, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return _burst_s(torch, lambda: target.copy_(source))


def _burst_s(torch: Any, call: Callable[[], Any]) -> float:
    """Return the seconds of one `call` on the device, in short bursts after two calls that do not count."""
    call(), call()
    torch.cuda.synchronize()
    samples: list[float] = []
    until = time.perf_counter() + LONG_S
    while time.perf_counter() < until or len(samples) < 3 * BURST:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(BURST + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        samples += [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(events)]
        time.sleep(REST_S)
    return sorted(samples)[len(samples) // FASTEST]

"""Measures a GPU's peaks: a large product on its tensor cores, and a large copy in its memory.

Runs in its own process on an idle device; about 0.3 s each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

SIDE = 8192
"""Of the product's matrices: large enough that a tenth of a tile more or less is nothing."""
COPIED_BYTES = 1 << 30
"""Far more than any L2 cache holds; the copy reads and writes as many."""
LONG_S = 0.3
"""Seconds for each measurement, with at least three samples."""


def calibrate(index: int) -> dict[str, float]:
    """Entry point: the peaks of CUDA device `index`, as `Peaks` has them.

    The better of bfloat16 and float16 counts. Where memory is scarce smaller sizes do. Raises what torch raises.
    """
    import torch

    with torch.cuda.device(index):
        free, _ = torch.cuda.mem_get_info()
        n_bytes = min(COPIED_BYTES, free // 4)
        side = SIDE if free > 8 * 2 * SIDE**2 else SIDE // 4
        products = (_product_s(torch, side, dtype) for dtype in (torch.bfloat16, torch.float16))
        flops_s = max(2.0 * side**3 / seconds for seconds in products)
        return {"flops_s": flops_s, "bytes_s": 2.0 * n_bytes / _copy_s(torch, n_bytes)}


def _product_s(torch: Any, side: int, dtype: Any) -> float:
    one, other = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    result = torch.empty(side, side, device="cuda", dtype=dtype)
    return _median_s(torch, lambda: torch.mm(one, other, out=result), LONG_S / 2)


def _copy_s(torch: Any, n_bytes: int) -> float:
    source = torch.zeros(n_bytes, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return _median_s(torch, lambda: target.copy_(source), LONG_S)


def _median_s(torch: Any, call: Callable[[], Any], long_s: float) -> float:
    """Return the median seconds of one `call` on the device, after two that do not count."""
    call(), call()
    torch.cuda.synchronize()
    samples: list[float] = []
    until = time.perf_counter() + long_s
    while time.perf_counter() < until or len(samples) < 3:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(samples)

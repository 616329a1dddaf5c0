"""What `atune.pick` chooses without measuring, against everything measured: speeds as shares of the best.

    python bench/pick.py --out bench/results/pick    # tunes whole spaces on a CUDA GPU, in 200 s at most
    python bench/pick.py --gpu H200                  # looks up the recorded spaces of an H200; needs no GPU

Each space is reported once it is done. Those that `--limit` cuts off are left out.
"""

from __future__ import annotations

import math
import time
from typing import Any

from common import journal, options, report
from prior import REFS, mean, recorded

import atune
from atune.model.candidate import config_key

QUICK = "rms_norm,transpose,attention_causal,dequant_gemm,gemm288,gemm_skinny,gemm_tall"
"""Spaces that an H200 with 16 cores measured in 37 s at most."""
HEAD = ["space", "candidates", "pick s", "tune s", "first choice", "best of three", "default"]


def shares(found: Any, latencies: dict[str, float | None]) -> list[float]:
    """Return the speed of each choice as a share of the best; 0 where it failed."""
    best = min(filter(None, latencies.values()))
    return [best / (latencies.get(config_key(choice.config)) or math.inf) for choice in found.choices]


def main() -> None:
    arguments = options(__doc__ or "", 200, spaces="", gpu="")
    chosen = arguments.spaces or (",".join(REFS) if arguments.gpu else QUICK)
    rows, results = [HEAD], list[dict[str, Any]]()
    for name in filter(None, map(str.strip, chosen.split(","))):
        began = time.perf_counter()
        found = atune.pick(REFS[name], 3, arguments.gpu or None)
        picked_s, began = time.perf_counter() - began, time.perf_counter()
        if arguments.gpu:
            result = recorded(name)
        else:
            result = atune.run(REFS[name], cached=False, progress=False, journal=journal(arguments, name))
        speeds = shares(found, {record.key: record.latency_ms for record in result.records})
        took_s, best_ms = time.perf_counter() - began, result.latency_ms or math.nan
        default = best_ms / result.default_ms if result.default_ms else math.nan
        results.append({"space": name, "gpu": found.gpu, "shares": speeds, "default": default, "pick_s": picked_s})
        cells = (f"{one:.1%}" for one in (speeds[0], max(speeds), default))
        rows.append([name, str(found.candidates), f"{picked_s:.1f}", f"{took_s:.1f}", *cells])
        report(arguments, "pick", rows, results)
    means = (f"{mean(key(one['shares']) for one in results):.1%}" for key in (lambda each: each[0], max))
    rows.append(["mean", "", "", "", *means, ""])
    report(arguments, "pick", rows, results)


if __name__ == "__main__":
    main()

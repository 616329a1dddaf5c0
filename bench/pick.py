"""Choices of `atune.pick`, which measures nothing, on spaces that are measured in full: speeds as shares of the best.

    python bench/pick.py --out bench/results/pick    # tunes whole spaces on a CUDA GPU, in at most 200 s
    python bench/pick.py --gpu H200                  # looks up the recorded spaces of an H200; needs no GPU

Each space is reported when it is done. Spaces that `--limit` cuts off are left out.
"""

from __future__ import annotations

import math
import time
from typing import Any

from common import journal, options, report
from prior import REFS, TEN, mean, recorded

import atune
from atune.model.candidate import config_key

QUICK = "rms_norm,transpose,attention_causal,dequant_gemm,gemm288,gemm_skinny,gemm_tall"
"""Spaces that an H200 with 16 cores measured in at most 37 s each."""
HEAD = ["space", "candidates", "pick s", "tune s", "first choice", "best of three", "default"]


def shares(pick: Any, latencies: dict[str, float | None]) -> list[float]:
    """Return the speed of each choice as a share of the best speed; 0 for a choice that failed."""
    best = min(filter(None, latencies.values()))
    return [best / (latencies.get(config_key(choice.config)) or math.inf) for choice in pick.choices]


def main() -> None:
    arguments = options(__doc__ or "", 200, spaces="", gpu="")
    chosen = arguments.spaces or (",".join(TEN) if arguments.gpu else QUICK)
    rows, results = [HEAD], list[dict[str, Any]]()
    for name in filter(None, map(str.strip, chosen.split(","))):
        began = time.perf_counter()
        pick = atune.pick(REFS[name], 3, arguments.gpu or None)
        picked_s, began = time.perf_counter() - began, time.perf_counter()
        if arguments.gpu:
            result = recorded(name)
        else:
            result = atune.run(REFS[name], cached=False, progress=False, journal=journal(arguments, name))
        speeds = shares(pick, {record.key: record.latency_ms for record in result.records})
        took_s, best_ms = time.perf_counter() - began, result.latency_ms or math.nan
        default = best_ms / result.default_ms if result.default_ms else math.nan
        results.append({"space": name, "gpu": pick.gpu, "shares": speeds, "default": default, "pick_s": picked_s})
        cells = (f"{share:.1%}" for share in (speeds[0], max(speeds), default))
        rows.append([name, str(pick.candidates), f"{picked_s:.1f}", f"{took_s:.1f}", *cells])
        report(arguments, "pick", rows, results)
    means = (f"{mean(key(row['shares']) for row in results):.1%}" for key in (lambda each: each[0], max))
    rows.append(["mean", "", "", "", *means, ""])
    report(arguments, "pick", rows, results)


if __name__ == "__main__":
    main()

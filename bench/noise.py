"""How far repeated timings of one kernel lie apart, by how they are taken; in one process, with torch's own kernels.

    python bench/noise.py --out results        (a GPU; about two minutes)

A memory-bound call (out = 2 a over 128 MiB, the traffic of the fault matrix' kernels) and a compute-bound one (bf16
product of 2048²) are timed again and again, 50 samples each time, with a pause before each as a candidate's loading and
checking would make: with the L2 cache emptied by writing or by reading, in one burst of samples or in several, with
longer warm-up; and all of that once more while another process makes a context on the GPU over and over, as a new run
does. Of each way: the scatter of the medians and of the means, and how far the farthest of them lies from the middle.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import options, report

from atune.stages.measure.timer import CudaTimer, Timed

OTHER = """
import os, subprocess, sys
CODE = "import torch; a = torch.randn(64, 64, device='cuda'); (a @ a).sum().item()"
parent = os.getppid()
while os.getppid() == parent:
    subprocess.run([sys.executable, "-c", CODE])
"""


class OneBurst(CudaTimer):
    BURST = CudaTimer.BATCH


class Writing(CudaTimer):
    """Empties the L2 cache by writing: its dirty lines are written back beside the timed call."""

    def _evict(self) -> None:
        self.flush.zero_()


class WritingOneBurst(Writing):
    BURST = CudaTimer.BATCH


class Paused(Writing):
    """With 3 ms between bursts."""

    def _batch(self, calls: Any) -> list[float]:
        time.sleep(0.003)
        return super()._batch(calls)


WAYS: dict[str, tuple[type[CudaTimer], int]] = {
    "write, 1 burst": (WritingOneBurst, 3),
    "write, 1 burst, warm-up 50": (WritingOneBurst, 50),
    "write, 5 bursts": (Writing, 3),
    "write, 5 bursts, 3 ms apart": (Paused, 3),
    "read, 1 burst": (OneBurst, 3),
    "read, 5 bursts": (CudaTimer, 3),
}
"""Timer and warm-up calls."""


def calls() -> dict[str, Callable[[], Any]]:
    import torch

    a = torch.randn(1 << 25, device="cuda")
    out = torch.empty_like(a)
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return {"2 a": lambda: torch.mul(a, 2.0, out=out), "x @ x": lambda: torch.mm(x, x, out=y)}


def clock_mhz() -> int | None:
    import torch

    from atune.stages.measure.telemetry import Observer

    return Observer(f"GPU-{torch.cuda.get_device_properties(0).uuid}").now().sm_mhz


def scatter(values: list[float]) -> tuple[float, float]:
    """Return the standard deviation and the largest distance from the median, both as a share of it."""
    middle = statistics.median(values)
    return statistics.stdev(values) / middle, max(abs(v / middle - 1) for v in values)


def phase(name: str, rounds: int, n: int, pause_s: float) -> list[dict[str, Any]]:
    """Time every call in every way, in turn, `rounds` times."""
    timers = {way: (kind(), warm) for way, (kind, warm) in WAYS.items()}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(rounds):
        for call, function in calls_made.items():
            for way, (timer, warm) in timers.items():
                time.sleep(pause_s)
                samples = timer.samples(timer.ready(Timed(function)), warm, n)
                found.setdefault((call, way), []).append(samples)
    rows = []
    for (call, way), runs in found.items():
        medians, means = [statistics.median(r) for r in runs], [statistics.fmean(r) for r in runs]
        (sd, far), (mean_sd, mean_far) = scatter(medians), scatter(means)
        low, _, high = statistics.quantiles([s for r in runs for s in r], n=4)
        rows.append(
            {
                "phase": name,
                "call": call,
                "way": way,
                "median_us": statistics.median(medians),
                "first_us": statistics.median(r[0] for r in runs),
                "iqr": (high - low) / statistics.median(medians),
                "sd": sd,
                "far": far,
                "mean_sd": mean_sd,
                "mean_far": mean_far,
                "medians_us": [round(m, 3) for m in medians],
                "samples_us": [round(s, 2) for s in runs[0]],
            }
        )
    print(f"{name}: done, SM clock {clock_mhz()} MHz", flush=True)
    return rows


def main() -> None:
    global calls_made
    arguments = options(__doc__ or "", 240, rounds=30, samples=50, pause=0.02)
    calls_made = calls()
    results = phase("alone", arguments.rounds, arguments.samples, arguments.pause)
    other = subprocess.Popen([sys.executable, "-c", OTHER], start_new_session=True)
    try:
        time.sleep(3)
        results += phase("beside a context in the making", arguments.rounds, arguments.samples, arguments.pause)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
    head = ["phase", "call", "way", "median µs", "first µs", "IQR", "sd", "farthest", "mean's sd", "mean's farthest"]
    rows: list[list[Any]] = [head]
    for r in results:
        shares = [f"{r[k]:.2%}" for k in ("iqr", "sd", "far", "mean_sd", "mean_far")]
        rows.append([r["phase"], r["call"], r["way"], f"{r['median_us']:.2f}", f"{r['first_us']:.2f}", *shares])
    report(arguments, "noise", rows, results)


calls_made: dict[str, Callable[[], Any]] = {}

if __name__ == "__main__":
    main()

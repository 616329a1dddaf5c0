"""Device seconds of the 288 GEMM configurations: adaptive effort against a fixed 3 + 20 repeats.

python bench/effort.py --out results        (a GPU; about two minutes)
"""

from __future__ import annotations

from common import ROOT, journal, options, report

import atune
from atune.journal.events import CandidateMeasured, Event
from atune.model.settings import BenchmarkSettings


def main() -> None:
    arguments = options(__doc__ or "", 420)
    rows: list[list[object]] = [
        ["effort", "device s", "timed calls s", "samples", "measured", "winner", "ms", "wall s"]
    ]
    results = []
    for adaptive in (False, True):
        name = "adaptive" if adaptive else "fixed"
        seconds, calls, samples = 0.0, 0.0, 0

        def listen(event: Event) -> None:
            nonlocal seconds, calls, samples
            if isinstance(event, CandidateMeasured):
                seconds += event.seconds
                calls += sum(event.timing.samples_us) / 1e6
                samples += event.timing.n_samples

        result = atune.run(
            f"{ROOT / 'bench' / 'kernels.py'}:FULL",
            target="cuda",
            devices=["0"],
            cached=False,
            benchmark=BenchmarkSettings(adaptive=adaptive),
            journal=journal(arguments, f"effort-{name}"),
            on_event=listen,
        )
        winner = ", ".join(map(str, (result.best_config or {}).values()))
        wall, latency = f"{result.wall_s:.1f}", f"{result.latency_ms:.4f}"
        rows.append([name, f"{seconds:.2f}", f"{calls:.2f}", samples, result.measured, winner, latency, wall])
        results.append({"seconds": seconds, "calls_s": calls, "samples": samples, "best": result.best_config})
    report(arguments, "effort", rows, results)
    share = results[1]["seconds"] / results[0]["seconds"]  # type: ignore[operator]
    same = results[0]["best"] == results[1]["best"]
    print(f"adaptive takes {share:.2f} of fixed (goal 0.5 or less); the winner is {'the same' if same else 'ANOTHER'}")


if __name__ == "__main__":
    main()

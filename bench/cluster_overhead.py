"""What a cluster costs: the same tuning by the local engine and on one and two Ray nodes of this machine, in turn.

    python bench/cluster_overhead.py --out bench/results/cluster_overhead          (no GPU; about eight minutes)
    python bench/cluster_overhead.py --target cuda --gpus 0,1 --pairs 2 --out FOLDER         (two GPUs)

Two nodes have half of the cores each, and half of the GPUs. Seconds are those after the start: from the journal's
header to its last event. The artifact store is off. For target c the arms do not place work alike: the local engine
and one node measure on the last core and compile on the others, while each of two nodes does both on its own half.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

from common import ROOT, options, report
from ray_nodes import Spec, ray_nodes

import atune
from atune.journal.events import Event
from atune.model.settings import BenchmarkSettings, CompileSettings

QUICK = BenchmarkSettings(n_warmup=1, n_repeat=5, adaptive=False, n_final=2)
ARMS = ("local", "one node", "two nodes")


def tuned(target: str, devices: Any, cluster: str | None) -> dict[str, Any]:
    """Tune once; return the seconds after the start, and what was measured where."""
    events: list[Event] = []
    name = "cluster_kernels.py:ON_CPU" if target == "c" else "kernels.py:FULL"
    result = atune.run(
        f"{ROOT / 'bench' / name}",
        target=target,
        devices=devices,
        cluster=cluster,
        cached=False,
        on_event=events.append,
        compile=CompileSettings(store=False),
        benchmark=QUICK if target == "c" else BenchmarkSettings(),
    )
    seconds = events[-1].mono - events[0].mono
    return {"after_start_s": round(seconds, 2), "measured": result.measured, "devices": len(result.devices)}


def specs(arm: str, gpus: list[str]) -> list[Spec]:
    cores = sorted(os.sched_getaffinity(0))
    parts = 2 if arm == "two nodes" else 1
    return [
        Spec(tuple(cores[i * len(cores) // parts : (i + 1) * len(cores) // parts]), ",".join(gpus[i::parts]))
        for i in range(parts)
    ]


def tell(arguments: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> None:
    """Write and print what all rounds found so far."""
    rows: list[list[Any]] = [["arm", "after start s", "of local: median", "least", "most", "measured", "devices"]]
    ratios: dict[str, list[float]] = {}
    for arm, runs in found.items():
        pairs = zip(runs, found["local"], strict=True)
        ratios[arm] = sorted(one["after_start_s"] / local["after_start_s"] for one, local in pairs)
        middle = statistics.median(run["after_start_s"] for run in runs)
        shown = [f"{value:.2f}" for value in (statistics.median(ratios[arm]), ratios[arm][0], ratios[arm][-1])]
        rows.append([arm, f"{middle:.1f}", *shown, runs[-1]["measured"], runs[-1]["devices"]])
    data = {"target": arguments.target, "cores": os.cpu_count(), "runs": found, "ratios": ratios}
    report(arguments, "result", rows, data)
    if arguments.out is not None:
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        (arguments.out / "table.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    arguments = options(__doc__ or "", 1500.0, target="c", gpus="", pairs=3)
    gpus = [name for name in arguments.gpus.split(",") if name]
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for _ in range(arguments.pairs):
        for arm in ARMS:
            if arm == "local":
                figures = tuned(arguments.target, gpus or "all", None)
            else:
                with ray_nodes(*specs(arm, gpus)) as nodes:
                    figures = tuned(arguments.target, "all", nodes.address)
            found[arm].append(figures)
            print(arm, figures, flush=True)
        tell(arguments, found)  # whole rounds stay, whatever comes


if __name__ == "__main__":
    main()

"""A script that tunes until Ctrl-C: ``FILE run|await real|JOURNAL``. It prints a line once something is measured."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import atune
from atune.journal.events import CandidateMeasured
from atune.testing import FakeClock, FakeMachine, Script

HANGS = 3
"""The candidate that hangs: the script never ends by itself."""


def tell(event: Any) -> None:
    if isinstance(event, CandidateMeasured):
        print("measured", flush=True)


def options(where: str) -> dict[str, Any]:
    if where == "real":
        from teaching_kernels import N, times  # which imports tilelang

        space = {"block": [16, 32], "factor": range(2000)}
        work = atune.Workload(times, space, arguments={"N": N}, name="endless")
        return {"workload": work, "target": "c", "on_event": tell}
    settings = atune.BenchmarkSettings(benchmark_timeout_s=1e9)
    machine = FakeMachine(8, Script(hangs={HANGS: "measure"}), benchmark=settings, clock=FakeClock(pace=1.0))
    return {"machine": machine, "journal": where, "on_event": tell}


if __name__ == "__main__":
    if sys.argv[1] == "run":
        atune.run(**options(sys.argv[2]))
    else:
        asyncio.run(atune.tune(**options(sys.argv[2])))

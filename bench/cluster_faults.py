"""Faults in a cluster of two nodes: a killed worker, a killed node, a hung agent, a stalled network, a cancelled run.

    python bench/cluster_faults.py --out bench/results/cluster_faults        (no GPU; about five minutes)

The nodes are Ray nodes on this machine, with their own network between them (`ray_nodes`). Each fault happens in a new
cluster, when the second node's device measures its third candidate. `noticed`: seconds until the journal reports the
fault. `again`: seconds until that candidate is started again, on any device. `replaced`: seconds until the device is
ready again. `orphans`: processes of the run on either node, 5 s after its end. Needs the programs `unshare`, `nsenter`
and `ip`, and permission to make network namespaces.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from common import ROOT, options, report
from ray_nodes import IPS, Nodes, Spec, in_own_network, ray_nodes

import atune
from atune.frontends.resume import resume
from atune.journal.events import BenchmarkStarted, CandidateMeasured, DeviceLost, DeviceReady, Event, Warned
from atune.journal.reader import read
from atune.model.settings import BenchmarkSettings, CompileSettings

WORKLOAD = f"{ROOT / 'bench' / 'cluster_kernels.py'}:ON_CPU"
CANDIDATES, LATER_S = 36, 5.0
SPEC = Spec(tuple(sorted(os.sched_getaffinity(0)))[:2])
"""Both nodes use the same two cores."""
SETTINGS: Any = {
    "compile": CompileSettings(store=False),
    "benchmark": BenchmarkSettings(n_warmup=1, n_repeat=20, adaptive=False, n_final=2),
}
HEAD = ["fault", "noticed s", "again s", "replaced s", "measured", "twice", "wall s", "orphans", "words"]


def kill_worker(nodes: Nodes) -> None:
    os.kill(nodes.device_process(1), signal.SIGKILL)


def kill_node(nodes: Nodes) -> None:
    nodes.send(1, signal.SIGKILL)


def hang(nodes: Nodes) -> None:
    for pid in nodes.agents(1):
        os.kill(pid, signal.SIGSTOP)


def cut(nodes: Nodes) -> None:
    nodes.cut()


FAULTS: dict[str, Callable[[Nodes], None]] = {
    "none": lambda nodes: None, "a worker killed": kill_worker, "a node killed": kill_node, "an agent hung": hang,
    "a network that stalls": cut,
}  # fmt: skip


class Watch:
    """Listens to a run, and causes `fault` when the second node's device begins its third candidate."""

    def __init__(self, nodes: Nodes, fault: Callable[[Nodes], None]) -> None:
        import ray

        [node] = [node for node in ray.nodes() if node["NodeManagerAddress"] == IPS[1]]
        self._here, self._nodes, self._fault = node["NodeID"][:6], nodes, fault
        self._begun = 0
        self.events: list[tuple[float, Event]] = []
        self.index = -1
        self.at_s = 0.0
        self.reached = anyio.Event()

    def ours(self, device: str) -> bool:
        """Tell whether `device` belongs to the second node."""
        return device.partition("/")[0].endswith(self._here)

    def listen(self, event: Event) -> None:
        self.events.append((time.monotonic(), event))
        if isinstance(event, BenchmarkStarted) and self.ours(event.device):
            self._begun += 1
            if self._begun == 3:
                self.index = event.index
                self.reached.set()
                threading.Thread(target=self._strike).start()

    def _strike(self) -> None:
        self._fault(self._nodes)
        self.at_s = time.monotonic()

    def first_s(self, wanted: Callable[[Any], bool]) -> float | None:
        """Return the seconds from the fault to the first event that is `wanted`; None if there is no such event."""
        times = [at - self.at_s for at, event in self.events if at >= self.at_s and wanted(event)]
        return round(times[0], 2) if times else None

    def figures(self) -> dict[str, Any]:
        measured = Counter(event.index for _, event in self.events if isinstance(event, CandidateMeasured))
        words = [e.message for _, e in self.events if isinstance(e, Warned)]
        lost = [e.reason for _, e in self.events if isinstance(e, DeviceLost)]
        return {
            "noticed_s": self.first_s(lambda e: isinstance(e, DeviceLost | Warned)),
            "again_s": self.first_s(lambda e: isinstance(e, BenchmarkStarted) and e.index == self.index),
            "replaced_s": self.first_s(lambda e: isinstance(e, DeviceReady) and self.ours(e.device.id)),
            "measured": len(measured),
            "twice": sum(count > 1 for count in measured.values()),
            "words": (words or lost or [""])[0],
        }


def orphans(nodes: Nodes) -> int:
    time.sleep(LATER_S)
    return len(nodes.workers()) + len(nodes.agents())


def gone_s(nodes: Nodes, within_s: float = 120.0) -> float | None:
    """Return the seconds until neither node has a process of the run; None if they exceed `within_s`."""
    begun = time.monotonic()
    while nodes.workers() or nodes.agents():
        if time.monotonic() - begun > within_s:
            return None
        time.sleep(0.1)
    return round(time.monotonic() - begun, 1)


def struck(name: str) -> dict[str, Any]:
    """Tune while the fault `name` happens, and return its row."""
    with ray_nodes(SPEC, SPEC, apart=True) as nodes:
        watch = Watch(nodes, FAULTS[name])
        begun = time.monotonic()
        atune.run(WORKLOAD, target="c", cluster=nodes.address, on_event=watch.listen, **SETTINGS)
        row = {"fault": name, **watch.figures(), "wall_s": round(time.monotonic() - begun, 1)}
        row["orphans"] = orphans(nodes)
        if name == "a network that stalls":
            nodes.mend()
            row["gone_after_mend_s"] = gone_s(nodes)
        return row


def cancelled() -> dict[str, Any]:
    """Cancel a run at the same point, and resume it. Return the row, whose `noticed` is the time to cancel."""
    with ray_nodes(SPEC, SPEC, apart=True) as nodes, tempfile.TemporaryDirectory() as folder:
        watch, path = Watch(nodes, lambda nodes: None), Path(folder) / "journal.jsonl"

        async def run() -> float:
            async with anyio.create_task_group() as tasks:
                given = {"target": "c", "cluster": nodes.address, "journal": path, "on_event": watch.listen}
                tasks.start_soon(lambda: atune.tune(WORKLOAD, **given, **SETTINGS))
                await watch.reached.wait()
                begun = time.monotonic()
                tasks.cancel_scope.cancel()
            return time.monotonic() - begun

        begun = time.monotonic()
        took_s = anyio.run(run)
        left = orphans(nodes)

        async def rest() -> None:
            await resume(path, cluster=nodes.address)

        anyio.run(rest)
        measured = Counter(event.index for event in read(path) if isinstance(event, CandidateMeasured))
        return {
            "fault": "cancelled, then resumed", "noticed_s": round(took_s, 2), "again_s": None, "replaced_s": None,
            "measured": len(measured), "twice": sum(count > 1 for count in measured.values()),
            "words": "", "wall_s": round(time.monotonic() - begun - LATER_S, 1), "orphans": left,
        }  # fmt: skip


def main() -> None:
    in_own_network()
    arguments = options(__doc__ or "", 900.0, only="")
    rows: list[dict[str, Any]] = []
    for name in (*FAULTS, "cancelled, then resumed"):
        if arguments.only in name:
            rows.append(struck(name) if name in FAULTS else cancelled())
            print(json.dumps(rows[-1]), flush=True)
    fields = ["fault", "noticed_s", "again_s", "replaced_s", "measured", "twice", "wall_s", "orphans", "words"]
    table = [HEAD, *(["-" if row[name] is None else row[name] for name in fields] for row in rows)]
    report(arguments, "result", table, {"candidates": CANDIDATES, "orphans_after_s": LATER_S, "rows": rows})
    if arguments.out is not None:
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in table]
        lines.insert(1, "|" + "---|" * len(HEAD))
        (arguments.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

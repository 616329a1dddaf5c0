"""A stand-in for the engine, with which nothing is compiled and nothing measured."""

from __future__ import annotations

from typing import Any

import anyio

from atune.journal.events import CandidateLowered, CandidateMeasured, CandidateProposed, RunFinished, RunStarted
from atune.journal.result import Result
from atune.model.artifact import Roles, StaticFacts
from atune.model.candidate import config_key, space_hash
from atune.model.device import Target
from atune.model.measurement import Timing
from atune.workload.workload import Workload, describe


class Engine:
    """Stands in for `tune`: the last configuration wins. `runs` has the workload and options of each call."""

    def __init__(self) -> None:
        self.runs: list[tuple[Workload, dict[str, Any]]] = []
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.refuses: set[int] = set()
        """Blocks that are not measured."""

    async def __call__(self, workload: Workload, **options: Any) -> Result:
        self.runs.append((workload, options))
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        spec, now = describe(workload), float(len(self.runs))
        keys = [config_key(config) for config in spec.configs]
        events: list[Any] = [
            RunStarted(
                seq=0, time=now, mono=0.0, schema=1, workload=spec.name, origin="", fingerprint=spec.fingerprint,
                space=space_hash(keys), total=len(keys), arguments=spec.arguments, target=Target("c"),
                devices=("cpu",), strategy="exhaustive", settings={}, versions={},
            )
        ]  # fmt: skip
        for i, config in enumerate(spec.configs):
            if config.get("block") in self.refuses:
                continue
            common: dict[str, Any] = {"time": now, "mono": 0.0, "index": i}
            timing = Timing.of([1e3 * (len(keys) - i)], "perf_counter")
            n = len(events)
            events += [
                CandidateProposed(seq=n, key=keys[i], config=config, **common),
                CandidateLowered(seq=n + 1, code_key=keys[i], facts=StaticFacts(), seconds=0.0, **common),
                CandidateMeasured(seq=n + 2, device="cpu", timing=timing, checked=False, **common),
            ]
        events.append(
            RunFinished(seq=len(events), time=now, mono=0.0, wall_s=0.0, reason="exhausted", roles=Roles((1,)))
        )
        for event in events:
            if options.get("on_event"):
                options["on_event"](event)
        return Result.from_events(events)

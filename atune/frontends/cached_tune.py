"""Tune through the result cache: return a known result immediately, or tune and keep the journal in the cache."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from atune.engine.prior import figures_for
from atune.engine.run_state import opened_aside
from atune.engine.settings import Kernels, KnownResult, Recall
from atune.engine.start import POLL_S
from atune.frontends.blocking import in_time
from atune.frontends.tuner import RunPlan, find_target, tune_planned
from atune.journal.events import CandidateAliased, CandidateLowered, CandidateProposed, Event, RunStarted
from atune.journal.result import TuneResult
from atune.model.artifact import StaticFacts
from atune.model.candidate import BASELINE, Config, config_key, key_of
from atune.version import installed_versions
from atune.workers.result_cache import KnownOutcome, ResultCache
from atune.workers.result_key import ResultKey, result_key, same_problem
from atune.workers.server import refuse_in_worker
from atune.workload.workload import Workload, WorkloadSpec, describe


class CachedWork:
    """A workload, the plan of its tuning, its cache key and the parts of this key. Raises the same errors as `tune`."""

    def __init__(self, workload: Workload, plan: RunPlan) -> None:
        self.workload, self.plan, self.settings = workload, plan, plan.settings
        self._digests = dict[bytes, str]()
        self.spec: WorkloadSpec = in_time(lambda: describe(workload, seed=self.settings.seed))
        self.target, self.devices = find_target(plan.target, plan.devices)
        self.versions = installed_versions()

    def still(self, arguments: Any, recorded: Sequence[tuple[Config, str]]) -> bool:
        """Tell whether lowering each recorded configuration on this machine still gives the recorded digest."""
        return all(digest and digest == self.digest(arguments, config) for config, digest in recorded)

    def digest(self, arguments: Any, config: Config) -> str:
        """Return a configuration's `Lowered.ir_digest`. If lowering fails, return an empty string."""
        lowering, given = importlib.import_module("atune.stages.lowering"), self.settings.compile
        key = key_of([arguments, config])
        if key not in self._digests:  # elaborating is slow, and the cache may be searched several times
            self._digests[key] = ""
            with suppress(Exception):  # a tuning will report the failure
                own = same_problem(arguments, self.workload.arguments)  # a dtype may be written in another way
                work = self.workload if own else self.workload.at(dict(arguments))
                self._digests[key] = str(lowering.digest_here(work, config, self.target, given))
        return self._digests[key]

    @cached_property
    def key(self) -> ResultKey:
        key = result_key(self.header)
        assert key is not None, "this atune records all of a key's parts"
        return key

    @cached_property
    def configs(self) -> dict[int, Config]:
        """The configurations that a run tries, by index: the baseline if there is one, and the whole space."""
        baseline = {} if self.spec.baseline is None else {BASELINE: self.spec.baseline}
        return {**baseline, **dict(enumerate(self.spec.configs))}

    @cached_property
    def header(self) -> RunStarted:
        """The first event of a run of this work. The event's times are 0."""
        strategy = self.settings.strategy_in(self.spec, None, figures_for(self.target, self.devices))
        fields = self.settings.header(self.spec, self.target, self.devices, self.versions, strategy)
        return RunStarted(seq=0, time=0.0, mono=0.0, **fields)


def history(header: RunStarted, configs: Mapping[int, Config], known: Mapping[str, KnownOutcome]) -> list[Event]:
    """Make up the events of a run that recorded the outcomes `known`, and has not tried the other `configs`.

    If several candidates have the same code, the later candidates are aliases of the first candidate, as in a real run.
    """
    events: list[Event] = [header]
    codes: dict[str, int] = {}

    def add(kind: type[Event], **fields: Any) -> None:
        events.append(kind(seq=len(events), time=header.time, mono=0.0, **fields))

    for index, config in configs.items():
        key = config_key(config)
        if (known_outcome := known.get(key)) is None:
            continue
        add(CandidateProposed, index=index, key=key, config=config)
        entry, outcome = known_outcome
        if entry.code_key:
            facts = entry.facts or StaticFacts()
            keys = {"code_key": entry.code_key, "ir_digest": entry.ir_digest}
            add(CandidateLowered, index=index, **keys, facts=facts, seconds=0.0)
            first = codes.setdefault(entry.code_key, index)
            if first != index:
                add(CandidateAliased, index=index, same_as=first)
                continue
        again = {"index": index, "seq": len(events), "time": header.time, "mono": 0.0}
        events.append(msgspec.structs.replace(outcome, **again))
    return events


async def tune_work(work: CachedWork, cache: ResultCache, *, refresh: bool = False) -> TuneResult:
    """Return this work's result from `cache`, with `cache_hit` set.

    If `cache` lacks the result, tune and keep the journal. If an earlier run of the same work already measured a
    configuration, even in another space, this configuration is measured again only in the final benchmark. If a tuning
    was interrupted, the next call resumes the tuning.

    `refresh`: tune even if `cache` has a result. Raises the same errors as `tune`. If the tuning is cancelled, its
    measurements are kept for the next call.
    """

    def look_up() -> TuneResult | None:
        run = None if refresh else cache.find(work.key, work.header, work.still)
        return None if run is None else cache.result(run, work.header)

    begun = None
    while begun is None:
        if (result := await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True)) is not None:
            return result
        refuse_in_worker()
        begun = await opened_aside(partial(cache.begin, work.header, still=work.still, again=refresh))
        if begun is None:
            await anyio.sleep(POLL_S)
    journal, past = begun
    reader = ThreadPoolExecutor(1)
    try:
        recall: Recall | None = None
        if not (past or refresh):
            reading = reader.submit(cache.known, work.key.work, work.configs.values())  # runs while the processes start

            def recall(header: RunStarted, spec: WorkloadSpec, kernels: Kernels, _: str) -> KnownResult:
                known = reading.result()
                header = msgspec.structs.replace(work.header, time=time.time())
                return KnownResult(history(header, work.configs, known)) if known else KnownResult()

        plan = replace(work.plan, cache=cache, begun=begun).with_settings(cached=True, recall=recall)
        return await tune_planned(work.workload, plan)
    finally:
        reader.shutdown(wait=False)
        if journal is not None:
            journal.close()

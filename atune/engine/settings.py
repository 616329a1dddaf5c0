"""What a run of the engine is asked for: its settings, and the header that records them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from atune.engine.strategy import AUTO, Strategy, check_given, chosen
from atune.journal.events import SCHEMA, Event, RunStarted
from atune.model.candidate import Advice, Candidate
from atune.model.device import DeviceInfo, Figures, Target
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.workload.workload import WorkloadSpec

SPEC_FIELDS = (
    "origin", "fingerprint", "code", "problem", "kernel", "space", "total", "points", "default", "baseline", "refused",
    "no_default", "arguments", "layout_axes", "asks", "flops", "bytes", "torch",
)  # fmt: skip
"""Fields of the workload's description that a header has, under the same names."""

ATUNE_COMMANDS = ("/atune", "/atune/__main__.py")
"""How the path of the command ends, as Python gives it."""

Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Returns advice from other runs, and remarks for the user. Raises `UsageError`."""


class KnownResult(NamedTuple):
    """Results of earlier runs of the same work: events that this run need not repeat, or advice.

    `whole`: the journal of a whole run, whose events these are, so that nothing is left to do.
    """

    events: Sequence[Event] = ()
    whole: str = ""
    advice: tuple[Advice, ...] = ()


Kernels = Callable[[Iterable[Candidate]], Mapping[int, str]]
"""Returns the `Lowered.ir_digest` of candidates, by index, as the run's workers elaborate them now. For a thread."""
Recall = Callable[[RunStarted, WorkloadSpec, Kernels, str], KnownResult | None]
"""Returns what earlier runs found; None while another run does the same work. Last comes the journal's path."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of a run. Raises `UsageError` for a strategy that is none, or cannot learn without `pipeline`."""

    compile: CompileSettings = field(default_factory=CompileSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    strategy: str | Strategy | None = None
    """A name, or the user's own; None for the default one."""
    prior: bool = True
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    pipeline: bool = True
    accept: Sequence[str] = ()
    advise: Advise | None = None
    """Configurations to try before others, also beyond a number of candidates; those outside of the space are not."""
    recall: Recall | None = None
    journal: str = ""
    cached: bool = True
    """Whether look-ups in the result cache may find the run."""

    def __post_init__(self) -> None:
        check_given(self.strategy, pipeline=self.pipeline)

    def strategy_in(self, spec: WorkloadSpec, header: RunStarted | None, figures: Figures | None) -> str:
        """Return the name that the header records for the strategy; a resumed run keeps that of its `header`."""
        if isinstance(self.strategy, Strategy):
            return self.strategy.name
        if self.strategy is not None and self.strategy != AUTO:
            return self.strategy
        if header is not None:
            return header.strategy
        most, prior = self.budget.most(spec.total), self.prior and figures is not None
        return chosen(spec.total, most, limited=self.budget.limited, pipeline=self.pipeline, prior=prior)

    def header(
        self,
        spec: WorkloadSpec,
        target: Target,
        devices: Sequence[DeviceInfo],
        versions: Mapping[str, str],
        strategy: str,
    ) -> dict[str, Any]:
        """Return the fields of `RunStarted` that are known before there is a plan."""
        is_command = "".join(sys.argv[:1]).endswith(ATUNE_COMMANDS)
        return {
            "schema": SCHEMA,
            "workload": spec.name,
            **{name: getattr(spec, name) for name in SPEC_FIELDS},
            "target": target,
            "devices": tuple(device.id for device in devices),
            "models": tuple(sorted({device.name for device in devices})),
            "strategy": strategy,
            "settings": {
                "compile": msgspec.to_builtins(self.compile),
                "benchmark": msgspec.to_builtins(self.benchmark),
                "pipeline": self.pipeline,
                "seed": self.seed,
                "budget": msgspec.to_builtins(self.budget),
                **({} if self.prior else {"prior": "off"}),
                **({} if self.cached else {"cache": "off"}),
                **({"command": shlex.join(["atune", *sys.argv[1:]])} if is_command else {}),
            },
            "versions": versions,
        }

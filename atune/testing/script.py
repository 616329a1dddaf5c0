"""The script of the fakes: a table with which a test decides their behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from atune.model.artifact import FailureKind, StaticFacts
from atune.model.candidate import Config, config_key

Stage = Literal["elaborate", "lower", "build", "measure"]
Duration = float | Callable[[Config], float]

STAGE_OF: dict[FailureKind, Stage] = {"lower": "lower", "codegen": "build", "compile": "build", "crash": "build"}
"""The stage in which a kind of failure occurs by default. Every other kind occurs in measuring."""
FATAL: tuple[FailureKind, ...] = ("fault", "out_of_bounds", "worker_lost", "timeout")
"""Kinds of failure that end the device's process."""


@dataclass(frozen=True)
class Script:
    """The behaviour of the fakes, by configuration or by candidate index. Times are in virtual seconds.

    `latency_ms` is the kernel's latency, and `final_ms` its latency in the final (the same by default). `reference_ms`
    is the latency of the reference (None: no reference). Lowering takes `lower_s`, measuring `measure_s`, and starting
    a device's process `start_s`. A library takes `library_s`, and `compile_s` for each member.

    `fails` maps a candidate to the kind of its failure, which determines the stage (`STAGE_OF`), or to (stage, kind).
    A candidate that fails in ``build`` makes every group that contains it fail. `hangs` maps a candidate to a stage
    in which it hangs until the deadline of the settings. Failures of a kind in `FATAL` end the device's process.

    Configurations with an equal `code_key` are duplicates; `ir_digest` tells their kernels apart. `start_failures` maps
    a device's name to the number of starts that fail at first (`math.inf`: all). `prepare_error` is the message with
    which the user's inputs or reference fail. Lowering and elaborating return a candidate's `facts`, and elaborating
    takes `elaborate_s`.

    `kills` maps a candidate to a stage, ``lower`` or ``build``, and the number of times that its compile worker is
    killed from outside in this stage. `doubts` maps a candidate to the number of times that its device is
    killed from outside during its measurement, and `dies_after` to the number of times that the device dies after it.

    `spoilt` maps a candidate to its failure in a process that has run other candidates; in a fresh process it does not
    fail. `final_fails` maps it to its failure in the final, after its timing, and `first_ms` to the latency of its
    first measurement. `slowdown` maps a device's name to the factor by which kernels and the reference run slower
    there. `final_noise` multiplies each sample in the final. The first `final_losses` calls of the final lose the
    device.

    With `cicc`, cicc compiles every library, in a state that no run has compared. Comparing takes `compare_s`, fails if
    `compare_fails`, and loses the worker in its first `compare_losses` calls. If `differs`, cicc's code differs.
    Libraries that nvcc compiled have the latency `plain_ms` (by default the candidate's), and `plain_fails` maps
    candidates to the failures of these libraries. `bits` is the digest of the outputs, by the seed of the inputs.
    """

    latency_ms: Callable[[Config], float] = lambda config: 1.0
    final_ms: Callable[[Config], float] | None = None
    reference_ms: float | None = 2.0
    elaborate_s: Duration = 0.02
    lower_s: Duration = 0.1
    library_s: float = 1.0
    compile_s: Duration = 0.5
    measure_s: Duration = 0.2
    start_s: float = 1.0
    fails: Mapping[int, FailureKind | tuple[Stage, FailureKind]] = field(default_factory=dict)
    hangs: Mapping[int, Stage] = field(default_factory=dict)
    facts: Callable[[Config], StaticFacts] = lambda config: StaticFacts()
    code_key: Callable[[Config], str] = config_key
    ir_digest: Callable[[Config], str] = config_key
    start_failures: Mapping[str, float] = field(default_factory=dict)
    kills: Mapping[int, tuple[Stage, int]] = field(default_factory=dict)
    doubts: Mapping[int, int] = field(default_factory=dict)
    dies_after: Mapping[int, int] = field(default_factory=dict)
    spoilt: Mapping[int, FailureKind] = field(default_factory=dict)
    final_fails: Mapping[int, FailureKind] = field(default_factory=dict)
    first_ms: Mapping[int, float] = field(default_factory=dict)
    slowdown: Mapping[str, float] = field(default_factory=dict)
    final_noise: Callable[[int], float] = lambda index: 1.0
    final_losses: int = 0
    cicc: bool = False
    compare_s: float = 1.0
    compare_fails: bool = False
    compare_losses: int = 0
    differs: bool = False
    plain_ms: Callable[[Config], float] | None = None
    plain_fails: Mapping[int, FailureKind] = field(default_factory=dict)
    prepare_error: str = ""
    bits: Callable[[Config, int], str] = lambda config, seed: ""

    def failure(self, index: int, stage: Stage) -> FailureKind | None:
        """Return the scripted kind of failure of candidate `index` in `stage`."""
        scripted = self.fails.get(index)
        if scripted is None:
            return None
        where, kind = scripted if isinstance(scripted, tuple) else (STAGE_OF.get(scripted, "measure"), scripted)
        return kind if where == stage else None

    def latency_of(self, config: Config, *, plain: bool, final: bool) -> float:
        """Return the latency, in ms, of a candidate's library. `plain`: the library that nvcc compiled."""
        if self.cicc and plain and self.plain_ms is not None:
            return self.plain_ms(config)
        return (self.final_ms if final and self.final_ms is not None else self.latency_ms)(config)

    def seconds(self, seconds: Duration, stage: Stage, index: int, config: Config) -> float:
        """Return the time of `stage` for candidate `index`: the script's `seconds`, or infinity if the stage hangs."""
        if self.hangs.get(index) == stage:
            return math.inf
        return seconds(config) if callable(seconds) else seconds

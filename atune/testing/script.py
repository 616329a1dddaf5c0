"""The script of the fakes, in which a test says how the fakes behave."""

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
"""The stage in which a kind of failure occurs by default. All other kinds occur while a candidate is measured."""
FATAL: tuple[FailureKind, ...] = ("fault", "out_of_bounds", "worker_lost", "timeout")
"""The kinds of failure that end the device's process."""


@dataclass(frozen=True)
class Script:
    """The behaviour of the fakes. Times are in virtual seconds. A mapping has candidates' indices as keys.

    `latency_ms` is the kernel's latency. `final_ms` is the latency in the final (default: `latency_ms`). `reference_ms`
    is the reference's latency, or None for no reference. `lower_s` is the time to lower a candidate, `elaborate_s` the
    time to elaborate it, `measure_s` the time to measure it, and `start_s` the time to start a device's process.
    Compiling a library takes `library_s`, and also `compile_s` for each candidate in the library. Configurations with
    equal `code_key` are duplicates, and equal kernels have equal `ir_digest`. Lowering and elaborating return `facts`.

    `fails` gives the kind of a candidate's failure, or a pair of stage and kind. By default, `STAGE_OF` gives the stage
    for a kind. If a candidate fails in ``build``, every group that contains the candidate fails. `hangs` gives a stage
    in which a candidate hangs until its deadline. A failure whose kind is in `FATAL` ends the device's process.
    `start_failures` maps a device's name to the number of times that the process fails to start (`math.inf`: always).
    `prepare_error` is the message of an error in the user's inputs or reference.

    `kills` gives a stage, ``lower`` or ``build``, and how many times something kills the compile worker while the
    candidate is in this stage. `doubts` is how many times something kills the device's process while it measures the
    candidate, and `dies_after` is how many times the process dies after it has measured the candidate. `spoilt` gives
    the kind of a candidate's failure in a process that has run other candidates. A fresh process has no such failure.

    `final_fails` gives the kind of a candidate's failure in the final, after its timing. `first_ms` is the latency in a
    candidate's first measurement. `slowdown` maps a device's name to the factor by which kernels and the reference are
    slower on this device. `final_noise` is a factor for each sample in the final. In each of the first `final_losses`
    finals, the device is lost. `bits` is the digest of the outputs for inputs that a seed draws.

    If `cicc` is true, cicc compiles every library, and no run has compared cicc with nvcc before. This comparison takes
    `compare_s`, fails if `compare_fails` is true, and finds different code if `differs` is true. The first
    `compare_losses` comparisons lose their worker. `plain_ms` is the latency of a library from nvcc (default:
    `latency_ms`). `plain_fails` gives the kind of a candidate's failure with a library from nvcc.
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
        """Return the kind of failure that the script gives for candidate `index` in `stage`, or None."""
        scripted = self.fails.get(index)
        if scripted is None:
            return None
        where, kind = scripted if isinstance(scripted, tuple) else (STAGE_OF.get(scripted, "measure"), scripted)
        return kind if where == stage else None

    def latency_of(self, config: Config, *, plain: bool, final: bool) -> float:
        """Return the latency of a candidate's library in ms. `plain`: whether nvcc compiled the library."""
        if self.cicc and plain and self.plain_ms is not None:
            return self.plain_ms(config)
        return (self.final_ms if final and self.final_ms is not None else self.latency_ms)(config)

    def seconds(self, seconds: Duration, stage: Stage, index: int, config: Config) -> float:
        """Return the time that `stage` takes for candidate `index`: `seconds`, or infinity if the candidate hangs."""
        if self.hangs.get(index) == stage:
            return math.inf
        return seconds(config) if callable(seconds) else seconds

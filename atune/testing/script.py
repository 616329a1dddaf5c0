"""Scripts for the fakes, by configuration or by candidate index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from atune.model.artifact import FailureKind, StaticFacts
from atune.model.candidate import Config, config_key

Stage = Literal["elaborate", "lower", "build", "measure"]
Seconds = float | Callable[[Config], float]

STAGE_OF: dict[FailureKind, Stage] = {"lower": "lower", "codegen": "build", "compile": "build", "crash": "build"}
"""Where a kind of failure happens by itself; every other kind happens while measuring."""
FATAL: tuple[FailureKind, ...] = ("fault", "out_of_bounds", "worker_lost", "timeout")
"""Failures that cost a device its process."""


@dataclass(frozen=True)
class Script:
    """What the fakes do, by configuration or by candidate index. Times are in virtual seconds.

    `latency_ms` is the kernel's latency, `final_ms` the one the final sees (the same by default), and `reference_ms`
    the reference's (None: there is none). `lower_s`, `measure_s` and `start_s` are what lowering, measuring and the
    start of a device's process take. `facts` is what lowering finds. `compile_s` is what each member adds to a
    library's `library_s`. `fails` maps a candidate to the kind of its failure, which tells the stage (`STAGE_OF`), or
    to (stage, kind); one that fails in ``build`` fails every group it is in. `hangs` maps a candidate to the stage that
    never ends for it, which the deadlines of the settings cut off. Failures of a kind in `FATAL` cost a device its
    process. `code_key` equal for two configurations makes them duplicates; only those of equal `merge_key` share a
    library. `start_failures` says how often a device, by its name, does not start before it does (`math.inf`: never).
    `prepare_error` makes the user's inputs or reference fail. `output` is what a kernel writes.

    `facts` is what lowering tells of a candidate, and elaborating it, which takes `elaborate_s`.

    `kills` maps a candidate to how often its compile worker is killed from outside in a stage, ``lower`` or ``build``.

    `doubts` says how often a candidate's device is killed from outside while it is measured; `dies_after` how often it
    dies once the candidate was measured. `spoilt` maps a candidate to how it fails in a process that ran others before,
    and only there; `final_fails` to how it fails in the final, once it was timed. `first_ms` is a latency that only the
    first measuring sees. `slowdown` is how many times slower kernels and the reference run on a device, by its name.
    `final_noise` multiplies each sample of a candidate in the final; in the first `final_losses` calls of the final the
    device is lost. `shared` has libraries say that their code was made for others, too; compiling finalists exactly,
    which the final asks for then, takes `exact_s`, fails for those in `exact_fails`, and loses the worker in its first
    `exact_losses` calls.

    `accelerated` has accelerators take part in every library, so that the winner is to be proven; else all are plain.
    Proving takes `prove_s`, fails for those in `prove_fails`, and loses the worker in its first `prove_losses` calls;
    an earlier run left the proofs of those in `proven_before`. Those in `differs` turn out to differ: their plain
    library has the latency `plain_ms` (by default the candidate's), and measuring it fails for those in `plain_fails`.
    """

    latency_ms: Callable[[Config], float] = lambda config: 1.0
    final_ms: Callable[[Config], float] | None = None
    reference_ms: float | None = 2.0
    elaborate_s: Seconds = 0.02
    lower_s: Seconds = 0.1
    library_s: float = 1.0
    compile_s: Seconds = 0.5
    measure_s: Seconds = 0.2
    start_s: float = 1.0
    fails: Mapping[int, FailureKind | tuple[Stage, FailureKind]] = field(default_factory=dict)
    hangs: Mapping[int, Stage] = field(default_factory=dict)
    facts: Callable[[Config], StaticFacts] = lambda config: StaticFacts()
    code_key: Callable[[Config], str] = config_key
    merge_key: Callable[[Config], str] = lambda config: ""
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
    shared: bool = False
    exact_s: float = 1.0
    exact_fails: Collection[int] = ()
    exact_losses: int = 0
    accelerated: bool = False
    prove_s: float = 1.0
    prove_fails: Collection[int] = ()
    prove_losses: int = 0
    proven_before: Collection[int] = ()
    differs: Collection[int] = ()
    plain_ms: Callable[[Config], float] | None = None
    plain_fails: Mapping[int, FailureKind] = field(default_factory=dict)
    prepare_error: str = ""
    output: Callable[[Config], bytes] = lambda config: config_key(config).encode()

    def failure(self, index: int, stage: Stage) -> FailureKind | None:
        """Return the kind of failure scripted for candidate `index` in `stage`."""
        scripted = self.fails.get(index)
        if scripted is None:
            return None
        where, kind = scripted if isinstance(scripted, tuple) else (STAGE_OF.get(scripted, "measure"), scripted)
        return kind if where == stage else None

    def latency_of(self, config: Config, *, plain: bool, final: bool) -> float:
        """Return the latency, ms, of a candidate's library: of its plain one, or of the one that was built first."""
        if self.accelerated and plain and self.plain_ms is not None:
            return self.plain_ms(config)
        return (self.final_ms if final and self.final_ms is not None else self.latency_ms)(config)


def seconds_of(seconds: Seconds, config: Config) -> float:
    """Return what a script says for `config`."""
    return seconds(config) if callable(seconds) else seconds

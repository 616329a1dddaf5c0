"""The settings of a run, the journal's header that records them, and the differences that a resumed run accepts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from atune.engine.strategy import AUTO, Strategy, check_given, chosen
from atune.errors import JournalError, UsageError
from atune.journal.events import SCHEMA, Event, RunStarted
from atune.journal.state import State
from atune.model.candidate import BASELINE, RESERVED, Advice, Candidate, config_key, with_tuples
from atune.model.device import DeviceInfo, Figures, Target
from atune.model.settings import MEASURING, BenchmarkSettings, Budget, CompileSettings
from atune.workload.workload import WorkloadSpec

SPEC_FIELDS = (
    "origin", "fingerprint", "code", "problem", "kernel", "space", "total", "points", "default", "baseline", "refused",
    "no_default", "arguments", "layout_axes", "asks", "flops", "bytes", "torch",
)  # fmt: skip
"""Fields of the workload's description that the header repeats under the same names."""

ATUNE_COMMANDS = ("/atune", "/atune/__main__.py")
"""Endings of ``sys.argv[0]`` by which the header recognises the `atune` command."""

Advise = Callable[[WorkloadSpec, Sequence[DeviceInfo]], tuple[tuple[Advice, ...], list[str]]]
"""Function that returns advice from other runs, and remarks for the user. Raises `UsageError`."""


class KnownResult(NamedTuple):
    """Results of earlier runs of the same work: events of work that this run need not repeat, or advice.

    `whole`: the path of an earlier run's journal if `events` are all events of that run, so that no work is left.
    """

    events: Sequence[Event] = ()
    whole: str = ""
    advice: tuple[Advice, ...] = ()


Kernels = Callable[[Iterable[Candidate]], Mapping[int, str]]
"""Has workers elaborate candidates, and returns `Lowered.ir_digest` by index. It blocks, so call it in a thread."""
Recall = Callable[[RunStarted, WorkloadSpec, Kernels, str], KnownResult | None]
"""Returns results of earlier runs; None while another run does the same work. The last argument is the journal."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of a run. Raises `UsageError` for an invalid strategy, or for a learning strategy without `pipeline`."""

    compile: CompileSettings = field(default_factory=CompileSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    strategy: str | Strategy | None = None
    """A name, or the user's own strategy; None for the default."""
    prior: bool = True
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    pipeline: bool = True
    accept: Sequence[str] = ()
    advise: Advise | None = None
    """Function that finds configurations to try first, if the space has them; None for a run without advice."""
    recall: Recall | None = None
    journal: str = ""
    alone: bool = False
    """Whether the final only compares candidates with the default: even a single candidate gets a final, and its order
    is examined once."""
    cached: bool = True
    """Whether the result cache may use this run."""

    def __post_init__(self) -> None:
        check_given(self.strategy, pipeline=self.pipeline)

    def strategy_in(self, spec: WorkloadSpec, header: RunStarted | None, figures: Figures | None) -> str:
        """Return the strategy's name for the header. If a resumed run gets no strategy, `header` decides."""
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
        """Return the fields of `RunStarted` that are known before the plan is made."""
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


# ---- differences from the work of a journal

PARTS = ("kernel", "target", "device", "versions", "settings")
"""Names of the parts of the work that may differ when a run is resumed, if the user accepts each part by name."""
RESUME = "Give another journal, or accept this: atune resume JOURNAL"  # `atune tune` has no --accept


def check_same_work(
    state: State, now: RunStarted, devices: Sequence[DeviceInfo], accept: Sequence[str]
) -> tuple[str, ...]:
    """Return the accepted differences between the journal's work and `now`, the header of a new run.

    Raises `JournalError` if the problem or the space differs, or if another difference is not accepted.
    """
    header = state.header
    assert header is not None
    if config_key(header.arguments) != config_key(now.arguments):
        was = f"the journal records another problem: it was {_values(header.arguments)} and is {_values(now.arguments)}"
        raise JournalError(f"{was}. Give another journal; a new journal can use this one as advice (--warm, warm=)")
    both = header.baseline is not None and now.baseline is not None
    if header.space != now.space or (both and bool(header.refused) != bool(now.refused)):
        change = f"the space now has {now.total:,}" if header.total != now.total else "the candidates have changed"
        if header.space == now.space:
            change = "its constraints judged the default differently"
        raise JournalError(
            f"the journal records another space: it had {header.total:,} candidates, and {change}. Restore the space, "
            "or start a new journal that uses this one as advice (--warm, warm=)"
        )
    changes = _changed_parts(header, state, now, devices)
    return all_accepted(changes, accept, "the journal records different work, and cannot be resumed", RESUME)


def all_accepted(changes: Sequence[tuple[str, str]], accept: Sequence[str], why: str, instead: str) -> tuple[str, ...]:
    """Return `changes`, each a part and a sentence, as strings. Raises `JournalError` if a change is not accepted.

    The error's message begins with `why`. `instead`: the alternative to accepting, and the words before the options.
    """
    if refused := [(part, text) for part, text in changes if part not in accept]:
        lines = "".join(f"\n  {part}: {text}" for part, text in refused)
        options = " ".join(f"--accept {part}" for part in dict.fromkeys(part for part, _ in refused))
        raise JournalError(f"{why}:{lines}\n{instead} {options} (from Python: accept=[…])")
    return tuple(f"{part}: {text}" for part, text in changes)


def check_code(compile: CompileSettings, config: Mapping[str, Any], accept: Sequence[str]) -> None:
    """Raise `JournalError` if a journal's settings or configuration may run a stranger's code.

    A setting that changes the compiled code, such as a flag, may also load a plugin or run a program. The setting must
    therefore have its default value, or be accepted.
    """
    usual = CompileSettings()
    given = {name: getattr(compile, name) for name in MEASURING["compile"]}
    unusual = [(name, value) for name, value in given.items() if value != getattr(usual, name)]
    unusual += [(name, value) for name in sorted(RESERVED) if (value := config.get(name)) is not None]
    listed = [("settings", f"{name} is {value!r}") for name, value in unusual]
    why, instead = "the journal has settings that can run programs", "Give them yourself, or accept this:"
    all_accepted(listed, accept, why, instead)


def _changed_parts(
    header: RunStarted, state: State, now: RunStarted, devices: Sequence[DeviceInfo]
) -> list[tuple[str, str]]:
    """Return (part, sentence) for each difference of the work `now` from the journal's work, except for the space."""
    changes: list[tuple[str, str]] = []
    tried, own = state.entry(BASELINE).config, with_tuples(now.baseline or {})
    for name in sorted(RESERVED):
        if (was := tried.get(name)) is not None and was != own.get(name):
            changes.append(("settings", f"the default's {name} was {was!r} and is {own.get(name)!r}"))
    if header.fingerprint != now.fingerprint or (header.code and header.code != now.code):
        changes.append(("kernel", "the source of the kernel, its inputs, its reference or its checks has changed"))
    if header.target != now.target:
        changes.append(("target", f"it was {header.target} and is {now.target}"))
    before = {device.name for device in state.devices.values()}
    if before and (new := sorted({device.name for device in devices} - before)):
        changes.append(("device", f"it was {', '.join(sorted(before))}, and this run uses {', '.join(new)}"))
    versions = state.resumed.versions if state.resumed else header.versions
    for name in sorted(versions.keys() | now.versions.keys()):
        old, current = versions.get(name, "not installed"), now.versions.get(name, "not installed")
        if old != current:
            changes.append(("versions", f"{name} was {old} and is {current}"))
    old, current = (f"{run.strategy} with seed {run.settings.get('seed')}" for run in (header, now))
    if old != current:
        changes.append(("settings", f"the strategy was {old} and is {current}"))
    if header.torch != now.torch:
        usual = "its own defaults"
        changes.append(("settings", f"torch computed with {header.torch or usual}, now with {now.torch or usual}"))
    for group, names in MEASURING.items():
        was, given = header.settings.get(group, {}), now.settings.get(group, {})
        for name in names:
            if name in was and with_tuples({name: was[name]}) != with_tuples({name: given.get(name)}):
                changes.append(("settings", f"{name} was {was[name]!r} and is {given.get(name)!r}"))
    return changes


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Return `parts` as a tuple. Raises `UsageError` for a name that is not in `PARTS`."""
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable) or not all(part in PARTS for part in parts):
        raise UsageError(f"accept: give some of {', '.join(PARTS)}, got {parts!r}")
    return tuple(parts)


def _values(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "without arguments"

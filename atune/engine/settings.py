"""What a run is asked for: its settings, the header that records them, and what of it may differ once it is resumed."""

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


# ---- what differs from the work of a journal

PARTS = ("kernel", "target", "device", "versions", "settings")
"""Parts of the work that may differ when a run is resumed; each can be accepted by its name."""
ANOTHER = "Give another journal"


def check_same_work(
    state: State, now: RunStarted, devices: Sequence[DeviceInfo], accept: Sequence[str]
) -> tuple[str, ...]:
    """Return the accepted differences between the journal's work and `now`, the header that a new run would have.

    Raises `JournalError` with the others, and if the space differs.
    """
    header = state.header
    assert header is not None
    both = header.baseline is not None and now.baseline is not None
    if header.space != now.space or (both and bool(header.refused) != bool(now.refused)):
        now_has = f"has {now.total:,}" if header.total != now.total else "has others"
        if header.space == now.space:
            now_has = "its constraints judged the default otherwise"
        raise JournalError(
            f"the journal records another space: it had {header.total:,} candidates and {now_has}. Give the space as "
            "it was, or begin a new journal that takes this one as advice (--warm, warm=)"
        )
    found = _changed_parts(header, state, now, devices)
    return all_accepted(found, accept, "the journal records other work, and cannot be resumed", ANOTHER)


def all_accepted(found: Sequence[tuple[str, str]], accept: Sequence[str], why: str, instead: str) -> tuple[str, ...]:
    """Return what is `found`, parts with a sentence, as sentences. Raises `JournalError` unless all is accepted.

    `why`, `instead`: the beginning of the message, and what else there is to do.
    """
    if refused := [(part, text) for part, text in found if part not in accept]:
        lines = "".join(f"\n  {part}: {text}" for part, text in refused)
        options = " ".join(f"--accept {part}" for part in dict.fromkeys(part for part, _ in refused))
        raise JournalError(f"{why}:{lines}\n{instead}, or accept this: {options} (from Python: accept=[…])")
    return tuple(f"{part}: {text}" for part, text in found)


def check_code(compile: CompileSettings, config: Mapping[str, Any], accept: Sequence[str]) -> None:
    """Raise `JournalError` for settings and a configuration of a journal that may hold a stranger's code.

    What changes the compiled code, such as a flag, may also load a plugin or run a program: it must be the default, or
    be accepted.
    """
    usual = CompileSettings()
    given = {name: getattr(compile, name) for name in MEASURING["compile"]}
    found = [(name, value) for name, value in given.items() if value != getattr(usual, name)]
    found += [(name, value) for name in sorted(RESERVED) if (value := config.get(name)) is not None]
    listed = [("settings", f"{name} is {value!r}") for name, value in found]
    all_accepted(listed, accept, "the journal has settings that can run programs", "Give them yourself")


def _changed_parts(
    header: RunStarted, state: State, now: RunStarted, devices: Sequence[DeviceInfo]
) -> list[tuple[str, str]]:
    """Return (part, sentence) for each difference between the work and the header, except for the space."""
    found: list[tuple[str, str]] = []
    tried, own = state.entry(BASELINE).config, with_tuples(now.baseline or {})
    for name in sorted(RESERVED):
        if (was := tried.get(name)) is not None and was != own.get(name):
            found.append(("settings", f"the default's {name} was {was!r} and is {own.get(name)!r}"))
    if config_key(header.arguments) != config_key(now.arguments):
        found.append(("kernel", f"the problem was {_values(header.arguments)} and is {_values(now.arguments)}"))
    elif header.fingerprint != now.fingerprint or (header.code and header.code != now.code):
        found.append(
            ("kernel", "the source of the kernel, its inputs or its reference, or how results are checked, changed")
        )
    if header.target != now.target:
        found.append(("target", f"it was {header.target} and is {now.target}"))
    before = {device.name for device in state.devices.values()}
    if before and (new := sorted({device.name for device in devices} - before)):
        found.append(("device", f"measured on {', '.join(sorted(before))} before, and now on {', '.join(new)}"))
    versions = state.resumed.versions if state.resumed else header.versions
    for name in sorted(versions.keys() | now.versions.keys()):
        was, here = versions.get(name, "not there"), now.versions.get(name, "not there")
        if was != here:
            found.append(("versions", f"{name} was {was} and is {here}"))
    if (header.strategy, header.settings.get("seed")) != (now.strategy, now.settings.get("seed")):
        was = f"{header.strategy} with seed {header.settings.get('seed')}"
        found.append(("settings", f"the strategy was {was} and is {now.strategy} with seed {now.settings.get('seed')}"))
    if header.torch != now.torch:
        usual = "its own defaults"
        found.append(("settings", f"torch computed by {header.torch or usual} and computes by {now.torch or usual}"))
    for group, names in MEASURING.items():
        one, other = header.settings.get(group, {}), now.settings.get(group, {})
        for name in names:
            if name in one and with_tuples({name: one[name]}) != with_tuples({name: other.get(name)}):
                found.append(("settings", f"{name} was {one[name]!r} and is {other.get(name)!r}"))
    return found


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Return `parts` as a tuple. Raises `UsageError` for a name that is not in `PARTS`."""
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable) or not all(part in PARTS for part in parts):
        raise UsageError(f"accept: give some of {', '.join(PARTS)}, got {parts!r}")
    return tuple(parts)


def _values(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "without arguments"

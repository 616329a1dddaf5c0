"""Settings for compiling and measuring, and the budget of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from atune.errors import UsageError
from atune.model.candidate import MUST_BE_PASS_CONFIGS, as_written
from atune.model.options import Count, Natural, Positive, Settings, documented, option, options_of, size

_BUDGETS = "give auto, a number of candidates (40), a share of them (10%), a time (90s), or several of these (auto,90s)"
AUTO_PERCENT, AUTO_LEAST = 10, 16
"""Largest percentage of a space that the budget ``auto`` tries, and the number of candidates that it always allows."""
AUTO_BATCH, AUTO_GAIN_PERCENT = 8, 2
"""The budget ``auto`` ends if `AUTO_BATCH` candidates improve the latency by less than `AUTO_GAIN_PERCENT` %."""


def _limit(text: str) -> tuple[str, Any]:
    """Parse a limit of a budget into its field and value. Raises `ValueError`."""
    text = text.strip()
    if text == "auto":
        return "auto", True
    if text[-1:] in ("s", "m", "h"):
        return "seconds", float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
    return ("percent", float(text[:-1])) if text.endswith("%") else ("candidates", int(text))


@documented
class Budget(Settings, frozen=True, kw_only=True):
    """Limits of a run. The run ends when it reaches any of the limits."""

    # fmt: off
    candidates: Annotated[Count | None, option("Number of candidates to try.")] = None
    seconds: Annotated[Positive | None, option("Number of seconds that the run may take.")] = None
    percent: Annotated[Annotated[float, Meta(gt=0, le=100)] | None, option(
        "Number of candidates to try, as a percentage of the space.",
    )] = None
    auto: Annotated[bool, option(
        "Stop if eight candidates bring a gain below 2 %, or after 10 % of the space (at least 16 candidates).",
    )] = False
    # fmt: on

    @property
    def limited(self) -> bool:
        """Whether the budget can end a run before every candidate is tried."""
        return self.auto or any(limit is not None for limit in (self.candidates, self.seconds, self.percent))

    def most(self, total: int) -> int | None:
        """Return how many of `total` candidates may be tried, at least one; None if this number has no limit."""
        shares = [(self.percent, 1)] + ([(AUTO_PERCENT, AUTO_LEAST)] if self.auto else [])
        limits = [max(least, math.ceil(round(total * share / 100, 6))) for share, least in shares if share is not None]
        return min([*limits, *([] if self.candidates is None else [self.candidates])], default=None)

    def used_up(self, wall_s: float) -> bool:
        """Return whether a run that has taken `wall_s` seconds has reached the time limit."""
        return self.seconds is not None and wall_s >= self.seconds

    @classmethod
    def parse(cls, text: str | int | float | Budget | None) -> Budget:
        """Parse ``"auto"``, ``40`` (candidates), ``"10%"``, ``"90s"`` or ``"2m"`` (time), or several: ``"40,90s"``.

        Raises `UsageError` for anything else.
        """
        if text is None:
            return cls()
        if isinstance(text, Budget):
            return text
        if isinstance(text := as_written(text), int):
            return cls(candidates=text)
        if not isinstance(text, str):
            raise UsageError(f"budget {text!r}: {_BUDGETS}")
        try:
            limits = dict(map(_limit, text.split(",")))
        except ValueError:
            raise UsageError(f"budget {text!r}: {_BUDGETS}") from None
        if len(limits) <= text.count(","):
            raise UsageError(f"budget {text!r} has two limits of the same kind: {_BUDGETS}")
        return cls(**limits)


CPU_FLAGS = ("-O3", "-march=native")
"""g++'s flags for `target="c"`. These flags make g++ optimise. Without optimisation, as in tilelang's call of g++, all
tiles would take about the same time."""


@documented
class CompileSettings(Settings, frozen=True, kw_only=True):
    """Settings for compiling candidates."""

    # fmt: off
    workers: Annotated[Count | None, option(
        "Number of compile processes. There is at most one per GiB of free memory, and one core is left for measuring.",
        flag="--workers", metavar="N", unset="by the cores",
    )] = None
    group_size: Annotated[Count | None, option(
        "Number of candidates to compile into one library. 1 turns grouping off.",
        flag="--group-size", metavar="N", unset="the engine's choice",
    )] = None
    compile_timeout_s: Annotated[Positive, option(
        "Seconds that lowering a candidate, or compiling a group, may take before its processes are killed.",
        flag="--compile-timeout", metavar="S",
    )] = 120.0
    flags: Annotated[tuple[str, ...] | None, option(
        "Flags of the device compiler, as a list of strings such as ``('-O2', '-g')``. They replace the target's "
        "flags, which are `-O3 -march=native` on the CPU. A candidate's own `compile_flags` take precedence.",
        must="must be a list of strings, such as ('-O2', '-g')", measured=True, unset="the target's",
    )] = None
    pass_configs: Annotated[Mapping[str, Any], option(
        "TileLang's pass configuration for every candidate, such as ``{'tl.enable_fast_math': True}``. A candidate's "
        "own `pass_configs` take precedence.",
        must=MUST_BE_PASS_CONFIGS, measured=True,
    )] = {}
    cicc: Annotated[bool, option(
        "Compile device code with nvcc's own programs, so that the headers are parsed only once.",
        flag="--cicc", page="design/cicc.md",
    )] = True
    store: Annotated[bool, option(
        "Use libraries that earlier runs compiled from the same code, and keep new libraries for later runs.",
        page="cache.md#libraries",
    )] = True
    target_host: Annotated[Annotated[str, Meta(pattern=r"^\s*((c|llvm)(\s|$)|\{)")] | None, option(
        "TileLang's target for host code: ``c`` or ``llvm``.", must="must be a target such as 'c' or 'llvm'",
        measured=True, unset="TileLang's choice",
    )] = None
    layouts: Annotated[Count | None, option(
        "Compile and measure only the N best layouts of each configuration, for axes from `atune.layout`.",
        flag="--layouts", metavar="N", unset="all",
        page="layout.md#the-best-few-before-anything-is-measured",
    )] = None
    # fmt: on


@documented
class BenchmarkSettings(Settings, frozen=True, kw_only=True):
    """Settings for checking and timing candidates."""

    # fmt: off
    n_warmup: Annotated[Natural, option(
        "Number of calls before the first sample.", flag="--warmup", metavar="N", measured=True,
    )] = 3
    n_repeat: Annotated[Count, option(
        "Number of samples in the first timing.", flag="--rep", metavar="N", measured=True,
    )] = 20
    warmup_ms: Annotated[Positive | None, option(
        "Milliseconds of calls before the first sample, in place of `n_warmup`.", measured=True,
    )] = None
    rep_ms: Annotated[Positive | None, option(
        "Milliseconds of calls in the first timing, in place of `n_repeat`.", measured=True,
    )] = None
    l2: Annotated[Literal["cold", "warm"], option(
        "State of a GPU's L2 cache when a timed call begins: ``cold`` (emptied) or ``warm`` (with the previous call's "
        "data). Choose ``warm`` if your program calls the kernel with inputs in the cache, as in a decode step.",
        must="must be 'cold' or 'warm'", flag="--l2", metavar="cold|warm", measured=True, page="concepts.md#timing",
    )] = "cold"
    adaptive: Annotated[bool, option(
        "Take fewer samples of candidates that are clearly slower than the best candidate so far. Take up to four "
        "times as many samples of short calls whose times vary.",
        measured=True,
    )] = True
    early_stop_factor: Annotated[Annotated[float, Meta(ge=1)] | None, option(
        "Take no more samples of a candidate if each of its first three samples is slower than the best latency by at "
        "least this factor. The factor must be at least 1, and has no effect without `adaptive`.",
        measured=True, unset="1.5, and 1.1 after eight samples",
    )] = None
    benchmark_timeout_s: Annotated[Positive, option(
        "Seconds that loading, checking and timing a candidate may take before its process is killed.",
        flag="--timeout", metavar="S",
    )] = 60.0
    check: Annotated[bool, option(
        "Compare each candidate's outputs with the reference before the candidate is timed.",
        flag="--skip-check", measured=True,
    )] = True
    cache_inputs: Annotated[bool, option(
        "Make the inputs once per device, and use them for every candidate. If False, each candidate gets new inputs.",
        flag="--cache-inputs", measured=True,
    )] = True
    memory_limit: Annotated[int | str | None, option(
        "Device memory, such as ``4GiB``, that this program's device processes may use on a GPU in total. A candidate "
        "that needs more memory fails as `out_of_memory`.",
        check=size, flag="--memory-limit", metavar="SIZE", measured=True, page="how/memory.md",
    )] = None
    same_bits: Annotated[Literal["default"] | None, option(
        "With ``default``, a candidate may win only if its outputs have the same bits as the default's outputs.",
        must="must be 'default'", flag="--same-bits", metavar="default", page="how/bits.md",
    )] = None
    n_final: Annotated[Natural, option(
        "Number of the best candidates to time again in the final, while nothing compiles. 0 means no final.",
        page="concepts.md#final",
    )] = 5
    n_final_rounds: Annotated[Count, option(
        "Number of rounds in the final. In each round, every finalist is timed once. While the order of the best "
        "finalists is unclear, these finalists get another set of rounds, up to ten sets.",
    )] = 20
    # fmt: on


MEASURING = {
    group: tuple(name for name, option in options_of(kind).items() if option.measured)
    for group, kind in {"compile": CompileSettings, "benchmark": BenchmarkSettings}.items()
}
"""Names of settings that affect measurements, by group."""

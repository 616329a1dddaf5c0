"""Settings for compiling and measuring. They are checked when they are made."""

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
"""The budget ``auto`` tries at most this share of a space, or so many candidates if that is more."""
AUTO_BATCH, AUTO_GAIN_PERCENT = 8, 2
"""It ends once so many in a row brought nothing that is this much faster."""


def _limit(text: str) -> tuple[str, Any]:
    """Return one limit of a budget, as its field and value. Raises ValueError."""
    text = text.strip()
    if text == "auto":
        return "auto", True
    if text[-1:] in ("s", "m", "h"):
        return "seconds", float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
    return ("percent", float(text[:-1])) if text.endswith("%") else ("candidates", int(text))


@documented
class Budget(Settings, frozen=True, kw_only=True):
    """Limits of a run, of which the first to be reached ends it."""

    # fmt: off
    candidates: Annotated[Count | None, option("How many candidates are tried.")] = None
    seconds: Annotated[Positive | None, option("Seconds of the run.")] = None
    percent: Annotated[Annotated[float, Meta(gt=0, le=100)] | None, option(
        "How many candidates are tried, in percent of the space.",
    )] = None
    auto: Annotated[bool, option(
        "Stop after eight in a row of which none is 2 % faster; at the latest after a tenth, or 16 if that is more.",
    )] = False
    # fmt: on

    @property
    def limited(self) -> bool:
        """Whether it can end a run before every candidate is tried."""
        return self.auto or any(limit is not None for limit in (self.candidates, self.seconds, self.percent))

    def most(self, total: int) -> int | None:
        """Return how many of `total` candidates it admits, at least one; None without such a limit."""
        shares = [(self.percent, 1)] + ([(AUTO_PERCENT, AUTO_LEAST)] if self.auto else [])
        found = [max(least, math.ceil(round(total * share / 100, 6))) for share, least in shares if share is not None]
        return min([*found, *([] if self.candidates is None else [self.candidates])], default=None)

    def used_up(self, wall_s: float) -> bool:
        """Tell whether the time limit is reached, from the run's wall seconds."""
        return self.seconds is not None and wall_s >= self.seconds

    @classmethod
    def parse(cls, text: str | int | float | Budget | None) -> Budget:
        """Read ``"auto"``, ``40`` (candidates), ``"10%"``, ``"90s"`` / ``"2m"`` (time), or several: ``"40,90s"``.

        Raises `UsageError` for others.
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
            raise UsageError(f"budget {text!r}: it has two limits of one kind: {_BUDGETS}")
        return cls(**limits)


CPU_FLAGS = ("-O3", "-march=native")
"""g++'s optimisation flags for `target="c"`. tilelang itself passes none, and then every tile takes the same time."""


@documented
class CompileSettings(Settings, frozen=True, kw_only=True):
    """How candidates become artifacts."""

    # fmt: off
    workers: Annotated[Count | None, option(
        "Compile processes. Free memory limits them, too (1 GiB per worker). A core is kept for measuring.",
        flag="--workers", metavar="N", unset="by the cores",
    )] = None
    group_size: Annotated[Count | None, option(
        "Candidates that are compiled into one library. 1 turns grouping off.",
        flag="--group-size", metavar="N", unset="the engine's choice",
    )] = None
    compile_timeout_s: Annotated[Positive, option(
        "Seconds that one lowering, or the compile of one group, may take. Then its processes are killed.",
        flag="--compile-timeout", metavar="S",
    )] = 120.0
    flags: Annotated[tuple[str, ...] | None, option(
        "Flags of the device compiler, one per text, such as ``('-O2', '-g')``. They replace the target's default, "
        "which is `-O3 -march=native` on the CPU. A candidate's own `compile_flags` take precedence.",
        must="must be a list of texts, such as ('-O2', '-g')", measured=True, unset="the target's",
    )] = None
    pass_configs: Annotated[Mapping[str, Any], option(
        "TileLang's pass configuration for every candidate, such as ``{'tl.enable_fast_math': True}``. A candidate's "
        "own `pass_configs` take precedence.",
        must=MUST_BE_PASS_CONFIGS, measured=True,
    )] = {}
    cicc: Annotated[bool, option(
        "Compile device code by nvcc's own programs, with the headers parsed once.",
        flag="--cicc", page="design/cicc.md",
    )] = True
    store: Annotated[bool, option(
        "Use libraries that earlier runs built from the same code, and keep new ones.",
        page="cache.md#libraries",
    )] = True
    target_host: Annotated[Annotated[str, Meta(pattern=r"^\s*((c|llvm)(\s|$)|\{)")] | None, option(
        "TileLang's target for host code: ``c`` or ``llvm``.", must="must be a target such as 'c' or 'llvm'",
        measured=True, unset="TileLang's choice",
    )] = None
    layouts: Annotated[Count | None, option(
        "Compile and measure the N best layouts of each configuration, of the axes that `atune.layout` declares.",
        flag="--layouts", metavar="N", unset="all",
        page="layout.md#the-best-few-before-anything-is-measured",
    )] = None
    # fmt: on


@documented
class BenchmarkSettings(Settings, frozen=True, kw_only=True):
    """How artifacts are checked and timed."""

    # fmt: off
    n_warmup: Annotated[Natural, option(
        "Calls before the first sample.", flag="--warmup", metavar="N", measured=True,
    )] = 3
    n_repeat: Annotated[Count, option(
        "Samples of the first timing.", flag="--rep", metavar="N", measured=True,
    )] = 20
    warmup_ms: Annotated[Positive | None, option(
        "Milliseconds of calls before the first sample, in place of `n_warmup`.", measured=True,
    )] = None
    rep_ms: Annotated[Positive | None, option(
        "Milliseconds of the first timing, in place of `n_repeat`.", measured=True,
    )] = None
    l2: Annotated[Literal["cold", "warm"], option(
        "A GPU's L2 cache when a timed call begins: ``cold``, emptied, or ``warm``, with the data of the call before. "
        "Take warm for a kernel whose inputs are still in the cache where you use it, such as a decode step.",
        must="must be 'cold' or 'warm'", flag="--l2", metavar="cold|warm", measured=True, page="concepts.md#timing",
    )] = "cold"
    adaptive: Annotated[bool, option(
        "Take fewer samples of candidates that are clearly slower than the best so far. Take up to four times as many "
        "of short calls whose samples scatter.",
        measured=True,
    )] = True
    early_stop_factor: Annotated[Annotated[float, Meta(ge=1)] | None, option(
        "How many times slower than the best all of a candidate's first three samples must be for it to get no more. "
        "At least 1; needs `adaptive`.",
        measured=True, unset="1.5, and 1.1 after eight samples",
    )] = None
    benchmark_timeout_s: Annotated[Positive, option(
        "Seconds that loading, checking and timing one candidate may take. Then its process is killed.",
        flag="--timeout", metavar="S",
    )] = 60.0
    check: Annotated[bool, option(
        "Compare each candidate's outputs with the reference before it is timed.", flag="--skip-check", measured=True,
    )] = True
    cache_inputs: Annotated[bool, option(
        "Make the inputs once per device and use them for every candidate. False makes them for each one.",
        flag="--cache-inputs", measured=True,
    )] = True
    memory_limit: Annotated[int | str | None, option(
        "Device memory, such as ``4GiB``, that all device processes of this program together may use on a GPU. "
        "A candidate that needs more fails as `out_of_memory`.",
        check=size, flag="--memory-limit", metavar="SIZE", measured=True, page="how/memory.md",
    )] = None
    same_bits: Annotated[Literal["default"] | None, option(
        "``default``: only candidates may win whose outputs have the same bits as the default configuration's.",
        must="must be 'default'", flag="--same-bits", metavar="default", page="how/bits.md",
    )] = None
    n_final: Annotated[Natural, option(
        "How many of the best candidates are timed again in the final, without compiles. 0 skips the final.",
        page="concepts.md#final",
    )] = 5
    n_final_rounds: Annotated[Count, option(
        "Rounds of the final. Each round times every finalist once. While the order is unclear, the best few get as "
        "many rounds again, ten times in all at most.",
    )] = 20
    # fmt: on


MEASURING = {
    group: tuple(name for name, found in options_of(kind).items() if found.measured)
    for group, kind in {"compile": CompileSettings, "benchmark": BenchmarkSettings}.items()
}
"""Settings that change a measurement, by group."""

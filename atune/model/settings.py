"""Settings for compiling and measuring. They are checked when they are made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.model.budget import Budget as Budget
from atune.model.candidate import why_no_pass_configs
from atune.model.checks import SettingsMeta, positive, switches, whole

ACCELERATORS = ("swizzle_lowering", "cicc")
"""Names of the accelerators, which can be switched off, in the order in which they wrap each other."""
ACCELERATE = "ATUNE_ACCELERATE"
"""Environment variable that replaces ``auto``."""


def bare(accelerator: str) -> str:
    """Return the name of an accelerator ``name@version``."""
    return accelerator.partition("@")[0]


CPU_FLAGS = ("-O3", "-march=native")
"""g++'s optimisation flags for `target="c"`. tilelang itself passes none, and then every tile takes the same time."""


def _flags(value: Any) -> tuple[str, ...] | None:
    """Return a compiler's flags as a tuple; None stays. Raises `UsageError` for anything but a list of texts."""
    if isinstance(value, str):
        meant = tuple(value.split()) or None
        raise UsageError(f"CompileSettings: flags must be a list of texts, got {value!r}: did you mean {meant!r}?")
    if value is not None and not (isinstance(value, (list, tuple)) and all(isinstance(flag, str) for flag in value)):
        raise UsageError(f"CompileSettings: flags must be a list of texts, such as ('-O2', '-g'), got {value!r}")
    return None if value is None else tuple(value)


class Acceleration(msgspec.Struct, frozen=True):
    """The accelerators that may be used. `auto`: those that pay, except `without`; otherwise those `named`."""

    auto: bool
    named: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: object, where: str) -> Acceleration:
        """Read ``auto``, ``off``, names, or ``auto`` except some. Raises `UsageError`, naming `where`."""
        words = [word.strip() for word in text.split(",")] if isinstance(text, str) else []
        auto, names = words[:1] == ["auto"], words[words[:1] == ["auto"] :]
        without = [name.removeprefix("-") for name in names if name.startswith("-")]
        named = [name for name in names if not name.startswith("-") and name != "off"]
        unknown = next((name for name in [*named, *without] if name not in ACCELERATORS and ":" not in name), None)
        if (
            unknown is not None
            or not words
            or ("off" in words and len(words) > 1)
            or (auto and named)
            or (without and not auto)
        ):
            raise UsageError(
                f"{where} {text!r}: use auto, off, names from {', '.join(ACCELERATORS)}, or auto less some (auto,-cicc)"
            )
        return cls(auto, tuple(named), tuple(without))

    def may(self, name: str) -> bool:
        """Tell whether the accelerator `name` may be used."""
        return name in self.named or (self.auto and name not in self.without)


class CompileSettings(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """How candidates become artifacts.

    `workers`: compile processes. None takes the cores that this process may use, except one that is kept for measuring.
    Free memory limits them, too (1 GiB per worker).
    `group_size`: candidates merged into one library; None lets the engine decide, 1 turns grouping off.
    `compile_timeout_s`: seconds that one lowering, or one codegen call of a group, may take. Then its processes are
    killed.
    `end_hopeless`: kill a compile earlier that takes far longer than the run's others, but not within 10 s, and not
    the default configuration's.
    `flags`: flags of the device compiler, one per text, such as ``("-O2", "-g")``. None takes the target's default,
    `-O3 -march=native` on the CPU; given flags replace it. A candidate's own `compile_flags` take precedence.
    `accelerate`: accelerators that may be used: ``auto`` (those that pay), ``off``, names such as
    ``cicc,swizzle_lowering``, or ``auto`` except some, such as ``auto,-cicc``. The variable ATUNE_ACCELERATE replaces
    ``auto``.
    `prove`: compile the winner again with every accelerator off, and compare sources and code.
    `store`: use libraries that an earlier run built from the same code, and keep those that this run builds.
    `pass_configs`: TileLang pass configuration for every candidate, such as ``{"tl.enable_fast_math": True}``; a
    candidate's own `pass_configs` take precedence.
    `target_host`: TileLang's target for host code, ``c`` or ``llvm``; None takes TileLang's own choice.
    `verbose`: keep the compiler output, including ptxas' figures, in the `ArtifactBuilt` events.
    `layouts`: how many layouts of each configuration are compiled and measured: those with the least redundant work.
    None takes all. Layouts are the axes that `atune.layout` declares for fragments and loops.

    Raises `UsageError`, with a suggestion, for a wrong name or value.
    """

    workers: int | None = None
    group_size: int | None = None
    compile_timeout_s: float = 120.0
    end_hopeless: bool = True
    flags: tuple[str, ...] | None = None
    pass_configs: Mapping[str, Any] = {}
    accelerate: str = "auto"
    prove: bool = True
    store: bool = True
    target_host: str | None = None
    verbose: bool = False
    layouts: int | None = None

    def __post_init__(self) -> None:
        positive("CompileSettings", "workers", self.workers, optional=True, integral=True)
        positive("CompileSettings", "group_size", self.group_size, optional=True, integral=True)
        positive("CompileSettings", "compile_timeout_s", self.compile_timeout_s)
        positive("CompileSettings", "layouts", self.layouts, optional=True, integral=True)
        Acceleration.parse(self.accelerate, "CompileSettings: accelerate")
        switches(self, "end_hopeless", "prove", "store", "verbose")
        msgspec.structs.force_setattr(self, "flags", _flags(self.flags))
        if why := why_no_pass_configs(self.pass_configs):
            raise UsageError(f"CompileSettings: {why}")
        host = self.target_host
        if host is not None and not (isinstance(host, str) and host.strip()):
            raise UsageError(f"CompileSettings: target_host must be a text such as 'c', got {host!r}")
        if host is not None and host.split()[0] not in ("c", "llvm") and not host.lstrip().startswith("{"):
            raise UsageError(f"CompileSettings: target_host {host!r} is unknown: use 'c' or 'llvm'")

    @property
    def acceleration(self) -> Acceleration:
        """The value of `accelerate`, or that of the environment if it is ``auto``."""
        variable = os.environ.get(ACCELERATE)
        if self.accelerate == "auto" and variable:
            return Acceleration.parse(variable, ACCELERATE)
        return Acceleration.parse(self.accelerate, "CompileSettings: accelerate")


class BenchmarkSettings(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """How artifacts are checked and timed.

    `n_warmup`, `n_repeat`: calls before the first sample, and samples of the first timing.
    `warmup_ms`, `rep_ms`: the same as times; they replace the counts if they are given.
    `adaptive`: take fewer samples of candidates that are clearly slower than the best so far. Take up to four times as
    many of short calls whose samples scatter.
    `method`: ``auto``, ``events``, ``cuda_graph`` or ``cupti`` on GPUs; tilelang's ``event`` and ``cudagraph`` mean the
    first two. The CPU has one method, ``perf_counter``, and ``auto`` and tilelang's ``wall`` mean it there.
    `benchmark_timeout_s`: seconds that loading, checking and timing one candidate may take; then its process is killed.
    `check`: compare each candidate's outputs with the reference before it is timed.
    `cache_inputs`: make the inputs once per device and use them for every candidate; False makes them for each one.
    `input_seed`: seeds torch before inputs are made.
    `n_final`: how many of the best candidates are timed again, interleaved, without compiles; 0 skips the final.
    `n_final_rounds`: rounds of that final; each round times every finalist once.
    `n_final_limit`: maximum of rounds: while the order is unclear, the best few get as many rounds again.
    `standby`: keep a second process with a context on each GPU, which takes over when the first one is lost. None keeps
    one after 32 candidates, on GPUs with enough free memory, unless only two cores can compile. It keeps none on the
    CPU, where a new process starts at once.
    `energy`: run finalists 0.3 s longer each, for their power and energy, on GPUs that count it.
    `mixed_devices`: allow GPUs of different models (of one architecture) in one run.

    Raises `UsageError`, with a suggestion, for a wrong name or value.
    """

    n_warmup: int = 3
    n_repeat: int = 20
    warmup_ms: float | None = None
    rep_ms: float | None = None
    adaptive: bool = True
    method: str = "auto"
    benchmark_timeout_s: float = 60.0
    check: bool = True
    cache_inputs: bool = True
    input_seed: int = 0
    n_final: int = 5
    n_final_rounds: int = 20
    n_final_limit: int = 200
    standby: bool | None = None
    mixed_devices: bool = False
    energy: bool = False

    def __post_init__(self) -> None:
        where = "BenchmarkSettings"
        positive(where, "n_repeat", self.n_repeat, integral=True)
        positive(where, "benchmark_timeout_s", self.benchmark_timeout_s)
        positive(where, "n_final_rounds", self.n_final_rounds, integral=True)
        positive(where, "n_final_limit", self.n_final_limit, integral=True)
        positive(where, "warmup_ms", self.warmup_ms, optional=True)
        positive(where, "rep_ms", self.rep_ms, optional=True)
        msgspec.structs.force_setattr(self, "method", _method(self.method))
        for name in ("n_warmup", "n_final"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"{where}: {name} must be a whole number, zero or more, got {value!r}")
        whole(f"{where}: input_seed", self.input_seed)
        switches(self, "adaptive", "check", "cache_inputs", "mixed_devices", "energy")
        if self.standby is not None:
            switches(self, "standby")


METHODS = {
    "auto": "auto", "events": "events", "event": "events", "cuda_graph": "cuda_graph", "cudagraph": "cuda_graph",
    "cupti": "cupti", "perf_counter": "perf_counter", "wall": "perf_counter",
}  # fmt: skip
"""atune's name of each timing method, by atune's and by tilelang's names."""


def _method(name: Any) -> str:
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if name in ("msprof", "msprof_detail"):
        raise UsageError(f"BenchmarkSettings: method {name!r} is for other devices: use 'events' or 'cuda_graph'")
    raise UsageError(f"BenchmarkSettings: method {name!r} is unknown: use {', '.join(METHODS)}")

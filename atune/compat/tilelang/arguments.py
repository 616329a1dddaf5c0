"""Values of the parameters of tilelang's tuner: their checks, by name, and the two records that keep them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from atune.errors import UsageError
from atune.model.candidate import MUST_BE_PASS_CONFIGS
from atune.model.options import Amount, Count, Natural, Share, converted
from atune.stages import tilelang
from atune.workload.options import SUPPLIES, supply_name


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. Also a ValueError, like that of tilelang's tuner."""


Function = Callable[..., Any] | None
_BOOL, _FUNCTION = (bool, ""), (Callable[..., Any], "must be a function")
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("benchmark_multi_gpu", "cache_input_tensors", "early_stop", "enable_grouped_compile"), _BOOL),
    **dict.fromkeys(("skip_check", "use_pipeline", "verbose"), _BOOL),
    **dict.fromkeys(("manual_check_prog", "ref_prog", "supply_prog"), _FUNCTION),
    **dict.fromkeys(("atol", "rtol"), (Amount, "")),
    "backend": (
        Literal["event", "events", "cudagraph", "cuda_graph", "auto", "perf_counter", "wall", "cupti"],
        "must be 'event', 'cudagraph' or 'cupti'",
    ),
    "benchmark_devices": (Sequence[Natural], "must be numbers of GPUs, such as [0, 1]"),
    "do_not_specialize": (str | Sequence[str], "must be names of arguments, such as ['M', 'N']"),
    "early_stop_factor": (Annotated[float, Meta(ge=1)], ""),
    "group_compile_size": (Count, ""),
    "max_mismatched_ratio": (Share, ""),
    "out_idx": (int | Sequence[int], "must be a position of an output, such as -1, or several"),
    "pass_configs": (Mapping[str, Any], MUST_BE_PASS_CONFIGS),
    "rep": (Count, ""),
    "timeout": (float, ""),
    "warmup": (Natural, ""),
}
"""By a parameter's name its type, and what it must be where msgspec's words are not the caller's."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `given`. Raises `ArgumentError`, naming the parameter, for a wrong value."""
    for name, value in given.items():
        if name in _KINDS and value is not None:
            converted(name, value, *_KINDS[name], ArgumentError)
    if "supply_type" in given and supply_name(given["supply_type"]) not in SUPPLIES:
        raise ArgumentError(f"supply_type {given['supply_type']!r} is unknown: give {', '.join(SUPPLIES)}")
    return dict(given)


@dataclass(frozen=True)
class CompileArgs:
    """Arguments of `tilelang.compile`, which candidates are compiled with.

    `out_idx`: positions of the outputs that the kernel returns. None: it writes into tensors that it is given.
    `target`: ``auto``, ``cuda``, an arch as ``{"kind": "cuda", "arch": "sm_90a"}``, ``c`` for the CPU, or a TVM target.
    `target_host`: the target of host code: a text, a dict or a TVM target. None: tilelang's own choice.
    `execution_backend`: ``auto``; for CUDA ``tvm_ffi``, for the CPU ``cython``. Others warn.
    `pass_configs`: TileLang pass configuration. `compile_flags`: flags of the device compiler.
    `verbose`: show progress.
    """

    out_idx: list[int] | int | None = None
    execution_backend: str = "auto"
    target: Any = "auto"
    target_host: Any = None
    verbose: bool = False
    pass_configs: dict[str, Any] | None = None
    compile_flags: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checked(vars(self))

    def compile_program(self, program: Any) -> Any:
        """Compile one PrimFunc with tilelang. Returns its `JITKernel`."""
        flags = list(self.compile_flags) if self.compile_flags else None
        return tilelang.compile(program, **{**vars(self), "compile_flags": flags})

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class ProfileArgs:
    """Checks and timing of candidates.

    `warmup`, `rep`: calls before the first sample, and samples. `timeout`: seconds for loading, checking and timing
    one candidate; zero or less sets no deadline. `backend`: the timing method, ``event`` or ``cudagraph``.
    `supply_type`: the distribution of inputs, by tilelang's names; `supply_prog`: a function that returns them instead.
    `ref_prog`: a function of the inputs that returns the expected outputs. `rtol`, `atol`: tolerances, as in
    `torch.testing.assert_close`; `max_mismatched_ratio`: share of elements that may lie outside. `manual_check_prog`: a
    function of outputs and expected outputs that raises if they differ. `skip_check`: compare nothing.
    `cache_input_tensors`: None and True use the same inputs for every candidate, restored before each; False makes
    new ones.
    """

    warmup: int = 25
    rep: int = 100
    timeout: float = 30
    backend: str = "event"
    supply_type: Any = "auto"
    ref_prog: Function = None
    supply_prog: Function = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Function = None
    cache_input_tensors: bool | None = None

    def __post_init__(self) -> None:
        checked(vars(self))

    def __hash__(self) -> int:
        return _stable_hash(self)


PROFILE = [field.name for field in dataclasses.fields(ProfileArgs)]


def _stable_hash(arguments: CompileArgs | ProfileArgs) -> int:
    """Return a hash that is the same in every process. Callbacks count by their presence."""
    text = json.dumps(vars(arguments), sort_keys=True, default=lambda value: callable(value) or str(value))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

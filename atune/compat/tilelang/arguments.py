"""Arguments of tilelang's tuner: for compiling, for checking and timing, and for the run."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

P = ParamSpec("P")
Owner = TypeVar("Owner")
Returned = TypeVar("Returned")


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

    def compile_program(self, program: Any) -> Any:
        """Compile one PrimFunc with tilelang. Returns its `JITKernel`."""
        import tilelang

        flags = list(self.compile_flags) if self.compile_flags else None
        return tilelang.compile(program, **{**vars(self), "compile_flags": flags})

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class ProfileTiming:
    """Amounts of timing per candidate."""

    warmup: int = 25
    rep: int = 100
    timeout: float = 30


@dataclass(frozen=True)
class Timer:
    """The timing method."""

    backend: str = "event"


@dataclass(frozen=True)
class Checks:
    """Inputs of candidates, and checks of their outputs."""

    supply_type: Any = "auto"
    ref_prog: Callable[..., Any] | None = None
    supply_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Callable[..., Any] | None = None
    cache_input_tensors: bool | None = None


@dataclass(frozen=True)
class Pipeline:
    """Distribution of compiling and measuring. None: the engine decides."""

    use_pipeline: bool | None = None
    enable_grouped_compile: bool | None = None
    group_compile_size: int | None = None
    benchmark_devices: Sequence[int] | None = None
    benchmark_multi_gpu: bool | None = None


@dataclass(frozen=True)
class EarlyStop:
    """Whether clearly slow candidates get few samples. None: the engine decides."""

    early_stop: bool | None = None
    early_stop_factor: float | None = None


@dataclass(frozen=True)
class Specialization:
    """Parameters of the kernel whose values do not need tunings of their own."""

    do_not_specialize: Sequence[str] | None = None


@dataclass(frozen=True)
class RunTiming:
    """A run's own `ProfileTiming`. None: not given."""

    warmup: int | None = None
    rep: int | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Decorated:
    """The configurations. `func` is the kernel if the caller forgot the parentheses, for an error message."""

    func: Any = None
    _: KW_ONLY
    configs: Any


# Each of tilelang's interfaces has an order of its own. A dataclass has the fields of its last base first.


@dataclass(frozen=True)
class ProfileArgs(Checks, Timer, ProfileTiming):
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

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class SetProfileArgs(Timer, Checks, ProfileTiming):
    """The arguments of `AutoTuner.set_profile_args`: `ProfileArgs` in another order."""


@dataclass(frozen=True)
class RunArgs(EarlyStop, Pipeline, RunTiming):
    """The arguments of `AutoTuner.run`. None: not given; `set_profile_args` or the engine decides."""


@dataclass(frozen=True)
class AutotuneArgs(Timer, Pipeline, EarlyStop, Specialization, Checks, ProfileTiming, Decorated):
    """The arguments of `autotune`."""

    timeout: float = 100


def values_of(arguments: Any, kind: type) -> dict[str, Any]:
    """Return the `arguments` that are fields of that record, by name."""
    return {field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}


def _stable_hash(arguments: Any) -> int:
    """Return a hash that is the same in every process. Callbacks count by their presence."""

    fields = values_of(arguments, type(arguments))
    text = json.dumps(fields, sort_keys=True, default=lambda value: callable(value) or str(value))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


# The fields of these records are the parameters of functions, written once and visible to `help` and type checkers. A
# function decorated here takes ``*args, **kwargs`` and makes the record from them. For an unknown parameter the record
# raises a TypeError with its name.


def takes(record: Callable[P, object]) -> Callable[[Callable[..., Returned]], Callable[P, Returned]]:
    """Show the fields of the dataclass `record` as the parameters of a function.

    They replace ``*args`` and ``**kwargs`` and follow the parameters that the function names itself. Without
    ``*args`` they are keyword-only.
    """

    def decorated(function: Callable[..., Returned]) -> Callable[P, Returned]:
        _show(function, record)
        return function

    return decorated


def method_takes(
    record: Callable[P, object],
) -> Callable[[Callable[Concatenate[Owner, ...], Returned]], Callable[Concatenate[Owner, P], Returned]]:
    """Show the fields of the dataclass `record` as the parameters of a method, as `takes` does."""

    def decorated(method: Callable[Concatenate[Owner, ...], Returned]) -> Callable[Concatenate[Owner, P], Returned]:
        _show(method, record)
        return method

    return decorated


def _show(function: Any, record: Any) -> None:
    """Set the function's signature and annotations. Does not wrap it, because warnings count frames to its caller."""
    signature = inspect.signature(function)
    own = signature.parameters.values()
    named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    positional = any(p.kind is p.VAR_POSITIONAL for p in own)
    taken = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=field.type,
        )
        for field in dataclasses.fields(record)
        if field.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*named, *taken])
    hints = get_type_hints(record)
    function.__annotations__ = {
        **{p.name: p.annotation for p in named if p.annotation is not p.empty},
        **{p.name: hints[p.name] for p in taken},
        "return": signature.return_annotation,
    }

"""Arguments of tilelang's tuner: for compiling, for checking and timing, and for the run."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from atune.errors import UsageError
from atune.model.candidate import MUST_BE_PASS_CONFIGS, is_pass_configs
from atune.model.settings import METHODS
from atune.stages import tilelang
from atune.workload.options import SUPPLIES, supply_name

P = ParamSpec("P")
Owner = TypeVar("Owner")
Returned = TypeVar("Returned")


class ArgumentError(UsageError, ValueError):
    """An argument cannot work as given. Also a ValueError, like that of tilelang's tuner."""


def _whole(value: Any, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _all(kinds: Any, fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and all(map(fits, value))


_BOOLS = (
    "benchmark_multi_gpu", "cache_input_tensors", "early_stop", "enable_grouped_compile", "skip_check", "use_pipeline",
    "verbose",
)  # fmt: skip
_MUST: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_BOOLS, (lambda it: isinstance(it, bool), "True or False")),
    **dict.fromkeys(("manual_check_prog", "ref_prog", "supply_prog"), (callable, "a function")),
    **dict.fromkeys(("atol", "rtol"), (lambda it: _number(it, 0, sys.float_info.max), "a number, zero or more")),
    "backend": (lambda it: it in (*METHODS, "cupti"), "'event', 'cudagraph' or 'cupti'"),
    "benchmark_devices": (_all(Sequence, lambda it: _whole(it, 0)), "numbers of GPUs, such as [0, 1]"),
    "do_not_specialize": (_all(Iterable, lambda it: isinstance(it, str)), "names of arguments, such as ['M', 'N']"),
    "early_stop_factor": (lambda it: _number(it, 1), ">= 1.0"),
    "group_compile_size": (lambda it: _whole(it, 1), "a whole number above zero"),
    "max_mismatched_ratio": (lambda it: _number(it, 0, 1), "a share, from 0 to 1"),
    "out_idx": (lambda it: _whole(it) or _all(Sequence, _whole)(it), "a position of an output, such as -1, or several"),
    "pass_configs": (is_pass_configs, MUST_BE_PASS_CONFIGS.removeprefix("must be ")),
    "rep": (lambda it: _whole(it, 1), "a whole number above zero"),
    "supply_type": (lambda it: supply_name(it) in SUPPLIES, f"one of {', '.join(SUPPLIES)}"),
    "timeout": (_number, "a number of seconds"),
    "warmup": (lambda it: _whole(it, 0), "a whole number, zero or more"),
}
"""What a parameter's value must be, by name, in every record: a test, and the words for the message."""


class Checked:
    """Refuses a wrong value under its own name when the record is made. Defaults are right."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            fits, wanted = _MUST.get(field.name, (None, ""))
            if fits is not None and value is not field.default and not fits(value):
                raise ArgumentError(f"{field.name} must be {wanted}, got {reprlib.repr(value)}")


@dataclass(frozen=True)
class CompileArgs(Checked):
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
        flags = list(self.compile_flags) if self.compile_flags else None
        return tilelang.compile(program, **{**vars(self), "compile_flags": flags})

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class ProfileTiming(Checked):
    """Amounts of timing per candidate."""

    warmup: int = 25
    rep: int = 100
    timeout: float = 30


@dataclass(frozen=True)
class Timer(Checked):
    """The timing method."""

    backend: str = "event"


@dataclass(frozen=True)
class Checks(Checked):
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
class Pipeline(Checked):
    """Distribution of compiling and measuring. None: the engine decides."""

    use_pipeline: bool | None = None
    enable_grouped_compile: bool | None = None
    group_compile_size: int | None = None
    benchmark_devices: Sequence[int] | None = None
    benchmark_multi_gpu: bool | None = None


@dataclass(frozen=True)
class EarlyStop(Checked):
    """Whether clearly slow candidates get few samples. None: the engine decides."""

    early_stop: bool | None = None
    early_stop_factor: float | None = None


@dataclass(frozen=True)
class Specialization(Checked):
    """Parameters of the kernel whose values do not need tunings of their own."""

    do_not_specialize: Sequence[str] | None = None


@dataclass(frozen=True)
class RunTiming(Checked):
    """A run's own `ProfileTiming`. None: not given."""

    warmup: int | None = None
    rep: int | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Decorated:
    """The configurations."""

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
    """The arguments of `AutoTuner.set_profile_args`: `ProfileArgs` in another order.

    The deadline is that of tilelang's `run`, which takes none from here.
    """

    timeout: float = 180


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
    return takes(record)  # type: ignore[arg-type]


def _show(function: Any, record: Any) -> None:
    """Set the function's signature and annotations, and its name in what `record` says of a wrong call.

    Does not wrap it, because warnings count frames to its caller.
    """
    record.__init__.__qualname__ = function.__qualname__
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

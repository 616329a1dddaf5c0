"""`CompileArgs` and `ProfileArgs`: how candidates are compiled, and how they are checked and timed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompileArgs:
    """How candidates are compiled: the arguments of `tilelang.compile`.

    `out_idx`: positions of the outputs that the kernel returns; None where it writes into tensors that it is given.
    `target`: ``auto``, ``cuda``, an arch as ``{"kind": "cuda", "arch": "sm_90a"}``, ``c`` for the CPU, or a TVM target.
    `compile_flags`: flags of the device compiler.
    """

    out_idx: list[int] | int | None = None
    execution_backend: str = "auto"
    target: Any = "auto"
    target_host: Any = None
    verbose: bool = False
    pass_configs: dict[str, Any] | None = None
    compile_flags: tuple[str, ...] | None = None

    def compile_program(self, program: Any) -> Any:
        """Compile one PrimFunc with tilelang; returns its `JITKernel`."""
        import tilelang

        return tilelang.compile(
            program,
            out_idx=self.out_idx,
            execution_backend=self.execution_backend,
            target=self.target,
            target_host=self.target_host,
            verbose=self.verbose,
            pass_configs=self.pass_configs,
            compile_flags=list(self.compile_flags) if self.compile_flags else None,
        )

    def __hash__(self) -> int:
        return _stable_hash(self)


@dataclass(frozen=True)
class ProfileArgs:
    """How candidates are checked and timed.

    `warmup`, `rep`: calls before the first sample, and samples. `timeout`: seconds for loading, checking and timing
    one candidate; zero or less sets no deadline. `backend`: the timing method, ``event``, ``cupti`` or ``cudagraph``.
    `cache_input_tensors`: None and True use the same inputs for every candidate, restored before each; False makes
    new ones.
    """

    warmup: int = 25
    rep: int = 100
    timeout: float = 30
    backend: str = "event"
    supply_type: Any = "auto"
    ref_prog: Callable[..., Any] | None = None
    supply_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Callable[..., Any] | None = None
    cache_input_tensors: bool | None = None

    def __hash__(self) -> int:
        return _stable_hash(self)


def _stable_hash(arguments: Any) -> int:
    """Return a hash that is the same in every process. Callbacks count by their presence."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return callable(value) or str(value)

    fields = {field.name: plain(getattr(arguments, field.name)) for field in dataclasses.fields(arguments)}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:7], "big")

"""The kernel of a call with a configuration, from the measured library or from a compile worker."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atune.decorator.arguments import text_of
from atune.decorator.call import Call
from atune.model.artifact import Artifact
from atune.model.candidate import PASS_CONFIGS, thaw
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.workload.workload import Workload

if TYPE_CHECKING:
    from atune.decorator.winners import Winner


def measured(call: Call, winner: Winner) -> Artifact | None:
    """Return the measured library, or None if it is missing or was made for other arguments."""
    header = winner.result.header if winner.result is not None else None
    if winner.result is None or header is None or text_of(thaw(header.arguments)) != text_of(call.arguments):
        return None
    return winner.result.artifact


def to_build(call: Call, winner: Winner) -> tuple[Workload, Target, CompileSettings, Callable[[Artifact | None], Any]]:
    """Return the arguments of `with_library`: the call's kernel with one configuration, and the use of its library."""
    workload = Workload(
        call.kernel,
        [winner.config],
        arguments=call.arguments,
        out_idx=call.out_idx,
        pass_configs=call.hints.get(PASS_CONFIGS),
    )
    return workload, call.owner.where_to_run[0], call.compile, functools.partial(made, call, winner)


def made(call: Call, winner: Winner, artifact: Artifact | None) -> Any:
    """Return the `tilelang.JITKernel` that calls `artifact`. For None, tilelang compiles it in this process."""
    owner, jit = call.owner, call.owner.kernel
    with owner.frontend.frontend_lock:
        return importlib.import_module("atune.stages.frontend.jit_kernel").jit_kernel(
            call.kernel,
            call.arguments,
            winner.config,
            target=owner.where_to_run[0],
            artifact=artifact,
            out_idx=getattr(jit, "out_idx", None) if owner.is_jit else owner.options.workload.get("out_idx"),
            pass_configs={
                **call.compile.pass_configs,
                **(getattr(jit, "pass_configs", None) or {}),
                **(call.hints.get(PASS_CONFIGS) or {}),
            },
            flags=call.compile.flags,
            latency_ms=winner.latency_ms,
            reference_ms=winner.reference_ms,
            execution_backend=getattr(jit, "execution_backend", None),
            verbose=getattr(jit, "verbose", None),
        )

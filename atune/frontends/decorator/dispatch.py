"""The kernel of a call with its winner, and what a call of one form does once its kernel is known."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.frontends.decorator.arguments import text_of
from atune.frontends.decorator.call import Call
from atune.frontends.decorator.winners import Winner
from atune.model.artifact import Artifact
from atune.model.candidate import PASS_CONFIGS, thaw
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.workload.workload import Workload

Entry = Callable[..., Any]
"""What a call of one form does. It takes the call's ``args`` and ``kwargs``."""


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
    owner, jit = call.owner, call.options.jit
    if jit is None:
        jit = _of_jit(owner.kernel) if owner.is_jit else {"out_idx": call.options.workload.get("out_idx")}
    with owner.frontend.frontend_lock:
        return importlib.import_module("atune.stages.frontend.jit_kernel").jit_kernel(
            call.kernel,
            call.arguments,
            call.as_given(winner.config),
            target=owner.where_to_run[0],
            artifact=artifact,
            flags=call.compile.flags,
            latency_ms=winner.latency_ms,
            reference_ms=winner.reference_ms,
            **{
                **jit,
                "pass_configs": {
                    **call.compile.pass_configs,
                    **(jit.get("pass_configs") or {}),
                    **(call.hints.get(PASS_CONFIGS) or {}),
                },
            },
        )


def _of_jit(jit: Any) -> Mapping[str, Any]:
    """Return what `@tilelang.jit` was given, as arguments of `jit_kernel`."""
    names = ("out_idx", "pass_configs", "execution_backend", "verbose")
    return {name: getattr(jit, name, None) for name in names}


def direct(kernel: Any) -> Entry:
    """Return a function that calls `kernel` with the caller's own arguments."""
    return lambda args, kwargs: kernel(*args, **kwargs)


def giver(kernel: Any) -> Entry:
    """Return a function that gives `kernel` itself, as a lazy kernel does."""
    return lambda args, kwargs: kernel


def launcher(kernel: Any, names: Sequence[str], signature: inspect.Signature, args: tuple[Any, ...]) -> Entry:
    """Return a function that calls `kernel` with the tensors of a call of the same form."""
    loader = importlib.import_module("atune.stages.measure.loader")
    run = loader.without_gradients(kernel.torch_function if hasattr(kernel, "torch_function") else kernel)
    places = {name: i for i, name in enumerate(signature.parameters) if i < len(args)}
    if all(name in places for name in names):
        if [places[name] for name in names] == list(range(len(args))):
            return lambda args, kwargs: run(*args)
        positions = [places[name] for name in names]
        return lambda args, kwargs: run(*[args[i] for i in positions])
    order = [(places.get(name), name) for name in names]
    return lambda args, kwargs: run(*[kwargs[name] if i is None else args[i] for i, name in order])

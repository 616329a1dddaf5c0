"""What a call of one form does, once its kernel is known. Each takes the call's ``args`` and ``kwargs``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

Entry = Callable[..., Any]


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

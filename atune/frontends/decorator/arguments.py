"""Normal form of a call's (args, kwargs), the key made of it, and what a call of one form does."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import msgspec

from atune.errors import UsageError

_PLAIN = frozenset({int, float, str, bool, NoneType, bytes})


class Arguments:
    """A call's arguments by name. `given`: the caller's arguments in the signature's order, with extra ones last."""

    __slots__ = ("args", "given", "kwargs", "values")

    def __init__(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, extra: bool
    ) -> None:
        parameters = signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = {n: v for n, v in kwargs.items() if n in parameters or (takes_any and not extra)}
        unknown = {n: v for n, v in kwargs.items() if n not in known}
        if unknown and not extra:
            raise TypeError(f"the kernel takes no argument {next(iter(unknown))!r}; it takes {', '.join(parameters)}")
        bound = signature.bind_partial(*args, **known).arguments
        for name in list(bound):
            if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise UsageError(f"the kernel's *{name} cannot be tuned over: give its parameters names")
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(bound.pop(name))
        self.args, self.kwargs = args, dict(kwargs)
        self.given: dict[str, Any] = {**bound, **unknown}
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        everything = {**defaults, **self.given}
        self.values: dict[str, Any] = {n: everything[n] for n in (*parameters, *everything) if n in everything}
        """The arguments with the signature's defaults."""

    def ask(self, option: str, function: Callable[..., Any]) -> Any:
        """Call the user's `function`, which `option` gives, with the caller's arguments as they were written.

        Raises `UsageError` if it takes others.
        """
        with suppress(ValueError):  # a function whose signature Python does not know
            try:
                inspect.signature(function).bind(*self.args, **self.kwargs)
            except TypeError as error:
                raise UsageError(f"{option}: its function must take a call as it is written: {error}") from error
        return function(*self.args, **self.kwargs)


def raw_key(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    describe: Callable[[Any], Any],
    tensor: type,
    at_run_time: Container[int | str] = (),
) -> Hashable:
    """Return a key of the call's form. It must be fast, because every call needs it.

    `tensor` is torch's tensor type. Tensors count by dtype, shape and strides, and `describe` returns the key of other
    objects. Values of different types differ, even if Python compares them equal. `at_run_time` holds positions and
    names of numbers that a compiled kernel takes at run time: only their type counts.
    """
    parts: list[Any] = []
    for i, value in enumerate(args):
        kind = type(value)
        if kind is tensor:
            parts += (value.dtype, value.shape, value.stride())
        elif kind in _PLAIN:
            parts += (kind, None if i in at_run_time else value)
        else:
            parts.append(describe(value))
    if kwargs:
        for name, value in sorted(kwargs.items()):
            kind = type(value)
            if kind is tensor:
                parts += (name, value.dtype, value.shape, value.stride())
            elif kind in _PLAIN:
                parts += (name, kind, None if name in at_run_time else value)
            else:
                parts += (name, describe(value))
    return tuple(parts)


def text_of(value: Any) -> str:
    """Return data as text that does not depend on the order of names."""
    return msgspec.json.encode(value, order="deterministic").decode()


class KeyRule:
    """The arguments that make a tuning's key.

    `key`: names of arguments, a function of the caller's arguments, or None for all of them. `leave_out`: names that
    do not count; tunables among them are tuned whatever a call gives for them.
    """

    def __init__(self, key: Any, leave_out: Any) -> None:
        if key is not None and leave_out:
            raise UsageError("give key or do_not_specialize, not both: either names what counts, or what does not")
        self.names = None if key is None or callable(key) else _names("key", key)
        self.function = key if callable(key) else None
        self.leave_out = frozenset(_names("do_not_specialize", leave_out))

    def apply(
        self,
        problem: Mapping[str, Any],
        arguments: Arguments,
        encode: Callable[[Any, str], Any],
        tunables: frozenset[str],
    ) -> Any:
        """Return the key, as data, of a call with this `problem`. Raises `UsageError` for an unknown name."""
        if self.function is not None:
            return {"key": encode(arguments.ask("key", self.function), "what key returned")}
        if missing := [n for n in self.names or () if n not in problem]:
            raise UsageError(f"key: there is no argument {missing[0]!r}; there is {', '.join(problem)}")
        if self.names is not None:
            return {name: problem[name] for name in self.names}
        if missing := sorted(self.leave_out - problem.keys() - tunables):
            raise UsageError(f"do_not_specialize: there is no argument {missing[0]!r}; there is {', '.join(problem)}")
        return {name: value for name, value in problem.items() if name not in self.leave_out}


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option}: give names of arguments, such as ['M', 'N'], got {value!r}")
    return names


Entry = Callable[..., Any]
"""What a call of one form does. It takes the call's ``args`` and ``kwargs``."""


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
    order = [(places.get(name), name, signature.parameters[name].default) for name in names]
    return lambda args, kwargs: run(*[kwargs.get(n, value) if i is None else args[i] for i, n, value in order])

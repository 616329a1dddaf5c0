"""`@autotune` over `@tilelang.jit`, with tilelang's parameters. It returns tuned lazy kernels and runs eager ones."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from atune.compat.tilelang.arguments import (
    AutotuneArgs,
    EarlyStop,
    Pipeline,
    ProfileArgs,
    Specialization,
    takes,
    values_of,
)
from atune.compat.tilelang.autotuner import AutoTuner, AutotuneResult
from atune.compat.tilelang.environment import ArgumentError
from atune.frontends.decorator.arguments import Arguments, raw_key
from atune.frontends.decorator.autotuned import Entry, giver, launcher
from atune.frontends.decorator.single_flight import SingleFlight
from atune.stages.frontend.frontend import tensor_names
from atune.workload.definition import function_of

Key = tuple[Any, ...]
RETURN_KERNEL = "__return_kernel"
"""tilelang's keyword at a call: return the winner in both modes."""


class TunerCache(Mapping[Key, tuple[Any, dict[str, Any] | None]]):
    """Read-only view of a decorated kernel's winners in tilelang's form: kernel and configuration by tuned key.

    After `clear` the next call looks up or tunes again. Results on disk stay.
    """

    def __init__(self, tuned: AutoTuneImpl) -> None:
        self._tuned = tuned

    def __getitem__(self, key: Key) -> tuple[Any, dict[str, Any] | None]:
        found = self._tuned.results[key]
        return found.kernel, found.config

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tuned.results)

    def __len__(self) -> int:
        return len(self._tuned.results)

    def clear(self) -> None:
        """Forget all winners in this program."""
        self._tuned._forms.clear()
        self._tuned._flights.forget()


class AutoTuneImpl:
    """A kernel function that tunes at its first call with new arguments.

    Calling a lazy kernel function returns the winner, a `tilelang.JITKernel`; calling an eager one runs it. `compile`
    returns the winner in both modes, and so does a call with ``__return_kernel=True``. If another thread or process
    tunes the same work, a call waits for it. `results` holds the results by key.
    """

    def __init__(self, jit_impl: Any, configs: Any, profile: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self.jit_impl = jit_impl
        self.configs = configs
        self.do_not_specialize = frozenset(profile["do_not_specialize"] or ())
        self._profile = {name: value for name, value in profile.items() if name != "do_not_specialize"}
        self._run = dict(run)
        function = function_of(jit_impl)
        self._signature = inspect.signature(function)
        self.__name__ = self.__qualname__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        self._tensor: type = importlib.import_module("torch").Tensor
        self._flights: SingleFlight[Key, AutotuneResult] = SingleFlight(self.__name__)
        self._forms: dict[Hashable, tuple[AutotuneResult, Entry]] = {}
        """Results, and what a call does, by the form of a call, for a fast lookup."""

    @property
    def results(self) -> dict[Key, AutotuneResult]:
        """The results in this program, by key."""
        return self._flights.known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        only_kernel = kwargs.pop(RETURN_KERNEL, False)
        result, entry = self._found(args, kwargs)
        return result.kernel if only_kernel else entry(args, kwargs)

    @property
    def _tuner_cache(self) -> TunerCache:
        """`results` under tilelang's name and in its form."""
        return TunerCache(self)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the winner for these arguments. Tunes if it is unknown."""
        return self.tune(*args, **kwargs).kernel

    def tune(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """Return the whole result for these arguments."""
        return self._found(args, kwargs)[0]

    def _found(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[AutotuneResult, Entry]:
        form = raw_key(args, kwargs, _normal, self._tensor)
        found = self._forms.get(form)
        if found is None:
            result = self._flights.run(self.key(args, kwargs), lambda: self._tuner(args, kwargs).run(**self._run))
            found = self._forms[form] = result, self._entry(result, args)
        return found

    def _entry(self, result: AutotuneResult, args: tuple[Any, ...]) -> Entry:
        if self.jit_impl.is_lazy_mode():
            return giver(result.kernel)
        return launcher(result.kernel, tensor_names(self.jit_impl), self._signature, args)

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
        """Return the key of results: the same for arguments given by position and by name.

        Tensors count by dtype, shape and strides; parameters in `do_not_specialize` do not count.
        Raises `ArgumentError` for arguments that the kernel does not take.
        """
        try:
            named = Arguments(self._signature, tuple(args), kwargs, extra=True).given
        except TypeError as error:
            raise ArgumentError(f"{self.__name__}: {error}") from error
        return tuple((name, _normal(v)) for name, v in sorted(named.items()) if name not in self.do_not_specialize)

    def get_tuner(self) -> AutoTuner:
        """Return an `AutoTuner` with this decorator's arguments."""
        tuner = AutoTuner(self.jit_impl, self.configs)
        tuner.set_profile_args(**self._profile)
        return tuner

    get_tunner = get_tuner  # tilelang's spelling

    def _tuner(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AutoTuner:
        tuner = self.get_tuner()
        tuner.set_kernel_parameters((args, kwargs))
        return tuner

    def __reduce__(self) -> Any:
        profile = {**self._profile, "do_not_specialize": tuple(sorted(self.do_not_specialize))}
        return AutoTuneImpl, (self.jit_impl, self.configs, profile, self._run)

    def __repr__(self) -> str:
        return f"<autotuned {self.__name__}: {len(self.results)} tuned>"


@takes(AutotuneArgs)
def autotune(func: Any = None, **options: Any) -> Any:
    """Return a decorator for a kernel function under `@tilelang.jit`.

    `configs`: dicts, a generator of them, or a callable of the caller's raw arguments that returns either.
    `do_not_specialize`: parameters whose values do not need tunings of their own. The other parameters are those of
    `AutoTuner.set_profile_args` and `AutoTuner.run`.

    Raises `ArgumentError` for anything but a kernel function under `@tilelang.jit`.
    """
    given = AutotuneArgs(func, **options)
    if func is not None:
        raise ArgumentError("autotune needs its configs: write @autotune(configs=...) above @tilelang.jit")
    profile = values_of(given, ProfileArgs) | values_of(given, Specialization)
    run = values_of(given, Pipeline) | values_of(given, EarlyStop)

    def decorated(impl: Any) -> AutoTuneImpl:
        if not hasattr(impl, "get_tir"):
            raise ArgumentError(
                "@autotune goes above @tilelang.jit, over a kernel function; "
                f"it was given {getattr(impl, '__name__', impl)!r}"
            )
        return AutoTuneImpl(impl, given.configs, profile, run)

    return decorated


def _normal(value: Any) -> Any:
    """Return a hashable form of `value`, equal for equal arguments."""
    if hasattr(value, "stride") and hasattr(value, "dtype"):
        return "tensor", str(value.dtype), tuple(value.shape), tuple(value.stride())
    if isinstance(value, (list, tuple)):
        return tuple(_normal(item) for item in value)
    if isinstance(value, Mapping):
        return tuple((str(key), _normal(item)) for key, item in sorted(value.items(), key=lambda kv: str(kv[0])))
    try:
        hash(value)
    except TypeError:
        return type(value).__qualname__, repr(value)
    return type(value).__qualname__, str(value) if hasattr(value, "dtype") else value

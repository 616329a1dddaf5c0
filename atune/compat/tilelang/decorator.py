"""`@autotune` over `@tilelang.jit`, with tilelang's parameters. It returns tuned lazy kernels and runs eager ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from atune.compat.tilelang.arguments import (
    ArgumentError,
    AutotuneArgs,
    EarlyStop,
    Pipeline,
    ProfileArgs,
    RunArgs,
    takes,
    values_of,
)
from atune.compat.tilelang.autotuner import AutoTuner, AutotuneResult, drop_in, result_of
from atune.compat.tilelang.inputs import TilelangCall, TilelangKernel
from atune.frontends.decorator.arguments import Entry
from atune.frontends.decorator.call import Call

RETURN_KERNEL = "__return_kernel"
"""tilelang's keyword at a call: return the winner in both modes."""


class TunerCache(Mapping[Hashable, tuple[Any, dict[str, Any] | None]]):
    """Read-only view of a decorated kernel's winners in tilelang's form: kernel and configuration by tuned key.

    After `clear` the next call looks up or tunes again. Results on disk stay.
    """

    def __init__(self, tuned: AutoTuneImpl) -> None:
        self._tuned = tuned

    def __getitem__(self, key: Hashable) -> tuple[Any, dict[str, Any] | None]:
        found = self._tuned.results[key]
        return found.kernel, found.config

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._tuned.results)

    def __len__(self) -> int:
        return len(self._tuned.results)

    def clear(self) -> None:
        """Forget all winners in this program."""
        self._tuned.forget()


class AutoTuneImpl(TilelangKernel):
    """A kernel function that tunes at its first call with new arguments.

    Calling a lazy kernel function returns the winner, a `tilelang.JITKernel`; calling an eager one runs it. `compile`
    returns the winner in both modes, and so does a call with ``__return_kernel=True``. If another thread or process
    tunes the same work, a call waits for it. `results` holds the results by key. The decorator's arguments,
    such as `configs` and `do_not_specialize`, are attributes, as there; what is assigned holds for calls without a
    result.
    """

    configs: Any
    do_not_specialize: Any

    def __init__(self, jit_impl: Any, given: AutotuneArgs) -> None:
        super().__init__(jit_impl)
        self.jit_impl = jit_impl
        vars(self).update(vars(given))
        if isinstance(given.configs, Iterator):
            self.configs = list(given.configs)
        self.results: dict[Hashable, AutotuneResult] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop(RETURN_KERNEL, False):
            return self.compile(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def _tuner_cache(self) -> TunerCache:
        """`results` under tilelang's name and in its form."""
        return TunerCache(self)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the winner for these arguments. Tunes if it is unknown."""
        return self.tune(*args, **kwargs).kernel

    def tune(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """Return the whole result for these arguments."""
        with drop_in():
            return self._result(self.call_of(args, kwargs))

    def call_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TilelangCall:
        tuner = self.get_tuner()
        tuner.set_kernel_parameters((args, kwargs))
        run = values_of(self, Pipeline) | values_of(self, EarlyStop)
        return tuner.call_of(self, RunArgs(**run), self.do_not_specialize or ())

    def entry_of(self, call: Call, form: Hashable) -> Entry:
        return self.launched(call, self._result(call).kernel)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        with drop_in():
            return super()._entry(args, kwargs)

    def _result(self, call: Call) -> AutotuneResult:
        """Return the result for the call's key: calls that differ in what does not specialize share it, as there."""
        counts = {n: v for n, v in call.given.given.items() if n not in call.options.rule.leave_out}
        key = self.form_of((), counts) if call.explicit else call.key_text
        return self.results.get(key) or self.results.setdefault(key, result_of(self, call))

    def forget(self, key: Any = None) -> None:
        super().forget(key)
        self.results.clear()

    def get_tuner(self) -> AutoTuner:
        """Return an `AutoTuner` with this decorator's arguments."""
        tuner = AutoTuner(self.jit_impl, self.configs)
        tuner.set_profile_args(**values_of(self, ProfileArgs))
        return tuner

    get_tunner = get_tuner  # tilelang's spelling

    def __reduce__(self) -> Any:
        return AutoTuneImpl, (self.jit_impl, AutotuneArgs(**values_of(self, AutotuneArgs)))


@takes(AutotuneArgs)
def autotune(func: Any = None, **options: Any) -> Any:
    """Return a decorator for a kernel function under `@tilelang.jit`.

    `configs`: dicts, a generator of them, or a callable of the caller's raw arguments that returns either.
    `do_not_specialize`: parameters whose values do not need tunings of their own; tunable ones are tuned whatever a
    call gives. The other parameters are those of `AutoTuner.set_profile_args` and `AutoTuner.run`.

    Raises `ArgumentError` for anything but a kernel function under `@tilelang.jit`.
    """
    if func is not None:
        raise ArgumentError("autotune needs its configs: write @autotune(configs=...) above @tilelang.jit")
    given = AutotuneArgs(**options)

    def decorated(impl: Any) -> AutoTuneImpl:
        if not hasattr(impl, "get_tir"):
            raise ArgumentError(
                "@autotune goes above @tilelang.jit, over a kernel function; "
                f"it was given {getattr(impl, '__name__', impl)!r}"
            )
        return AutoTuneImpl(impl, given)

    return decorated

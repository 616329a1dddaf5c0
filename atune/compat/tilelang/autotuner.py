"""tilelang's tuner: `AutoTuner`, `@autotune` above `@tilelang.jit`, and their result, `AutotuneResult`.

The classes derive from tilelang's classes, and have the same signatures. If a default is None, the engine decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atune.compat.tilelang import environment
from atune.compat.tilelang.environment import (
    ArgumentError,
    ConfigError,
    TuningFailed,
    ValueMissing,
    backend_of,
    checked_arguments,
    resolved_target,
    taking,
    translated,
    warn_once,
    warnings_of_call,
)
from atune.errors import AtuneError, InputsMissing, NoWinner, SpaceError, UsageError
from atune.frontends.autotuned import TunedKernel, explicit_kernel
from atune.frontends.call import Call, Encoder, Entry
from atune.frontends.decorator_options import Options, lazy_callback, listed, names_in
from atune.frontends.winners import Winner
from atune.journal.result import TuneResult
from atune.model.artifact import KernelParam
from atune.model.candidate import PASS_CONFIGS, RESERVED, Config, check_reserved, config_key
from atune.model.folders import cache_folder_at
from atune.model.space import Space
from atune.stages import tilelang
from atune.stages.arguments import GivenTensors
from atune.stages.check import accepts
from atune.stages.frontend import encode
from atune.workers.result_cache import ResultCache
from atune.workload.fingerprint import function_of, is_compiled, kernel_fingerprint, signature_of
from atune.workload.packing import LazyCallback

CompileArgs, ProfileArgs = tilelang.param.CompileArgs, tilelang.param.ProfileArgs
COMPILE, RUN = (
    [*inspect.signature(function).parameters][1:]
    for function in (tilelang.tuner.AutoTuner.set_compile_args, tilelang.tuner.AutoTuner.run)
)
PROFILE = [field.name for field in dataclasses.fields(ProfileArgs)]
OUT_IDX = "out_idx.json"
RUN_TIMEOUT_S = 180.0
"""Default timeout of tilelang's `run`, which ignores the timeout that `set_profile_args` sets."""


@dataclass(frozen=True)
class AutotuneResult(tilelang.param.AutotuneResult):  # type: ignore[misc]
    """The result of a tuning.

    `latency`, `ref_latency`: milliseconds of the winner and of the reference; None if nothing was timed. `config`: the
    winner's configuration as you gave it; if nothing was tuned, the values in the call. `libcode`, `func`, `kernel`:
    the winner's device source, PrimFunc and `tilelang.JITKernel`. `winner`: the winner's record in the result cache.
    `warnings`: warnings about arguments that have no effect here. `tuning.warnings` begins with these warnings.
    """

    winner: Winner | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def tuning(self) -> TuneResult | None:
        """The whole tuning, as atune's `TuneResult`; None if the result was loaded or nothing was tuned."""
        result = None if self.winner is None else self.winner.result
        if result is not None:
            result.warnings = tuple(dict.fromkeys((*self.warnings, *result.warnings)))
        return result

    def save_to_disk(self, path: Path | str, verbose: bool = False) -> None:
        """Write the result in tilelang's format into the folder `path`. An existing folder is replaced.

        The folder is written completely or not at all. Raises `AtuneError` if tilelang could not write the kernel.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        kernel = self.kernel.as_tilelang() if hasattr(self.kernel, "as_tilelang") else self.kernel
        # tilelang compiles the kernel again, because a tuning's library also holds other candidates.
        alone = AutotuneResult(**{**vars(self), "kernel": kernel})
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as stage:
            staged = Path(stage) / "saved" / path.name  # tilelang stages files in the parent's parent folder
            staged.parent.mkdir()
            super(AutotuneResult, alone).save_to_disk(staged, verbose)
            if not staged.is_dir():
                raise AtuneError(f"{path} could not be saved: tilelang did not write it; see tilelang's log")
            saved = _saved(staged)
            saved["out_idx"] = saved.get("out_idx") or [int(i) for i in kernel.adapter.result_idx] or None
            saved |= {"target": resolved_target(kernel.target).tvm(), "execution_backend": kernel.execution_backend}
            (staged / OUT_IDX).write_text(json.dumps(saved))
            if path.exists():
                os.rename(path, Path(stage) / "replaced")
            os.rename(staged, path)

    @classmethod
    def load_from_disk(cls, path: Path | str, compile_args: Any, *, trusted: bool = False) -> AutotuneResult | None:
        """Return the result that tilelang or atune saved in `path`. Return None if nothing was saved.

        If `compile_args` has ``auto``, the target and the adapter that atune saved are used. In older folders without
        ``out_idx.json``, `compile_args.out_idx` gives the outputs. Loading runs code from the folder, so a file of
        another user raises `ArgumentError` unless the folder is `trusted`.
        """
        path = Path(path)
        if not path.exists():
            return None
        others = [file for file in (path, *path.glob("*")) if file.stat().st_uid != os.getuid()]
        if others and not trusted:
            raise ArgumentError(
                f"{others[0]} belongs to another user, and loading it runs its code: "
                "if you trust it, use load_from_disk(…, trusted=True)"
            )
        saved = _saved(path)
        for name in {"target", "execution_backend"} & saved.keys():
            if getattr(compile_args, name) == "auto":
                compile_args = dataclasses.replace(compile_args, **{name: saved[name]})
        return super().load_from_disk(path, compile_args)  # type: ignore[no-any-return]


def _saved(path: Path) -> dict[str, Any]:
    """Return the kernel's outputs, target and adapter from a folder that atune saved. Empty for other folders."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((path / OUT_IDX).read_text()))
    return {}


# The inputs that a call tunes with, and the call's values, which need not be data


def _inputs(supply_prog: Callable[..., Any], parameters: Sequence[KernelParam]) -> list[Any]:
    """Return the inputs that tilelang's `supply_prog(params)` makes."""
    params = []
    for parameter in parameters:
        shape = [tilelang.tvm.tirx.Var(d, "int32") if isinstance(d, str) else d for d in parameter.shape or ()]
        params.append(tilelang.KernelParam(tilelang.tvm.DataType(parameter.dtype), shape))
    return list(supply_prog(params))


class ByText:
    """A kernel that takes strings in place of objects (such as enums and functions), and looks up the objects.

    `tables`: for each parameter, the objects by string.
    """

    def __init__(self, kernel: Any, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.func = function_of(kernel)
        parameters = []
        for name, parameter in signature_of(kernel).parameters.items():
            if name in tables and parameter.default is not parameter.empty:
                parameter = parameter.replace(default=_data_of(parameter.default))
            parameters.append(parameter)
        self.workload_signature = inspect.Signature(parameters)
        self._kernel, self._tables = kernel, {name: dict(table) for name, table in tables.items()}

    def __call__(self, **arguments: Any) -> Any:
        values = {
            name: self._tables[name].get(value, value) if name in self._tables and isinstance(value, str) else value
            for name, value in arguments.items()
        }
        make: Callable[..., Any] = getattr(self._kernel, "get_tir", None) or self._kernel
        return make(**values)


class TextEncoder(Encoder):
    """Encodes values of any kind. If a value is not data (such as a function), a string represents it."""

    def __init__(self, frontend: Any) -> None:
        super().__init__(frontend)
        self._given: dict[str, tuple[Config, Config]] = {}
        """Configurations by key. Each is stored twice: with strings for a `ByText` kernel, and as the user wrote it."""
        self._tables: dict[str, dict[str, Any]] = {}
        """``tables[parameter][text]``: the user's value."""

    def data(self, value: Any, where: str) -> Any:
        return _data_of(value)

    def written(self, name: str, value: Any) -> Any:
        data = _data_of(value)
        if not isinstance(data, str) or type(value) is str:
            return super().written(name, value)
        self._tables.setdefault(name, {})[data] = value
        return data

    def space(self, call: Call, given: Any) -> Space:
        for config in listed("configs", call.ask("configs", given) if callable(given) else given):
            for name in RESERVED & config.keys():
                check_reserved(name, config[name], "configs")
            data = {n: v if n in RESERVED else _data_of(v) for n, v in config.items()}
            written = {n: v if n in RESERVED else self.written(n, v) for n, v in config.items()}
            self._given.setdefault(config_key(data), (written, config))
        return Space([written for written, _ in self._given.values()])

    def given(self, config: Config) -> Config:
        return self._given.get(config_key(config), (config, config))[1]  # the kernel's defaults need not be listed

    def kernel(self, kernel: Any) -> Any:
        return ByText(kernel, self._tables) if self._tables else kernel


class TilelangKernel(TunedKernel):
    """A kernel whose arguments may be any objects, such as enums and functions. In keys, strings represent them."""

    encoder = TextEncoder


def _data_of(value: Any) -> Any:
    if not isinstance(value, enum.Enum):
        with contextlib.suppress(UsageError):
            return encode(value, "a value")
    return described(value)


def described(value: Any) -> str:
    """Return a string that represents `value`. The string is the same in each run, but differs for different code.

    The string is a part of configuration keys, which must never change. Therefore the string even depends on comments.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return f"{getattr(value, '__qualname__', type(value).__qualname__)} {_code(value)}"
    text = repr(value)
    return f"{type(value).__qualname__} {_code(value)}" if " at 0x" in text else text


def _code(value: Any) -> str:
    return kernel_fingerprint(value)[:12]


# Tuning


@contextmanager
def drop_in() -> Iterator[None]:
    """Use the cache folder in tilelang's variables. Raise the exceptions that users of tilelang's tuner expect."""
    warnings_of_call.set([])
    try:
        with cache_folder_at(environment.cache_root()):
            yield
    except NoWinner as error:
        error.result.warnings = (*warnings_of_call.get(), *error.result.warnings)
        raise TuningFailed(f"Auto-tuning failed: {error}", error.result) from error
    except InputsMissing as error:
        what, *where = str(error).splitlines()
        remedy = "give tensors and scalars with `with set_autotune_inputs(...)`, or with supply_prog"
        raise ValueMissing("\n".join([f"{what.partition(': give ')[0]}: {remedy}", *where])) from error
    except SpaceError as error:
        raise ConfigError(str(error)) from error
    except UsageError as error:
        if isinstance(error, ValueError):
            raise
        raise ArgumentError(str(error)) from error
    except TypeError as error:
        raise ArgumentError(f"the kernel cannot be called like that: {error}") from error


class AutoTuner(tilelang.tuner.AutoTuner):  # type: ignore[misc]
    """A tuner for a kernel function with a list of configurations.

        tuner = AutoTuner.from_kernel(matmul, configs=[{"block_M": 64}, {"block_M": 128}])
        tuner.set_compile_args(out_idx=[-1], target="cuda").set_profile_args(ref_prog=reference)
        result = tuner.run()
        result.kernel(A, B)

    `fn`: a function of the configuration that returns a PrimFunc, plain or under `@tilelang.jit`. `configs`: dicts, a
    generator of dicts, or a function that returns dicts for the kernel's raw arguments. Each run calls the function.
    """

    def __init__(self, fn: Callable[..., Any], configs: Any) -> None:
        made_by, *made_for = getattr(fn, "made_by", (fn,))  # fn may be the result of a kernel under `autotune`
        fn = getattr(made_by, "jit_impl", made_by)  # or that kernel itself
        wrong = "a compiled kernel: omit the call" if is_compiled(fn) else "" if callable(fn) else repr(fn)
        if wrong:
            raise ArgumentError(f"from_kernel takes the function that makes the kernel, but got {wrong}")
        super().__init__(fn, list(configs) if isinstance(configs, Iterator) else configs)
        self._kernel_parameters: Any = made_for or None
        self.profile_args = ProfileArgs(timeout=RUN_TIMEOUT_S)
        self._captured: list[Any] | None = None
        if hasattr(fn, "get_tir"):  # under `@tilelang.jit`
            self.set_compile_args(**{name: getattr(fn, name) for name in COMPILE})

    @taking(tilelang.tuner.AutoTuner.set_compile_args)
    def set_compile_args(self, **given: Any) -> AutoTuner:
        """Set how candidates are compiled. None means the value of tilelang's variable, or else the default."""
        env = tilelang.env
        if given["target"] is None:
            given["target"] = env.get_default_target()
        if given["verbose"] is None:
            given["verbose"] = bool(env.get_default_verbose())
        given["execution_backend"] = given["execution_backend"] or str(env.get_default_execution_backend())
        self.compile_args = CompileArgs(**given)
        with drop_in():
            backend_of(given["execution_backend"], resolved_target(given["target"]))  # raises for a mistake
        return self

    @taking(tilelang.tuner.AutoTuner.set_profile_args, timeout=RUN_TIMEOUT_S, cache_input_tensors=None)
    def set_profile_args(self, **given: Any) -> AutoTuner:
        """Set how `run` checks and times candidates. Keep the tensors of `with set_autotune_inputs(…)` for `run`."""
        self.profile_args = ProfileArgs(**given)
        self._captured = tilelang.capture.get_autotune_inputs()
        return self

    @taking(tilelang.tuner.AutoTuner.run, **dict.fromkeys([*RUN, "tuning"]))
    def run(self, **run_arguments: Any) -> AutotuneResult:
        """Tune, or return the stored result of the same tuning.

        If an argument is None, `set_profile_args` or the engine decides. `tuning`: if no result is stored, ``pick``
        compiles the prior's choice without measuring. ``quick`` stops after eight candidates without a gain of 2 %.

        Raises `ConfigError`, `ArgumentError` or another `UsageError` for wrong arguments, and `TuningFailed` if nothing
        works.
        """
        kernel = TilelangKernel(self.fn)
        with drop_in():
            return result_of(kernel, self.call_of(kernel, run_arguments))

    def call_of(self, kernel: TilelangKernel, run_arguments: Mapping[str, Any], do_not_specialize: Any = ()) -> Call:
        """Return the analysed call of `kernel`, with the arguments of this tuner and `run_arguments`."""
        args, kwargs = self._kernel_parameters or ((), ())
        return Call(kernel, self._options(run_arguments, do_not_specialize), tuple(args), dict(kwargs))

    def _options(self, run_arguments: Mapping[str, Any], do_not_specialize: Any) -> Options:
        """Translate the arguments of this tuner into options of atune's decorator."""
        profile, compile_args = self.profile_args, self.compile_args
        inputs: Callable[..., Any] | None = None
        captured = tilelang.capture.get_autotune_inputs() if self._captured is None else self._captured
        if captured is not None:
            inputs = GivenTensors(list(captured))
        elif profile.supply_prog is not None:
            inputs = functools.partial(_inputs, LazyCallback(profile.supply_prog))  # a closure's name would be in keys
        tensors = "" if inputs is None else "supply_prog" if captured is None else environment.INPUTS
        alone = profile.manual_check_prog is not None and profile.ref_prog is None
        if alone and not (profile.skip_check or accepts(profile.manual_check_prog, 1)):
            raise ArgumentError("without ref_prog, manual_check_prog gets only the outputs: let it take one argument")
        own = {name: getattr(self, name) for name in ("jit_compile", "jit_elaborate")}
        cached = tilelang.env.is_cache_enabled() and not tilelang.env.is_autotune_cache_disabled()
        return Options(
            space=self.configs,
            leave_out=frozenset(names_in("do_not_specialize", do_not_specialize)),
            hints={} if compile_args.pass_configs is None else {PASS_CONFIGS: dict(compile_args.pass_configs)},
            inputs=inputs,
            workload={
                "reference": lazy_callback(profile.ref_prog),
                "check": lazy_callback(profile.manual_check_prog),
                "out_idx": compile_args.out_idx,
                "supply": profile.supply_type,
                "rtol": profile.rtol,
                "atol": profile.atol,
                "max_mismatched_ratio": profile.max_mismatched_ratio,
            },
            cache=ResultCache(environment.cache_root()) if cached else None,
            **translated(compile_args, profile, {**own, **run_arguments}, tensors),
        )


def result_of(kernel: TilelangKernel, call: Call) -> AutotuneResult:
    """Return the result of a call. If the result is unknown, tune first."""
    if call.explicit:
        warn_once(f"tunable parameters {call.explicit}", "the call passes them, so nothing is tuned")
    winner, compiled = (None, explicit_kernel(call)) if call.explicit else kernel.chosen(call)
    if winner is None:
        compiled.config = {name: value for name, value in call.values.items() if name in call.tunables}
    return AutotuneResult(
        latency=None if winner is None else winner.latency_ms,
        config=compiled.config,
        ref_latency=None if winner is None else winner.reference_ms,
        libcode=compiled.get_kernel_source(),
        func=compiled.prim_func,
        kernel=compiled,
        winner=winner,
        warnings=tuple(dict.fromkeys(warnings_of_call.get(()))),
    )


class AutoTuneImpl(TilelangKernel):
    """A kernel function that is tuned when it is first called with new arguments.

    A lazy kernel function returns the winner, a `tilelang.JITKernel`. An eager kernel function runs the winner. For
    both kinds of functions, `compile` and a call with ``__return_kernel=True`` return the winner. If another thread or
    process is tuning the same work, a call waits for the result. `results` has the results by key. As in tilelang,
    arguments such as `configs` are attributes, and a new value of an attribute affects only calls without a result.
    """

    configs: Any
    do_not_specialize: Any

    def __init__(self, jit_impl: Any, given: Mapping[str, Any]) -> None:
        super().__init__(jit_impl)
        self.jit_impl, self._given = jit_impl, [*given]
        vars(self).update(given)
        if isinstance(self.configs, Iterator):
            self.configs = list(self.configs)
        self.results: dict[Hashable, AutotuneResult] = {}
        self._tuner_cache: dict[Hashable, tuple[Any, dict[str, Any] | None]] = {}
        """The same as `results`, but in tilelang's form. If this dict is cleared, the next call tunes again."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("__return_kernel", False):
            return self.compile(*args, **kwargs)
        if self.results and not self._tuner_cache:
            self.forget()
        return super().__call__(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the winner for these arguments. Tune first if no winner is stored."""
        return self.tune(*args, **kwargs).kernel

    def tune(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """Return the whole result for these arguments. Tune first if no result is stored."""
        if self.results and not self._tuner_cache:
            self.forget()
        with drop_in():
            return self._result(self.call_of(args, kwargs))

    def call_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        tuner = self.get_tuner()
        tuner.set_kernel_parameters((args, kwargs), {})
        run_arguments = checked_arguments(self._values({*RUN, "tuning"} & {*self._given} - {*PROFILE}))
        return tuner.call_of(self, run_arguments, self.do_not_specialize or ())

    def _values(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def kernel_for(self, call: Call) -> Any:
        return self._result(call).kernel

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        with drop_in():
            return super()._entry(args, kwargs)

    def _result(self, call: Call) -> AutotuneResult:
        """Return the result for the key of a call. As in tilelang, the key leaves out `do_not_specialize`."""
        counts = {n: v for n, v in call.given.items() if n not in call.options.leave_out}
        key = self.form_of((), counts) if call.explicit else call.tuned.key_text
        result = self.results.get(key) or result_of(self, call)
        form = tuple(tilelang.tuner._normalize_value(part, sort_dict_items=True) for part in call.written())
        if not call.explicit:
            result.kernel.made_by = self, call.args, call.kwargs
        with contextlib.suppress(TypeError):  # as in tilelang, if a value of the form cannot be hashed
            self._tuner_cache[form] = result.kernel, result.config  # first, because `results` alone means "cleared"
            self.results.setdefault(key, result)
        return self.results.get(key, result)

    def forget(self, meant: Callable[[str], bool] = bool) -> None:
        super().forget(meant)
        self.results.clear()
        self._tuner_cache.clear()

    def get_tuner(self) -> AutoTuner:
        """Return an `AutoTuner` with the arguments of this decorator."""
        tuner = AutoTuner(self.jit_impl, self.configs)
        tuner.set_profile_args(**self._values({*PROFILE} & {*self._given}))
        return tuner

    get_tunner = get_tuner  # tilelang's spelling

    def by_value(self) -> tuple[Any, ...]:
        return AutoTuneImpl, (self.jit_impl, self._values(self._given))


@taking(tilelang.tuner.autotune, configs=None, cache_input_tensors=None, early_stop=None, early_stop_factor=None,
        tuning=None)  # fmt: skip
def autotune(func: Any, **given: Any) -> Callable[[Any], AutoTuneImpl]:
    """Return a decorator for a kernel function under `@tilelang.jit`.

    `configs`: dicts, a generator of dicts, or a function that returns dicts for the call's raw arguments.
    `do_not_specialize`: parameters that the key of a tuning leaves out. If such parameters are tunable, their values in
    a call are ignored. The other parameters are the parameters of `AutoTuner.set_profile_args` and `AutoTuner.run`.

    Raises `ArgumentError` unless the decorated object is a kernel function under `@tilelang.jit`.
    """
    if func is not None or given["configs"] is None:
        raise ArgumentError("autotune needs its configs: write @autotune(configs=...) above @tilelang.jit")

    def decorated(impl: Any) -> AutoTuneImpl:
        if not hasattr(impl, "get_tir"):
            raise ArgumentError(
                "@autotune goes above @tilelang.jit, over a kernel function, "
                f"but got {getattr(impl, '__name__', impl)!r}"
            )
        return AutoTuneImpl(impl, given)

    return decorated

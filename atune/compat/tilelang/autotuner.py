"""tilelang's tuner: `AutoTuner`, `@autotune` over `@tilelang.jit`, and `AutotuneResult`, what both give.

Each signature is tilelang's, with None where the engine decides; a test compares them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atune.compat.tilelang import environment
from atune.compat.tilelang.environment import (
    PROFILE,
    ArgumentError,
    CompatWarning,
    CompileArgs,
    ConfigError,
    Function,
    ProfileArgs,
    ScalarMissing,
    TuningFailed,
    backend_of,
    checked,
    original,
    plan,
    resolved_target,
    warn_once,
)
from atune.compat.tilelang.inputs import (
    TilelangCall,
    TilelangKernel,
    get_autotune_inputs,
    judging,
    supplied,
)
from atune.errors import AtuneError, InputsMissing, NoWinner, SpaceError, UsageError
from atune.frontends.decorator.autotuned import made
from atune.frontends.decorator.call import Call, Entry
from atune.frontends.decorator.options import Options, lazy_callback, names_in
from atune.frontends.decorator.winners import Winner
from atune.journal.result import TuneResult
from atune.model.candidate import PASS_CONFIGS
from atune.model.folders import cache_folder_at
from atune.stages import tilelang
from atune.stages.measure.arguments import GivenTensors
from atune.workers.storage.result_cache import ResultCache
from atune.workload.fingerprint import is_compiled
from atune.workload.packing import can_be_sent

FILES = ("best_config.json", "function.pkl", "latency.json", "device_kernel.cu", "host_kernel.cu")
"""Files of a saved result. That of the parameters is missing, because its name depends on tilelang's version."""
LIBRARIES = ("executable.so", "kernel_lib.so", "kernel.cubin", "kernel.py")
OUT_IDX = "out_idx.json"
RUN_TIMEOUT_S = 180.0
"""That of tilelang's `run`, which takes none from `set_profile_args`."""


@dataclass(frozen=True)
class AutotuneResult:
    """The result of a tuning.

    `latency`, `ref_latency`: milliseconds, of the winner and of the reference; None if nothing was timed. `config`:
    the winner's configuration, as given; the call's own values if nothing was tuned. `libcode`: its device source.
    `func`: its PrimFunc. `kernel`: its `tilelang.JITKernel`. `out_idx`: positions of the outputs that the kernel
    returns. `winner`: what the result cache has of it.
    """

    latency: float | None = None
    config: dict[str, Any] | None = None
    ref_latency: float | None = None
    libcode: str | None = None
    func: Any = None
    kernel: Any = None
    out_idx: tuple[int, ...] | None = None
    winner: Winner | None = field(default=None, repr=False)

    @property
    def tuning(self) -> TuneResult | None:
        """The whole record, as atune's; None for a loaded result or without a tuning."""
        return None if self.winner is None else self.winner.result

    def save_to_disk(self, path: Path | str, verbose: bool = False) -> None:
        """Write the folder `path` in tilelang's format. Replaces an existing one.

        The folder appears complete or not at all. Raises `AtuneError` if tilelang could not write the kernel.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        theirs = original("AutotuneResult")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as stage:
            staged = Path(stage) / "saved" / path.name  # tilelang stages files in the parent's parent folder
            staged.parent.mkdir()
            kernel = _alone(self.kernel)
            whole = theirs(self.latency, self.config, self.ref_latency, self.libcode, self.func, kernel)
            whole.save_to_disk(staged, verbose)
            if missing := _missing(staged):
                raise AtuneError(f"{path} could not be saved: tilelang did not write {', '.join(missing)}; see its log")
            saved = _saved(staged)
            if self.out_idx is not None:
                saved["out_idx"] = list(self.out_idx)
            saved |= {"target": resolved_target(kernel.target).tvm(), "execution_backend": kernel.execution_backend}
            (staged / OUT_IDX).write_text(json.dumps(saved))
            if path.exists():
                os.rename(path, Path(stage) / "replaced")
            os.rename(staged, path)

    @classmethod
    def load_from_disk(cls, path: Path | str, compile_args: CompileArgs) -> AutotuneResult | None:
        """Return the result in `path`, written by tilelang or by atune, or None if there is no complete one.

        ``auto`` in `compile_args` stands for the target and the adapter that atune saved. For an incomplete folder, a
        warning names the missing files. Folders without ``out_idx.json`` are older; their outputs are
        `compile_args.out_idx`. Loading runs the code in the folder: load only folders that you trust.
        """
        path = Path(path)
        if not path.exists():
            return None
        if missing := _missing(path):
            warnings.warn(f"{path} is not used: it lacks {', '.join(missing)}", CompatWarning, stacklevel=2)
            return None
        saved = _saved(path)
        recorded = saved.get("out_idx")
        out_idx = positions(compile_args.out_idx if recorded is None else recorded)  # tilelang changes its list
        for name in {"target", "execution_backend"} & saved.keys():
            if getattr(compile_args, name) == "auto":
                compile_args = replace(compile_args, **{name: saved[name]})
        found = original("AutotuneResult").load_from_disk(path, compile_args)
        if found is None:
            warnings.warn(f"{path} is not used: it holds another backend's kernel", CompatWarning, stacklevel=2)
            return None
        return cls(**{name: value for name, value in vars(found).items() if hasattr(cls, name)}, out_idx=out_idx)


def _saved(path: Path) -> dict[str, Any]:
    """Return what a folder says of its kernel's outputs, and where atune saved it, of target and adapter."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((path / OUT_IDX).read_text()))
    return {}


def _missing(path: Path) -> list[str]:
    """Return the files that the folder lacks."""
    missing = [name for name in (*FILES, tilelang.param.PARAMS_PATH) if not (path / name).is_file()]
    if not any((path / name).is_file() for name in LIBRARIES):
        missing.append(f"a library ({', '.join(LIBRARIES)})")
    return missing


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function's own `locals()` as the arguments that it was called with."""
    return {name: value for name, value in arguments.items() if name not in ("self", "func")}


def positions(out_idx: list[int] | int | None) -> tuple[int, ...] | None:
    return None if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)


def _alone(kernel: Any) -> Any:
    """Return `kernel` from a library of its own. The library of a tuning also holds other candidates."""
    return kernel.as_tilelang() if hasattr(kernel, "as_tilelang") else kernel


class AutoTuner:
    """Tunes one kernel function over a list of configurations.

        tuner = AutoTuner.from_kernel(matmul, configs=[{"block_M": 64}, {"block_M": 128}])
        tuner.set_compile_args(out_idx=[-1], target="cuda").set_profile_args(ref_prog=reference)
        result = tuner.run()
        result.kernel(A, B)

    `fn`: a function of the configuration that returns a PrimFunc, plain or under `@tilelang.jit`. `configs`: dicts, a
    generator of them, or a callable of the kernel's raw arguments that returns either. Each run calls it.
    """

    def __init__(self, fn: Callable[..., Any], configs: Any) -> None:
        self.fn = _tunable(fn)
        self.configs = list(configs) if isinstance(configs, Iterator) else configs
        self.compile_args = _compile_args_of(self.fn)
        self.profile_args = ProfileArgs(timeout=RUN_TIMEOUT_S)
        self._captured: list[Any] | None = None
        self._kernel_parameters: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @classmethod
    def from_kernel(cls, kernel: Callable[..., Any], configs: Any) -> AutoTuner:
        """Return a tuner of `kernel`."""
        return cls(kernel, configs)

    @property
    def cache_dir(self) -> Path:
        """Folder of the results."""
        return ResultCache(environment.cache_root()).folder

    def set_compile_args(
        self,
        out_idx: list[int] | int | None = None,
        target: Any = None,
        execution_backend: str | None = None,
        target_host: Any = None,
        verbose: bool | None = None,
        pass_configs: Mapping[str, Any] | None = None,
    ) -> AutoTuner:
        """Set how candidates are compiled. None: tilelang's environment variable, or its default."""
        self.compile_args = CompileArgs(
            out_idx=out_idx,
            **environment.compile_defaults(target, execution_backend, verbose),
            target_host=target_host,
            pass_configs=dict(pass_configs) if isinstance(pass_configs, Mapping) else pass_configs,
            compile_flags=self.compile_args.compile_flags,
        )
        with drop_in():
            backend_of(self.compile_args.execution_backend, resolved_target(self.compile_args.target))  # or a mistake
        return self

    def set_profile_args(
        self,
        warmup: int = 25,
        rep: int = 100,
        timeout: float = RUN_TIMEOUT_S,
        supply_type: Any = "auto",
        ref_prog: Function = None,
        supply_prog: Function = None,
        rtol: float = 1e-2,
        atol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
        skip_check: bool = False,
        manual_check_prog: Function = None,
        cache_input_tensors: bool | None = None,
        backend: str = "event",
    ) -> AutoTuner:
        """Set how `run` checks and times candidates. See `ProfileArgs`."""
        profile = ProfileArgs(**_given(locals()))
        captured = get_autotune_inputs()
        if captured is not None:
            self._captured = list(captured)
            if profile.supply_prog is not None:
                warn_once("supply_prog", "is not called inside `with set_autotune_inputs(...)`, which gives tensors")
        elif profile.supply_prog is not None and str(profile.supply_type).rpartition(".")[2].lower() != "auto":
            warn_once("supply_type", "has no effect with supply_prog, which gives tensors")
        self.profile_args = profile
        return self

    def set_kernel_parameters(
        self, k_parameters: tuple[Sequence[Any], Any], f_parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Set the kernel function's arguments: ``(args, kwargs)``. kwargs may be pairs."""
        args, kwargs = k_parameters
        self._kernel_parameters = tuple(args), dict(kwargs)

    def generate_cache_key(self, parameters: Mapping[str, Any], extra_parameters: Mapping[str, Any]) -> str | None:
        """Return the key of the result of `run`. None if a callback cannot be sent to other processes.

        It covers the configurations, outputs, inputs and checks, and callbacks with all objects that they refer to.
        `parameters` and `extra_parameters` do not count: the kernel has its defaults and its closure's contents.
        """
        profile = self.profile_args
        for callback in (profile.ref_prog, profile.supply_prog, profile.manual_check_prog):
            if callback is not None and not can_be_sent(callback):
                return None
        return self.call_of(TilelangKernel(self.fn), {}).work.key.text

    def run(
        self,
        warmup: int | None = None,
        rep: int | None = None,
        timeout: float | None = None,
        use_pipeline: bool | None = None,
        enable_grouped_compile: bool | None = None,
        group_compile_size: int | None = None,
        benchmark_devices: Sequence[int] | None = None,
        benchmark_multi_gpu: bool | None = None,
        early_stop: bool | None = None,
        early_stop_factor: float | None = None,
    ) -> AutotuneResult:
        """Tune, or find the result of the same tuning. None: `set_profile_args` or the engine decides.

        Raises `ConfigError`, `ArgumentError` and other `UsageError`s for arguments that cannot work, and
        `TuningFailed` if no configuration works.
        """
        asked, kernel = checked(_given(locals())), TilelangKernel(self.fn)
        with drop_in():
            return result_of(kernel, self.call_of(kernel, asked))

    def __call__(self) -> AutotuneResult:
        return self.run()

    def call_of(self, kernel: TilelangKernel, asked: Mapping[str, Any], do_not_specialize: Any = ()) -> TilelangCall:
        """Return the analysed call of `kernel` with this tuner's arguments, and those `asked` for `run`."""
        args, kwargs = self._kernel_parameters or ((), {})
        return TilelangCall(kernel, self._options(asked, do_not_specialize), args, kwargs)

    def _options(self, asked: Mapping[str, Any], do_not_specialize: Any) -> Options:
        """Return this tuner's arguments as options of atune's decorator."""
        profile, compile_args = self.profile_args, self.compile_args
        captured = self._captured if self._captured is not None else get_autotune_inputs()
        inputs: Callable[..., Any] | None = None
        if captured is not None:
            inputs = GivenTensors(captured)
        elif profile.supply_prog is not None:
            inputs = supplied(profile.supply_prog)
        return Options(
            space=self.configs,
            leave_out=frozenset(names_in("do_not_specialize", do_not_specialize)),
            hints={} if compile_args.pass_configs is None else {PASS_CONFIGS: compile_args.pass_configs},
            inputs=inputs,
            workload={
                "reference": lazy_callback(profile.ref_prog),
                "check": judging(profile.manual_check_prog, profile.ref_prog is not None),
                "out_idx": compile_args.out_idx,
                "supply": profile.supply_type,
                "rtol": profile.rtol,
                "atol": profile.atol,
                "max_mismatched_ratio": profile.max_mismatched_ratio,
            },
            cache=ResultCache(environment.cache_root()) if environment.caching() else None,
            **plan(compile_args, profile, asked),
        )


def result_of(kernel: TilelangKernel, call: Call) -> AutotuneResult:
    """Return the result of a call. Tunes if it is unknown."""
    if call.explicit:
        warn_once(f"tunable parameters {call.explicit}", "are given in the call: nothing is tuned")
    winner, compiled = (None, made(call)) if call.explicit else kernel.chosen(call)
    if winner is None:
        compiled.config = {name: value for name, value in call.given.values.items() if name in call.tunables}
    return AutotuneResult(
        latency=None if winner is None else winner.latency_ms,
        config=compiled.config,
        ref_latency=None if winner is None else winner.reference_ms,
        libcode=compiled.get_kernel_source(),
        func=compiled.prim_func,
        kernel=compiled,
        winner=winner,
        out_idx=positions(call.options.workload["out_idx"]),
    )


@contextmanager
def drop_in() -> Iterator[None]:
    """Keep files where tilelang's variables say, and turn errors into those that programs for its tuner catch."""
    try:
        with cache_folder_at(environment.cache_root()):
            yield
    except NoWinner as error:
        raise TuningFailed(f"Auto-tuning failed: {error}", error.result) from error
    except InputsMissing as error:
        raise ScalarMissing(
            f"{error}; give tensors and scalars with `with set_autotune_inputs(...)`, or with supply_prog"
        ) from error
    except SpaceError as error:
        raise ConfigError(str(error)) from error
    except UsageError as error:
        if isinstance(error, ValueError):
            raise
        raise ArgumentError(str(error)) from error
    except TypeError as error:
        raise ArgumentError(f"the kernel cannot be called like that: {error}") from error


def _tunable(fn: Any) -> Any:
    """Return the kernel function in `fn`. Raises `ArgumentError` for a compiled kernel."""
    fn = getattr(fn, "jit_impl", fn)  # what `autotune` returns
    if is_compiled(fn):
        raise ArgumentError(
            "from_kernel takes the function that makes the kernel, and got a compiled kernel: omit the call"
        )
    if not callable(fn):
        raise ArgumentError(f"from_kernel takes the function that makes the kernel, got {fn!r}")
    return fn


def _compile_args_of(fn: Any) -> CompileArgs:
    """Return the compile arguments given to `@tilelang.jit`. The defaults for a plain function."""
    if getattr(fn, "get_tir", None) is None:
        return CompileArgs()
    flags = getattr(fn, "compile_flags", None)
    return CompileArgs(
        out_idx=fn.out_idx,
        **environment.compile_defaults(fn.target, fn.execution_backend, fn.verbose),
        target_host=fn.target_host,
        pass_configs=fn.pass_configs,
        compile_flags=((flags,) if isinstance(flags, str) else tuple(flags)) if flags else None,
    )


RETURN_KERNEL = "__return_kernel"
"""tilelang's keyword at a call: return the winner in both modes."""


class TunerCache(dict[Hashable, tuple[Any, dict[str, Any] | None]]):
    """A decorated kernel's winners in tilelang's form: kernel and configuration by tuned key.

    After `clear` the next call looks up or tunes again. Results on disk stay.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        super().__init__()
        self._forget = forget

    def clear(self) -> None:
        """Forget all winners in this program."""
        super().clear()
        self._forget()


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

    def __init__(self, jit_impl: Any, given: Mapping[str, Any]) -> None:
        super().__init__(jit_impl)
        self.jit_impl, self._given = jit_impl, [*given]
        vars(self).update(given)
        if isinstance(self.configs, Iterator):
            self.configs = list(self.configs)
        self.results: dict[Hashable, AutotuneResult] = {}
        self._tuner_cache = TunerCache(self.forget)
        """`results` under tilelang's name and in its form."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop(RETURN_KERNEL, False):
            return self.compile(*args, **kwargs)
        return super().__call__(*args, **kwargs)

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
        run = set(self._given) - {*PROFILE, "configs", "do_not_specialize"}
        return tuner.call_of(self, checked(self._values(run)), self.do_not_specialize or ())

    def _values(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def entry_of(self, call: Call) -> Entry:
        return self.launched(call, self._result(call).kernel)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        with drop_in():
            return super()._entry(args, kwargs)

    def _result(self, call: Call) -> AutotuneResult:
        """Return the result for the call's key: calls that differ in what does not specialize share it, as there."""
        counts = {n: v for n, v in call.given.given.items() if n not in call.options.leave_out}
        key = self.form_of((), counts) if call.explicit else call.key_text
        if (found := self.results.get(key)) is None:
            found = self.results.setdefault(key, result_of(self, call))
            self._tuner_cache[key] = found.kernel, found.config
        return found

    def forget(self, key: Any = None) -> None:
        super().forget(key)
        self.results.clear()
        dict.clear(self._tuner_cache)

    def get_tuner(self) -> AutoTuner:
        """Return an `AutoTuner` with this decorator's arguments."""
        tuner = AutoTuner(self.jit_impl, self.configs)
        tuner.set_profile_args(**self._values(PROFILE))
        return tuner

    get_tunner = get_tuner  # tilelang's spelling

    def __reduce__(self) -> Any:
        return AutoTuneImpl, (self.jit_impl, self._values(self._given))


def autotune(
    func: Any = None,
    *,
    configs: Any = None,
    warmup: int = 25,
    rep: int = 100,
    timeout: float = 100,
    supply_type: Any = "auto",
    ref_prog: Function = None,
    supply_prog: Function = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Function = None,
    cache_input_tensors: bool | None = None,
    do_not_specialize: str | Sequence[str] | None = None,
    early_stop: bool | None = None,
    early_stop_factor: float | None = None,
    backend: str = "event",
    use_pipeline: bool | None = None,
    enable_grouped_compile: bool | None = None,
    group_compile_size: int | None = None,
    benchmark_devices: Sequence[int] | None = None,
    benchmark_multi_gpu: bool | None = None,
) -> Callable[[Any], AutoTuneImpl]:
    """Return a decorator for a kernel function under `@tilelang.jit`.

    `configs`: dicts, a generator of them, or a callable of the caller's raw arguments that returns either.
    `do_not_specialize`: parameters whose values do not need tunings of their own; tunable ones are tuned whatever a
    call gives. The other parameters are those of `AutoTuner.set_profile_args` and `AutoTuner.run`.

    Raises `ArgumentError` for anything but a kernel function under `@tilelang.jit`.
    """
    given = checked(_given(locals()))
    if func is not None or configs is None:
        raise ArgumentError("autotune needs its configs: write @autotune(configs=...) above @tilelang.jit")

    def decorated(impl: Any) -> AutoTuneImpl:
        if not hasattr(impl, "get_tir"):
            raise ArgumentError(
                "@autotune goes above @tilelang.jit, over a kernel function; "
                f"it was given {getattr(impl, '__name__', impl)!r}"
            )
        return AutoTuneImpl(impl, given)

    return decorated

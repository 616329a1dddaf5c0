"""`AutoTuner`: tilelang's programmatic interface on atune's engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atune.api.cached_tune import Work, run_cached
from atune.api.discovery import discover
from atune.api.libraries import with_library
from atune.api.tuner import run
from atune.compat.tilelang import environment
from atune.compat.tilelang.arguments import CompileArgs, ProfileArgs, RunArgs, SetProfileArgs
from atune.compat.tilelang.callbacks import GivenTensors, Sealed, can_be_sent, supplied
from atune.compat.tilelang.capture import get_autotune_inputs
from atune.compat.tilelang.notices import ArgumentError, ConfigError, ScalarMissing, TuningFailed, warn_once
from atune.compat.tilelang.parameters import method_takes
from atune.compat.tilelang.plan import Plan, plan, resolved_target
from atune.compat.tilelang.problem import Problem, described
from atune.compat.tilelang.result import AutotuneResult, of_winner
from atune.errors import InputsMissing, NoWinner, SpaceError
from atune.journal.result import TuneResult
from atune.model.candidate import RESERVED, config_key
from atune.model.device import parse_target
from atune.storage.result_cache import ResultCache
from atune.system.paths import cache_folder_at
from atune.workload.introspect import function_of
from atune.workload.workload import Workload


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
        self.configs = configs
        self.compile_args = _compile_args_of(self.fn)
        self.profile_args = self._unset = ProfileArgs()
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
            target=environment.default_target() if target is None else target,
            execution_backend=environment.default_backend() if execution_backend is None else execution_backend,
            target_host=target_host,
            verbose=environment.default_verbose() if verbose is None else verbose,
            pass_configs=None if pass_configs is None else dict(pass_configs),
            compile_flags=self.compile_args.compile_flags,
        )
        resolved_target(self.compile_args.target)  # reports a mistake now
        return self

    @method_takes(SetProfileArgs)
    def set_profile_args(self, *args: Any, **kwargs: Any) -> AutoTuner:
        """Set how `run` checks and times candidates. See `ProfileArgs`."""
        profile = ProfileArgs(**vars(SetProfileArgs(*args, **kwargs)))
        captured = get_autotune_inputs()
        if captured is not None:
            self._captured = list(captured)
            if profile.supply_prog is not None:
                warn_once("supply_prog", "is not called inside `with set_autotune_inputs(...)`, which gives tensors")
        elif profile.supply_prog is not None and _name_of(profile.supply_type) != "auto":
            warn_once("supply_type", "has no effect with supply_prog, which gives tensors")
        if profile.manual_check_prog is not None and profile.ref_prog is None:
            warn_once("manual_check_prog", "is not called without ref_prog: it compares with the reference's outputs")
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
        planned, configs = self._plan(RunArgs()), self._configs()
        return Work(self.workload(configs, self._arguments()), **planned.options()).key.text

    @method_takes(RunArgs)
    def run(self, *args: Any, **kwargs: Any) -> AutotuneResult:
        """Tune, and return the winner.

        `warmup`, `rep`, `timeout`: replace those of `set_profile_args`. `use_pipeline`: False measures after all
        compiling. `enable_grouped_compile`: True makes libraries of `group_compile_size` candidates (2), False of
        one; otherwise the engine decides. `benchmark_multi_gpu`: measure on `benchmark_devices`, or on all GPUs;
        otherwise on the current one. `early_stop`: False takes all samples of every candidate.

        Raises `ConfigError`, `ArgumentError` and other `UsageError`s for arguments that cannot work, and
        `TuningFailed` if no configuration works.
        """
        planned = self._plan(RunArgs(*args, **kwargs))
        configs = self._configs()
        arguments = self._arguments()
        with cache_folder_at(environment.cache_root()):
            if given := sorted({n for n in configs[0] if n in arguments}):
                warn_once(f"tunable parameters {given}", "are given in the call: nothing is tuned")
                target = parse_target(planned.target)
                if target is None or (target.kind == "cuda" and not target.arch):
                    target, _ = discover(planned.target, planned.devices)
                return of_winner(self.fn, arguments, {}, self.compile_args, target, None, None)
            return self._tuned(planned, configs, arguments)

    def _plan(self, asked: RunArgs) -> Plan:
        profiled = self.profile_args is not self._unset
        return plan(self.compile_args, self.profile_args if profiled else None, asked)

    def _tuned(
        self, planned: Plan, configs: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> AutotuneResult:
        """Tune, and return the winner with its library."""
        try:
            workload = self.workload(configs, arguments)
        except SpaceError as error:
            raise ConfigError(str(error)) from error
        result = _result_of(workload, planned)
        assert result.best_config is not None and result.header is not None
        # Match the winner's key, because a result from the cache may have another order.
        index = {candidate.key: candidate.index for candidate in workload.candidates()}
        winner = configs[index[config_key(result.best_config)]]
        target = result.header.target
        made = partial(of_winner, self.fn, arguments, winner, self.compile_args, target, result)
        if (library := result.artifact) is not None:
            return made(library)
        alone = Workload(
            workload.kernel,
            [result.best_config],
            arguments=workload.arguments,
            out_idx=workload.out_idx,
            pass_configs=self.compile_args.pass_configs,
        )
        return with_library(alone, target, planned.compile, made)

    def __call__(self) -> AutotuneResult:
        return self.run()

    def workload(self, configs: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> Workload:
        """Return the work to tune, as atune's `Workload`."""
        profile = self.profile_args
        captured = self._captured if self._captured is not None else get_autotune_inputs()
        inputs: Callable[..., Any] | None = None
        if captured is not None:
            inputs = GivenTensors(captured)
        elif profile.supply_prog is not None:
            inputs = supplied(profile.supply_prog)
        problem = Problem(self.fn, configs, arguments, self._is_eager)
        out_idx: Any = self.compile_args.out_idx if problem.out_idx is None else problem.out_idx
        with_reference = profile.ref_prog is not None
        return Workload(
            problem.kernel,
            problem.configs,
            arguments=problem.arguments,
            inputs=inputs,
            reference=Sealed(profile.ref_prog) if profile.ref_prog is not None else None,
            check=Sealed(profile.manual_check_prog) if with_reference and profile.manual_check_prog else None,
            out_idx=() if out_idx is None else out_idx,
            supply=profile.supply_type,
            rtol=profile.rtol,
            atol=profile.atol,
            max_mismatched_ratio=profile.max_mismatched_ratio,
            pass_configs=self.compile_args.pass_configs,
        )

    def _configs(self) -> list[dict[str, Any]]:
        """Return the configurations of this run, each once, in order. Raises `ConfigError`."""
        if callable(self.configs):
            args, kwargs = self._kernel_parameters or ((), {})
            found: Any = self.configs(*args, **kwargs)
        else:
            if isinstance(self.configs, Iterator):
                self.configs = list(self.configs)  # it can be read only once
            found = self.configs
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
            raise ConfigError(f"configs must be dicts, or a callable or generator that gives them; got {found!r}")
        parameters = inspect.signature(function_of(self.fn)).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        configs: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        for config in found:
            if not isinstance(config, Mapping):
                raise ConfigError(f"configs must be dicts, or a callable or generator that gives them; got {config!r}")
            unused = sorted(set(config) - set(parameters) - RESERVED)
            if unused and not takes_any:
                raise ConfigError(f"Unused keys in config: {unused}; the kernel takes {', '.join(parameters)}")
            configs.setdefault(tuple(sorted((n, described(v)) for n, v in config.items())), dict(config))
        if not configs:
            raise ConfigError("No configurations to tune: give a list of dicts, or a callable that returns one")
        return list(configs.values())

    def _arguments(self) -> dict[str, Any]:
        """Return the kernel's arguments by name. An eager kernel also takes sizes by name, instead of tensors."""
        args, kwargs = self._kernel_parameters or ((), {})
        sizes: dict[str, Any] = {}
        if self._is_eager:
            parameters = inspect.signature(function_of(self.fn)).parameters
            sizes = {name: value for name, value in kwargs.items() if name not in parameters}
            kwargs = {name: value for name, value in kwargs.items() if name in parameters}
        try:
            bound = inspect.signature(function_of(self.fn)).bind_partial(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"the kernel cannot be called like that: {error}") from error
        found: dict[str, Any] = sizes
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                raise ArgumentError(f"the kernel's *{name} cannot be tuned over: give its parameters names")
            else:
                found[name] = value
        return found

    @property
    def _is_eager(self) -> bool:
        """Whether the kernel is under `@tilelang.jit` in eager mode: its tensors are its arguments."""
        return getattr(self.fn, "mode", None) == "eager"


def _result_of(workload: Workload, planned: Plan) -> TuneResult:
    """Tune `workload`, or find its result. Raises what `AutoTuner.run` raises."""
    try:
        if environment.caching():
            return run_cached(workload, cache=ResultCache(environment.cache_root()), **planned.options())
        return run(workload, **planned.options())
    except NoWinner as error:
        raise TuningFailed(f"Auto-tuning failed: {error}", error.result) from error
    except SpaceError as error:
        raise ConfigError(str(error)) from error
    except InputsMissing as error:
        raise ScalarMissing(
            f"{error}; give tensors and scalars with `with set_autotune_inputs(...)`, or with supply_prog"
        ) from error
    finally:
        if isinstance(workload.inputs, GivenTensors):
            workload.inputs.discard()


def _tunable(fn: Any) -> Any:
    """Return the kernel function in `fn`. Raises `ArgumentError` for a compiled kernel."""
    fn = getattr(fn, "jit_impl", fn)  # what `autotune` returns
    if hasattr(fn, "prim_func") and hasattr(fn, "adapter"):
        raise ArgumentError(
            "from_kernel takes the function that makes the kernel, and got a compiled kernel: omit the call"
        )
    if not callable(fn):
        raise ArgumentError(f"from_kernel takes the function that makes the kernel, got {fn!r}")
    return fn


def _name_of(supply_type: Any) -> str:
    return str(getattr(supply_type, "name", supply_type)).lower()


def _compile_args_of(fn: Any) -> CompileArgs:
    """Return the compile arguments given to `@tilelang.jit`. The defaults for a plain function."""
    if getattr(fn, "get_tir", None) is None:
        return CompileArgs()
    flags = getattr(fn, "compile_flags", None)
    return CompileArgs(
        out_idx=fn.out_idx,
        target=environment.default_target() if fn.target is None else fn.target,
        execution_backend=fn.execution_backend or environment.default_backend(),
        target_host=fn.target_host,
        verbose=environment.default_verbose() if fn.verbose is None else fn.verbose,
        pass_configs=fn.pass_configs,
        compile_flags=((flags,) if isinstance(flags, str) else tuple(flags)) if flags else None,
    )

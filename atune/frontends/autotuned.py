"""The decorator `autotune`, the self-tuning kernel that it returns, and `tunings`, which lists the winners in use."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import NoneType
from typing import Any, TypeVar, Unpack, overload

import anyio.to_thread
import msgspec

from atune.errors import AtuneError, MachineError, UsageError, WorkerError
from atune.frontends.blocking import run_blocking
from atune.frontends.call import Call, Entry, TunableKernel, TunedCall, launcher
from atune.frontends.compile_all import plain_library
from atune.frontends.decorator_options import ON_MISS, TUNING, AutotuneOptions, OnMiss, Options, checked_options
from atune.frontends.winners import Winner, Winners
from atune.journal.result import TuneResult
from atune.model.artifact import Artifact, Roles, fitting
from atune.model.candidate import PASS_CONFIGS, Config, config_key, describe_config, printable, typed_text
from atune.model.device import Target
from atune.model.options import converted, documents, refuse_unknown
from atune.model.settings import CompileSettings
from atune.reporting.export import aligned
from atune.reporting.text import printed
from atune.workers.artifact_store import ArtifactStore
from atune.workers.result_key import CacheEntry, open_sizes
from atune.workers.server import in_worker, warm_early
from atune.workload.fingerprint import function_of, kernel_fingerprint
from atune.workload.packing import Packed, pack, unpack
from atune.workload.pickling import ship
from atune.workload.workload import Workload, candidates_of, describe, outputs_named

_PLAIN = frozenset({int, float, str, bool, NoneType, bytes})
T = TypeVar("T")
Loading = Callable[[Artifact | None], T]


def with_library(workload: Workload, target: Target, settings: CompileSettings, use: Loading[T]) -> T:
    """Pass the library of `workload`, which has a single configuration, to `use`, and return the result of `use`.

    This process compiles nothing: if the artifact store lacks the library, a worker process compiles it. In a worker,
    which must not start workers, `use` gets None and compiles. Blocks the thread. Raises `CompileFailed`.
    """
    stored = None
    if settings.store:
        with suppress(Exception):  # the worker will report the error
            (candidate,) = candidates_of(workload)
            lowering = importlib.import_module("atune.stages.lowering")
            key = lowering.store_key(workload, candidate.config, target, settings)
            stored = ArtifactStore().find(key, candidate.index) if key else None
    if stored is not None or in_worker():
        return use(stored)
    built: T = run_blocking(_built, workload, target, settings, use)
    return built


async def _built(workload: Workload, target: Target, settings: CompileSettings, use: Loading[T]) -> T:
    (candidate,), spec = candidates_of(workload), describe(workload)
    async with plain_library(ship(workload), candidate, target, settings, spec) as (_, artifact):
        return await anyio.to_thread.run_sync(use, artifact)


def load_kernel(
    call: Call,
    kernel: Any,
    written: Mapping[str, Any],
    config: Config,
    winner: Winner | None = None,
    artifact: Artifact | None = None,
) -> Any:
    """Return a `tilelang.JITKernel` that calls `artifact`. If `artifact` is None, tilelang compiles `kernel` itself.

    `written`, `config`: arguments and configuration as the user wrote them. `winner`: gives roles and latencies.
    """
    jit, options = call.options.jit, call.options
    if jit is None:
        taken = ("pass_configs", "execution_backend", "verbose") if call.owner.is_jit else ()
        jit = {name: getattr(call.owner.kernel, name, None) for name in taken}
        jit["out_idx"] = outputs_named(call.owner.kernel, options.workload.get("out_idx"))
    settings = call.plan.settings.compile
    passes = (settings.pass_configs, jit.get("pass_configs"), call.hints.get(PASS_CONFIGS))
    with call.owner.frontend.frontend_lock:
        return importlib.import_module("atune.stages.jit_kernel").jit_kernel(
            kernel,
            written,
            config,
            target=call.target,
            artifact=artifact,
            roles=_roles(call, kernel, written, config, winner),
            flags=settings.flags,
            latency_ms=None if winner is None else winner.latency_ms,
            reference_ms=None if winner is None else winner.reference_ms,
            **{**jit, "pass_configs": {name: value for each in passes for name, value in (each or {}).items()}},
        )


def explicit_kernel(call: Call) -> Any:
    """Return the kernel for a call that passes values for the tunable arguments. tilelang compiles the kernel."""
    return load_kernel(call, call.owner.kernel, {**call.own_hints, **call.given}, {})


def _roles(call: Call, kernel: Any, written: Mapping[str, Any], config: Config, winner: Winner | None) -> Roles:
    """Return the roles of the kernel's parameters. If the roles from the tuning fit the kernel, return these roles.

    Each call of an eager kernel passes all tensors of the kernel, including the outputs.
    """
    tuned = None if winner is None else winner.roles
    if tuned is not None and call.eager:
        roles = tuned
    else:
        given, stage = call.options.workload, call.owner.frontend
        named, kept = outputs_named(kernel, given.get("out_idx")), (given.get("zero") or (), given.get("restore") or ())
        default = given.get("default") or {}  # may crash this process, which the tuned roles make unnecessary
        tried = [config] if tuned is not None or not call.sets_all(default) else [config, default]
        each = (stage.first_function(kernel, written, [c]) for c in tried)
        own = [stage.roles_of(function, named, *kept) for function in each if function is not None]
        roles = fitting(own[0], own[-1]) if own else Roles()  # if neither lowers, compiling reports the reason
        if tuned is not None:
            # The tuned roles belong to the winner at the tuned size. Another size may have an additional parameter.
            moved = len(tuned.outputs) == len(roles.outputs) and sorted(tuned.outputs) != sorted(roles.outputs)
            roles = msgspec.structs.replace(roles, set_up=tuned.set_up) if moved else tuned
    return roles.where_given(range(len(call.names)))


class TunedKernel(TunableKernel):
    """A kernel that runs each call with the winner for the call's key. Subclasses decide how a call is analysed.

    The first call of each form finds or compiles the kernel for this form, and later calls of the form look it up.
    Threads and tasks may share a `TunedKernel`: one thread or task tunes while the others wait.
    """

    is_autotuned = True
    """A mark by which `Workload` recognizes that this object is not a plain kernel function."""

    def __init__(self, kernel: Any) -> None:
        functools.update_wrapper(self, function_of(kernel))
        super().__init__(kernel)
        self._at_run_time: frozenset[int | str] = frozenset()
        self._entries: dict[Hashable, Entry] = {}
        self._kernels: dict[str, Any] = {}
        self.winners = Winners(self.__name__, self._entries.clear)
        self._building = threading.Lock()
        """A lock that is held while a worker compiles for a call, so that only one thread starts the worker."""
        self._tensor: Any = importlib.import_module("torch").Tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel with the fastest configuration. If this configuration is unknown, tune first."""
        entry = self._entries.get(self.form_of(args, kwargs))
        if entry is None:
            entry = self._entry(args, kwargs)
        return entry(args, kwargs)

    def workload_for(self, arguments: Mapping[str, Any]) -> Workload:
        """Return the workload that a call with these arguments would tune. Raises the same errors as the call."""
        return self.call_of((), arguments).tuned.workload

    def forget(self, meant: Callable[[str], bool] = bool) -> None:
        """Remove each winner from memory if `meant` returns true for its key's text. By default, remove all."""
        self._entries.clear()
        self._kernels.clear()
        self.winners.forget(meant)

    def known(self) -> dict[tuple[str, str], Winner]:
        """Return the winners in memory, by the text of the winner's key and the text of the tuned problem."""
        keys = [*self.winners.known.items()]  # copies, because other threads may add winners
        return {(key, problem): winner for key, winners in keys for problem, winner in [*winners.items()]}

    def by_value(self) -> tuple[Any, ...]:
        """Return a function and its arguments, as ``__reduce__`` does, to rebuild the kernel without its module."""
        raise NotImplementedError

    @property
    def by_name(self) -> str:
        """The name by which other processes find the kernel in its module; empty if they do not find it."""
        module, name = self.__module__, str(getattr(self, "__qualname__", self.__name__))
        found = module != "__main__" and getattr(sys.modules.get(module), name, None) is self
        return name if found else ""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the kernel by name, as functions are pickled. If a script defines the kernel, include its parts."""
        if self.by_name:
            return self.by_name
        packed, name = pack(self.by_value()), str(getattr(self, "__qualname__", self.__name__))
        return _named, (self.__module__, name, packed.stream, [*map(bytes, packed.buffers)])

    def __repr__(self) -> str:
        n = len(self.winners.known)
        return f"<autotuned {self.__name__}, {n} key{'s' * (n != 1)} known>"

    # Parts of a call

    def call_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Return the analysis of a call."""
        raise NotImplementedError

    def kernel_for(self, call: Call) -> Any:
        """Return the compiled kernel for a call. A call's own configuration takes precedence over the winner."""
        raise NotImplementedError

    def form_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """Return a key for the form of a call. Every call needs the key, so making the key must be fast.

        A tensor's form is its dtype, shape and strides. If a compiled kernel takes a number at run time, the number's
        form is its type. Values of different types have different forms, even if Python considers the values equal.
        """
        parts: list[Any] = []
        for name, value in itertools.chain(enumerate(args), sorted(kwargs.items()) if kwargs else ()):
            kind = type(value)
            if kind is self._tensor:
                parts += (name, value.dtype, value.shape, value.stride())
            elif kind in _PLAIN:
                parts += (name, kind, None if name in self._at_run_time else value or repr(value))  # 0.0 is not -0.0
            else:
                parts += (name, self._described(value))
        return tuple(parts)

    def _described(self, value: Any) -> Hashable:
        if isinstance(value, self._tensor):  # a subclass, such as torch.nn.Parameter
            return (type(value), value.dtype, value.shape, value.stride())
        return typed_text(self.data(value, f"{self.__name__}: an argument"), {"": value})

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Find the kernel for calls of this form, and remember it."""
        call = self.call_of(args, kwargs)
        tuned = None if call.explicit else call.tuned
        if lacking := [name for name in call.names if name not in call.values]:
            raise TypeError(f"{self.__name__} lacks the argument {lacking[0]!r}")
        if call.eager and not self._at_run_time:
            places = {i for i, name in enumerate(self.signature.parameters) if name in call.names}
            self._at_run_time = frozenset({*call.names, *places})
        if call.eager and tuned is not None:
            tuned.refuse_misfit()
        form = self.form_of(args, kwargs)
        entry = self._entries[form] = self.entry_of(call)
        return entry

    def entry_of(self, call: Call) -> Entry:
        """Return the callable for later calls of this form."""
        kernel = self.kernel_for(call)
        if call.eager:
            return launcher(kernel, call.names, self.signature, call.args)
        return lambda args, kwargs: kernel  # a call of a lazy kernel returns the compiled kernel

    # Kernels

    def chosen(self, call: Call) -> tuple[Winner, Any]:
        """Return the first usable winner for a call, and its compiled kernel. Warns of each winner that is unusable."""
        tuning = self._tuning_call(call)
        while True:
            winner = self.winners.find(tuning)
            try:
                return winner, self.kernel_of(call.tuned, winner)
            except (UsageError, MachineError, WorkerError):
                raise  # the winner is not at fault
            except Exception as error:
                self.winners.pass_over(tuning, winner, error)

    def _tuning_call(self, call: Call) -> TunedCall:
        """Return the tuning for a call. If `tune_on` is set, the tuning uses the arguments that `tune_on` returns."""
        if call.options.tune_on is None:
            return call.tuned
        other = call.ask("tune_on", call.options.tune_on)
        if not isinstance(other, Mapping):
            raise UsageError(f"tune_on must return arguments by name, such as {{'A': scratch}}, but returned {other!r}")
        return TunedCall(self.call_of((), {**call.given, **other}), launch=call.tuned)

    def kernel_of(self, tuned: TunedCall, winner: Winner) -> Any:
        """Return the compiled kernel for a call with the winner's configuration, preferably from the measured library.

        If that library is gone or is for other arguments, the artifact store or a compile worker provides a library.
        """
        name = typed_text([tuned.arguments, winner.config], tuned.written)
        if (known := self._kernels.get(name)) is not None:
            return known
        load = functools.partial(
            load_kernel, tuned.call, tuned.kernel, tuned.written, tuned.as_given(winner.config), winner
        )
        if winner.library is not None and isinstance(winner.tuned_for, Mapping):
            measured = winner.library() if self.means(winner.tuned_for, tuned.arguments) else None
            with suppress(AtuneError):  # the library cannot be loaded here
                if measured is not None:
                    return self._kernels.setdefault(name, load(measured))
        with self._building:
            if (known := self._kernels.get(name)) is not None:
                return known
            if error := self.winners.unusable.get(tuned.problem_text, {}).get(config_key(winner.config)):
                raise error  # another thread has just met this error
            space, passes = [tuned.workload.as_written(winner.config)], tuned.call.hints.get(PASS_CONFIGS)
            workload = Workload(tuned.kernel, space, arguments=tuned.written, pass_configs=passes)
            settings = tuned.call.plan.settings.compile
            return self._kernels.setdefault(name, with_library(workload, tuned.call.target, settings, load))


def _named(module: str, name: str, stream: bytes, buffers: list[bytes]) -> Any:
    """Return the kernel of this name, or rebuild it from its packed parts."""
    kernel = getattr(sys.modules.get(module), name, None)
    if isinstance(kernel, TunedKernel):
        return kernel
    make, parts = unpack(Packed(stream, tuple(buffers)))
    return make(*parts)


class Autotuned(TunedKernel):
    """A TileLang kernel under `@atune.autotune`.

    A call behaves like a call of the plain kernel, but uses the fastest configuration for the call's key. A call of a
    lazy kernel (which returns a PrimFunc) returns the compiled kernel. A call of an eager kernel (which has tensor
    annotations) runs the kernel and returns the outputs. The first call with a new key tunes the kernel.
    """

    def __init__(self, kernel: Any, options: Options) -> None:
        super().__init__(kernel)
        self.options = options

    def by_value(self) -> tuple[Any, ...]:
        """Return the class and its arguments. The listeners, and the winners in memory, are left out."""
        alone = replace(self.options.plan, on_event=None, log=None, progress=None)
        return Autotuned, (self.kernel, msgspec.structs.replace(self.options, plan=alone))

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the compiled kernel with the fastest configuration, without running the kernel. Tunes first if needed.

        If the kernel is eager, pass its tensors, or pass its `T.const` dimensions by name.
        """
        return self.kernel_for(self.call_of(args, kwargs))

    def as_op(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return the compiled kernel for a call as the `torch.library` operator `name`, such as ``mylib::gemm``."""
        return self.compile(*args, **kwargs).as_op(name)

    def tune(self, *args: Any, refresh: bool = False, **kwargs: Any) -> TuneResult:
        """Return the whole result for a call. If no result is known, tune. A result from the cache has `cache_hit` set.

        `refresh`: tune again even if the result is known. Tuning never changes the call's tensors.
        """
        return run_blocking(self.tune_async, *args, refresh=refresh, **kwargs)

    async def tune_async(self, *args: Any, refresh: bool = False, **kwargs: Any) -> TuneResult:
        """Tune like `tune`, in the running event loop. Afterwards, calls of this form neither tune nor compile.

        A cancellation stops the tuning, but keeps its measurements, so the next call continues the tuning.
        """
        call = await anyio.to_thread.run_sync(self.call_of, args, kwargs, abandon_on_cancel=True)
        tuning = await anyio.to_thread.run_sync(self._tuning_call, call, abandon_on_cancel=True)
        result = await self.winners.tuned(tuning, refresh)
        if (winner := await anyio.to_thread.run_sync(self.winners.serving, tuning)) is not None:
            with suppress(Exception):  # the call will report the error
                await anyio.to_thread.run_sync(self.kernel_of, call.tuned, winner, abandon_on_cancel=True)
        return result

    def best_config(self, *args: Any, on_miss: OnMiss | None = None, **kwargs: Any) -> Config:
        """Return the fastest configuration for a call. If this configuration is unknown, `on_miss` decides.

        ``tune`` tunes, ``pick`` asks the prior, ``default`` returns the default configuration, and ``error`` raises
        `CacheMiss`. If `on_miss` is None, the decorator's option `on_miss` applies.
        """
        if on_miss is not None:
            converted("on_miss", on_miss, OnMiss, ON_MISS)
        call = self.call_of(args, kwargs)
        return dict(call.tuned.as_given(self.winners.find(self._tuning_call(call), on_miss).config))

    def clear_cache(self, *, key: Any = None) -> int:
        """Remove the kernel's winners from memory and from the result cache. Returns the number of results removed.

        `key`: remove only the winners of this key. Give the arguments as a dictionary, as `tunings` shows them, or a
        value that the decorator's function `key` returned. You may leave out hints, and arguments with defaults.
        Raises `UsageError` if the key is not in this form, or lacks an argument that the keys of all results have.
        """
        cache, is_mine = self.options.cache, self._is_mine()
        given, names = ({"key": key}, ()) if callable(self.options.key) else (key, key or ())
        if key is not None and not isinstance(given, Mapping):
            listed = "; for a key that `atune cache ls` lists, use `atune cache clear --key KEY`"
            raise UsageError(f"clear_cache: key must be arguments by name, such as {{'n': 64}}, got {key!r}{listed}")
        chosen = {name: self.data(value, f"clear_cache: {name}") for name, value in (given or {}).items()}
        if not self.is_jit:
            self.check_names(names)
        optional = {name for name, p in self.signature.parameters.items() if p.default is not p.empty}
        optional |= {*self.options.hints, *chosen}
        lacking = list[set[str]]()

        def meant(problem: Any) -> bool:
            self.check_names(names, problem)  # a problem has the dimensions of an eager kernel, too
            left = {name: value for name, value in problem.items() if name not in optional}
            hints = {name: value for name, value in problem.items() if name in self.options.hints}
            if key is None or not self.means({**left, **hints, **chosen}, problem):
                return key is None
            lacking.append({*left})
            return not left

        self.forget(lambda text: meant(msgspec.json.decode(text.partition("\n")[0])))
        runs = [] if cache is None else [(run, run.entry) for run in cache.answers()]
        mine = [run for run, entry in runs if entry is not None and is_mine(entry) and meant(entry.parts.problem)]
        if lacking and all(lacking):
            raise UsageError(f"clear_cache: the key {key!r} is incomplete: add {', '.join(sorted(lacking[0]))}")
        return 0 if cache is None else cache.clear(mine)

    def has_result(self) -> bool:
        """Tell whether the result cache has a result for the kernel's current source, no matter for which problem."""
        cache, name = self.options.cache, self.options.workload.get("name") or self.__name__
        with suppress(Exception):  # the call will report the error
            return cache is not None and any(map(self._is_mine(), cache.entries(kernel=name)))
        return False

    def _is_mine(self) -> Callable[[CacheEntry], bool]:
        """Return a function that tells whether a cached result belongs to the kernel's current source."""
        source = functools.cache(lambda tuned: kernel_fingerprint(self.kernel, without_defaults=tuned))
        return lambda entry: bool(entry.parts.source == source(frozenset(entry.config)))

    def call_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        return Call(self, self.options, args, kwargs)

    def kernel_for(self, call: Call) -> Any:
        return explicit_kernel(call) if call.explicit else self.chosen(call)[1]


_all: weakref.WeakSet[Autotuned] = weakref.WeakSet()
"""All kernels that this program has decorated."""
_ELSEWHERE = {name: f'tuning={{"{name}": …}}' for name in TUNING}
"""For the name of each option that belongs in `tuning`, the correct way to write the option."""


@overload
def autotune(kernel: None = None, **options: Unpack[AutotuneOptions]) -> Callable[[Callable[..., Any]], Autotuned]: ...


@overload
def autotune(kernel: Callable[..., Any], **options: Unpack[AutotuneOptions]) -> Autotuned: ...


@documents(AutotuneOptions)
def autotune(kernel: Any = None, **options: Any) -> Any:
    """Tune a kernel when it is called. Put this decorator above `@tilelang.jit`.

    The first call with a new key tunes the kernel, and later calls look it up. Returns an `Autotuned`, or a decorator
    if `kernel` is None. If calls may tune, and no result for the kernel is cached, `warm` is called once per program.

        @atune.autotune(space={"block_M": [64, 128], "threads": [128, 256]})
        @tilelang.jit(out_idx=[-1])
        def matmul(M, N, K, block_M=128, threads=128): ...

    Raises `UsageError` or a subclass for invalid arguments. For an unknown option, the error is also a TypeError.

    Parameters
    ----------
    kernel
        The kernel, or None to get a decorator. Do not repeat the `out_idx` of `@tilelang.jit`, or outputs of `T.empty`.
    {options}
    """
    refuse_unknown("autotune", options, [*AutotuneOptions.__annotations__], _ELSEWHERE)
    known = checked_options(options)

    def decorate(kernel: Any) -> Autotuned:
        if not callable(kernel) or isinstance(kernel, Autotuned):
            raise UsageError(
                f"autotune: give a @tilelang.jit kernel, or a function that returns a PrimFunc, got {kernel!r}"
            )
        with suppress(OSError, TypeError):  # the kernel has no source
            above, ours, _ = inspect.getsource(kernel).partition("def ")[0].partition("autotune")
            if ours and re.search(r"^\s*@(\w+\.)*(lazy_)?jit\b", above, re.MULTILINE):  # tilelang does not report this
                raise UsageError("autotune: @tilelang.jit stands above @atune.autotune: swap the two decorators")
        autotuned = Autotuned(kernel, known)
        autotuned.check_names(known.names)
        _all.add(autotuned)
        if known.on_miss in ("tune", "pick") and not autotuned.has_result():
            warm_early()
        return autotuned

    return decorate if kernel is None else decorate(kernel)


class Tuned(Winner, frozen=True, kw_only=True):
    """A winner that a decorated kernel uses in this program.

    `kernel`: the kernel's name. `key`: the tuning's key, usually a dictionary of arguments. `source`: ``tuned`` (by
    this program), ``cache`` (the result cache) or ``shipped`` (a file). `result`: the tuning's result, or None.
    """

    kernel: str
    key: Any


class TunedTable(tuple[Tuned, ...]):
    """Winners, sorted by kernel and key. The winners print as a table."""

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("kernel", "key", "from", "latency ms", "reference ms", "config")]
        for tuned in self:
            times = ("–" if ms is None else f"{ms:.4g}" for ms in (tuned.latency_ms, tuned.reference_ms))
            key = describe_config(tuned.key) if isinstance(tuned.key, dict) else printable(repr(tuned.key))
            if sizes := open_sizes(tuned.key, tuned.tuned_for):
                key += f" (tuned for {describe_config(sizes)})"
            rows.append((printable(tuned.kernel), key, tuned.source, *times, describe_config(tuned.config)))
        return printed(aligned(rows))


def clear_cache(kernel: Autotuned | None = None, *, key: Any = None) -> int:
    """Call the method `clear_cache` of `kernel`, or of all decorated kernels. Returns the number of results removed.

    Raises `UsageError` if the key fits none of the kernels.
    """
    kernels = [*_all] if kernel is None else [kernel]
    removed, misfits = 0, list[UsageError]()
    for autotuned in kernels:
        try:
            removed += autotuned.clear_cache(key=key)
        except UsageError as error:  # the key may fit another kernel
            misfits.append(error)
            if key is None or len(misfits) == len(kernels):
                raise
    if key is not None and not kernels:
        raise UsageError(f"clear_cache: no kernel is decorated, so no result has the key {key!r}")
    return removed


def tunings() -> TunedTable:
    """Return the winners that decorated kernels have used in this program so far. The winners print as a table."""
    winners = [
        Tuned(
            kernel=kernel.options.workload.get("name") or kernel.__name__,
            key=msgspec.json.decode(key.partition("\n")[0]),
            **{**msgspec.structs.asdict(winner), "config": dict(winner.config)},
        )
        for kernel in list(_all)
        for (key, _), winner in kernel.known().items()
    ]
    return TunedTable(sorted(winners, key=lambda tuned: (tuned.kernel, typed_text(tuned.key, {}))))

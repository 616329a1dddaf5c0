"""What a call of a kernel function gives: inputs to tune with, and values that need not be data."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from atune.errors import UsageError
from atune.frontends.decorator.autotuned import TunedKernel
from atune.frontends.decorator.call import Arguments, Call
from atune.frontends.decorator.options import Options, listed
from atune.model.artifact import KernelParam
from atune.model.candidate import RESERVED, Config, check_reserved, config_key
from atune.model.space import Space
from atune.stages import tilelang
from atune.stages.frontend.frontend import encode
from atune.workload.fingerprint import function_of, kernel_fingerprint, signature_of
from atune.workload.packing import LazyCallback


def supplied(supply_prog: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `inputs` function that calls tilelang's `supply_prog(params)` for each set of inputs."""
    return functools.partial(_inputs, LazyCallback(supply_prog))  # of closures of atune only the name would count


def _inputs(supply_prog: Callable[..., Any], parameters: Sequence[KernelParam]) -> list[Any]:
    return list(supply_prog([_tilelang_param(parameter) for parameter in parameters]))


def _tilelang_param(parameter: KernelParam) -> Any:
    shape = [tilelang.tvm.tirx.Var(d, "int32") if isinstance(d, str) else d for d in parameter.shape or ()]
    return tilelang.KernelParam(tilelang.tvm.DataType(parameter.dtype), shape)


PLAIN = (type(None), bool, int, float, str)


class ByText:
    """A kernel that takes text in place of other objects, such as enums and functions, and looks them up.

    `tables`: for each parameter, the value of each text.
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


class TilelangKernel(TunedKernel):
    """A kernel whose arguments need not be data, such as enums and functions: text stands for others in keys."""

    def data(self, value: Any, where: str) -> Any:
        return _data_of(value)


class TilelangCall(Call):
    """A call of a `TilelangKernel`. The configurations, too, have the caller's own values."""

    def __init__(
        self, owner: TilelangKernel, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._given: dict[str, tuple[Config, Config]] = {}
        """For each configuration, by key: as data, and with the caller's own values."""
        self._tables: dict[str, dict[str, Any]] = {}
        """For each parameter, the value of each text."""
        super().__init__(owner, options, args, kwargs)

    def _space(self) -> Space:
        configs = self.options.space
        if callable(configs):
            asked, left_out = self.given, self.options.leave_out
            if left_out:  # as there: by name, with the defaults
                counts = {name: value for name, value in asked.values.items() if name not in left_out}
                asked = Arguments(self.owner.signature, (), counts, extra=True)
            configs = asked.ask("configs", configs)
        for given in listed("configs", configs):
            for name in RESERVED & given.keys():
                check_reserved(name, given[name], "configs")
            data = {n: v if n in RESERVED else self._data(n, v) for n, v in given.items()}
            self._given.setdefault(config_key(data), (data, given))
        return Space([data for data, _ in self._given.values()])

    def _data(self, name: str, value: Any) -> Any:
        data = super()._data(name, value)
        if isinstance(data, str) and type(value) is not str:
            self._tables.setdefault(name, {})[data] = value
        return data

    def _probes(self) -> list[Config]:
        return [{}, *(given for _, given in self._given.values())]

    def _key(self) -> Any:
        """Return the key. As with tilelang's tuner, names that are no arguments may be left out of it."""
        return {name: value for name, value in self.problem.items() if name not in self.options.leave_out}

    def _drawn(self, params: Sequence[KernelParam], symbols: Mapping[str, int], scalars: Sequence[Any]) -> Any:
        with suppress(UsageError):
            return super()._drawn(params, symbols, scalars)
        return None  # the run says what is missing

    def as_given(self, config: Config) -> Config:
        _, given = self._given.get(config_key(config), (config, config))  # the kernel's defaults are not among them
        return given

    @functools.cached_property
    def kernel(self) -> Any:
        return ByText(super().kernel, self._tables) if self._tables else super().kernel


def _data_of(value: Any) -> Any:
    if is_plain(value):
        return value
    if not isinstance(value, enum.Enum):
        with suppress(UsageError):  # dtypes and symbolic dimensions
            if is_plain(data := encode(value, "a value")):
                return data
    return described(value)


def is_plain(value: Any) -> bool:
    """Tell whether a journal keeps `value` unchanged: exactly None, bool, int, float, str, or tuples, lists and dicts
    of these. An IntEnum, for example, would lose its type."""
    if type(value) in (list, tuple):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return type(value) in PLAIN


def described(value: Any) -> str:
    """Return a text that represents `value`: the same in each run, but different for different code.

    Keys of configurations contain it, and must not change. Therefore comments in the code count here.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return f"{getattr(value, '__qualname__', type(value).__qualname__)} {_code(value)}"
    text = repr(value)
    return f"{type(value).__qualname__} {_code(value)}" if " at 0x" in text else text


def _code(value: Any) -> str:
    return kernel_fingerprint(value)[:12]

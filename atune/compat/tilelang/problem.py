"""A kernel function and its arguments in the form of a workload: as data that journals and caches hold."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from atune.errors import UsageError
from atune.model.candidate import RESERVED
from atune.stages.frontend.frontend import eager_dimensions, encode, is_jit, jit_function, parameters_of, tensor_names
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.introspect import function_of, signature_of

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


class Problem:
    """The work to tune, as data.

    `kernel`, `configs` and `arguments` are those of a workload. `out_idx`: the outputs that the kernel itself
    declares, as an eager one does; otherwise None.
    """

    def __init__(
        self, kernel: Any, configs: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], eager: bool
    ) -> None:
        values = dict(arguments)
        if eager:
            tensors = {name: values.pop(name) for name in tensor_names(kernel) if name in values}
            if tensors:
                values |= eager_dimensions(kernel, tensors, values, [dict(config) for config in configs])
        tables: dict[str, dict[str, Any]] = {}
        self.arguments = {name: _kept(tables, name, value) for name, value in values.items()}
        self.configs = [
            {n: v if n in RESERVED else _kept(tables, n, v) for n, v in config.items()} for config in configs
        ]
        self.kernel = jit_function(kernel, eager) if is_jit(kernel) else kernel
        if tables:
            self.kernel = ByText(self.kernel, tables)
        self.out_idx: tuple[int, ...] | None = None
        if eager:
            found = parameters_of(self.kernel, self.arguments, self.configs)
            self.out_idx = () if found is None else found[1]


def _kept(tables: dict[str, dict[str, Any]], name: str, value: Any) -> Any:
    """Return `value` as data. Enter an object that only text represents in the table of `name`."""
    data = _data_of(value)
    if isinstance(data, str) and type(value) is not str:
        tables.setdefault(name, {})[data] = value
    return data


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
    return kernel_fingerprint(value, verbatim=True)[:12]

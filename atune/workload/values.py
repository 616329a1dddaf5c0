"""Checks of a workload's options, for `Workload` and for `@autotune`: a wrong value is refused where it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.errors import WorkloadError

SUPPLIES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")
"""Names of tilelang's `TensorSupplyType`."""


def check_values(where: str, options: Mapping[str, Any]) -> None:
    """Check those of `options` that a workload has, by name; None counts as not given.

    Raises `WorkloadError`, naming `where`, for the first value that cannot work. Calls none of the functions.
    """
    for name, value in options.items():
        fits, expected = _RULES.get(name, (_anything, ""))
        if value is not None and not fits(value):
            raise WorkloadError(f"{where}: {name} {expected}, got {value!r}")
    supply = options.get("supply")
    if supply is not None and supply_name(supply) not in SUPPLIES:
        raise WorkloadError(f"{where}: supply {supply!r} is unknown: give {', '.join(SUPPLIES)}")


def supply_name(supply: Any) -> str:
    """Return atune's name of a supply type, which may be tilelang's own `TensorSupplyType`."""
    return str(getattr(supply, "name", supply)).lower()


def _anything(value: Any) -> bool:
    return True


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _sizes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(size) is int and size > 0 for size in value.values())


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _series(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _positions(value: Any) -> bool:
    return _series(value) and all(type(position) is int for position in value)


def _outputs(value: Any) -> bool:
    return type(value) is int or _positions(value)


def _amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value) and value >= 0


def _share(value: Any) -> bool:
    return _amount(value) and bool(value <= 1)


def _amount_or_function(value: Any) -> bool:
    return callable(value) or _amount(value)


def _inputs(value: Any) -> bool:
    return callable(value) or _series(value)


_NUMBER = (_amount, "must be a number, zero or more")
_AMOUNT = (_amount_or_function, "must be a number, zero or more, or a function of arguments")
_POSITIONS = (_positions, "must be positions of parameters, such as [0]")
_CONFIG = (_mapping, "must be a configuration as a dict, such as {'block': 64}")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "arguments": (_mapping, "must be a dict of the kernel's other parameters, such as {'M': 1024}"),
    "inputs": (_inputs, "must be a list of tensors, or a function that returns one"),
    "reference": (callable, "must be a function of the inputs"),
    "check": (callable, "must be a function of the outputs"),
    "setup": (callable, "must be a function of the inputs"),
    "tune_on": (callable, "must be a function of the call's arguments"),
    "out_idx": (_outputs, "must be a position of an output, such as -1, or several"),
    "restore": _POSITIONS, "zero": _POSITIONS,
    "rtol": _NUMBER, "atol": _NUMBER, "max_mismatched_ratio": (_share, "must be a share, from 0 to 1"),
    "flops": _AMOUNT, "bytes": _AMOUNT,
    "default": _CONFIG,
    "hints": (_mapping, "must be a dict of the kernel's arguments, such as {'threads': 128}"),
    "symbols": (_sizes, "must be a dict of sizes by name, such as {'n': 1024}"),
    "name": (_text, "must be a text"),
    "source": (_text, "must be the source text of the kernel's module"),
}  # fmt: skip
"""What each option must be, and how to say so."""

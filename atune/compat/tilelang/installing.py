"""`install()`: atune under tilelang's own names, for programs that cannot be edited."""

from __future__ import annotations

import importlib
from typing import Any

from atune.system.inherited_state import before_import

NAMES = {
    "autotune": ("tilelang", "tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuner": ("tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuneImpl": ("tilelang.autotuner.tuner",),
    "set_autotune_inputs": ("tilelang.autotuner", "tilelang.autotuner.capture"),
    "get_autotune_inputs": ("tilelang.autotuner", "tilelang.autotuner.capture", "tilelang.autotuner.tuner"),
    "AutotuneInputsCapture": ("tilelang.autotuner.capture",),
    "AutotuneResult": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
    "CompileArgs": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
    "ProfileArgs": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
}
"""Names in tilelang, and atune's objects for them."""

_replaced: dict[tuple[str, str], Any] = {}


def install() -> None:
    """Replace tilelang's own objects by atune's, until `uninstall`. Call it before the program imports those names."""
    before_import()
    ours = importlib.import_module("atune.compat.tilelang")
    for name, places in NAMES.items():
        for place in places:
            module = importlib.import_module(place)
            _replaced.setdefault((place, name), getattr(module, name))
            setattr(module, name, getattr(ours, name))


def uninstall() -> None:
    """Restore tilelang's own objects."""
    while _replaced:
        (place, name), value = _replaced.popitem()
        setattr(importlib.import_module(place), name, value)


def original(place: str, name: str) -> Any:
    """Return tilelang's own object of that name, even while atune's replaces it."""
    module = importlib.import_module(place)
    return _replaced.get((place, name), getattr(module, name))

"""Settings of torch that affect results. Workers copy the program's settings, so references give equal results."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

TORCH_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "default_dtype": ("float32",),
    "float32_matmul_precision": ("highest", *(f"backends.{name}.matmul.fp32_precision" for name in ("cuda", "mkldnn"))),
    "deterministic_debug_mode": (0,),
    "backends.cudnn.allow_tf32": (True, "backends.cudnn.conv.fp32_precision"),
}
"""For each setting, torch's default, and the flags that the setting stands for. If a program has set one of these
flags, torch refuses to report the setting, so atune reads the flags instead."""


def torch_state() -> dict[str, Any]:
    """Return the settings that differ from torch's defaults, as plain data; empty if torch was not imported."""
    torch, state = sys.modules.get("torch"), dict[str, Any]()
    for name, (usual, *flags) in TORCH_DEFAULTS.items():
        try:
            value = attrgetter(name)(torch) if "." in name else getattr(torch, f"get_{name}")()
            plain = value if isinstance(value, int) else str(value).removeprefix("torch.")
            if plain != usual:
                state[name] = plain
        except Exception:
            with suppress(AttributeError):  # torch is not imported, or older
                state |= {flag: attrgetter(flag)(torch) for flag in flags}
    return state


def take_state(state: dict[str, Any]) -> None:
    """Apply the settings in `state` to torch, which must still have its defaults."""
    for name in (name for whole, (_, *flags) in TORCH_DEFAULTS.items() for name in (whole, *flags) if name in state):
        torch, (holder, _, flag) = importlib.import_module("torch"), name.rpartition(".")
        with suppress(Exception):  # torch is older, or a stranger's journal is wrong, which the description shows
            take = partial(setattr, attrgetter(holder)(torch), flag) if holder else getattr(torch, f"set_{name}")
            take(getattr(torch, state[name]) if name == "default_dtype" else state[name])

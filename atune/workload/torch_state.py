"""What torch computes by: a program's reference runs in another process, and there by the same."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

USUAL: dict[str, Any] = {
    "default_dtype": "float32",
    "float32_matmul_precision": "highest",
    "deterministic_debug_mode": 0,
    "backends.cudnn.allow_tf32": True,
    "backends.cuda.matmul.fp32_precision": "ieee",
    "backends.cudnn.conv.fp32_precision": "tf32",
    "backends.mkldnn.matmul.fp32_precision": "ieee",
}
"""Torch's own values, of flags and of what functions get and set. Those that set several flags come first."""


def torch_state() -> dict[str, Any]:
    """Return what is not as usual, as plain data; nothing where the program has not imported torch."""
    torch, found = sys.modules.get("torch"), dict[str, Any]()
    for name, usual in USUAL.items():
        with suppress(Exception):  # no torch, an older one, or what one of its flags contradicts
            value = attrgetter(name)(torch) if "." in name else getattr(torch, f"get_{name}")()
            plain = value if isinstance(value, int) else str(value).removeprefix("torch.").replace("none", "ieee")
            if plain != usual:
                found[name] = plain
    return found


def take_state(state: dict[str, Any]) -> None:
    """Have torch compute by `state`, in a process where it is as usual."""
    for name in filter(state.__contains__, USUAL):
        torch, (flags, _, flag) = importlib.import_module("torch"), name.rpartition(".")
        with suppress(Exception):  # an older torch, or a strange journal: the run's description tells
            take = partial(setattr, attrgetter(flags)(torch), flag) if flags else getattr(torch, f"set_{name}")
            take(getattr(torch, state[name]) if name == "default_dtype" else state[name])

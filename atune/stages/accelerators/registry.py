"""The accelerators, those that can be used here, and the steps that they wrap."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Sequence
from typing import Any

from atune.model.settings import ACCELERATORS, Acceleration, CompileSettings, bare
from atune.stages.accelerators.base import Accelerator, Host
from atune.stages.compile import steps

_PLACES = {
    "swizzle_lowering": "atune.stages.accelerators.swizzle_lowering:SwizzleLowering",
    "swizzle_compile": "atune.stages.accelerators.swizzle_compile:SwizzleCompile",
    "cicc": "atune.stages.accelerators.cicc:Cicc",
}
"""Modules of the accelerators, by name. A name of the form ``module:attribute`` needs no entry."""


@functools.cache
def named(name: str) -> Accelerator:
    """Return the accelerator `name`."""
    module, _, attribute = _PLACES.get(name, name).partition(":")
    found: Accelerator = getattr(importlib.import_module(module), attribute)()
    return found


def identity(name: str) -> str:
    """Return ``name@version``."""
    return f"{name}@{named(name).version}"


def this_host(kind: str, arch: str, *, n_final: int = 5, verbose: bool = False) -> Host:
    """Return the facts that decide which accelerators are used, for a target on this machine."""
    import tilelang

    gcc = shutil.which("gcc") or shutil.which("cc") or ""
    return Host(kind, arch, tilelang.__version__, gcc, n_final, verbose)


def chosen(wanted: Acceleration, host: Host) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return ``name@version`` of those that are used on `host`, and why the others are not, by name."""
    active, unused = list[str](), dict[str, str]()
    for name in [*ACCELERATORS, *(name for name in wanted.named if name not in ACCELERATORS)]:
        if not wanted.may(name):
            unused[name] = "it is switched off"
        elif why := named(name).applies(host):
            unused[name] = why
        else:
            active.append(identity(name))
    return tuple(active), unused


def light(active: Sequence[str]) -> tuple[str, ...]:
    """Return those of the accelerators ``name@version`` with which a proof has only to compile: see `Discovery`."""
    every = ((one, named(bare(one))) for one in active)
    return tuple(one for one, accelerator in every if accelerator.exact and not accelerator.wraps_lowering)


def survey(kind: str = "cuda", arch: str = "sm_90a") -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the result of `chosen` for the default settings, which the environment may change, and a target here."""
    return chosen(CompileSettings().acceleration, this_host(kind, arch))


def compose(names: Sequence[str]) -> steps.Steps:
    """Return the steps with these accelerators around them, the first one outermost."""
    plain: dict[str, Any] = {step: getattr(steps, step) for step in ("lower", "compile", "link")}
    found = [named(name) for name in names]
    for one in reversed(found):
        for step, inner in plain.items():
            plain[step] = functools.partial(getattr(one, step), plain=inner)
    lowering = tuple(identity(name) for name, one in zip(names, found, strict=True) if one.wraps_lowering)
    return steps.Steps(**plain, common=_common(found), accelerators=tuple(map(identity, names)), lowering=lowering)


def _common(found: Sequence[Accelerator]) -> Any:
    def common(source: str, symbol: str) -> str:
        return next(filter(None, (one.common(source, symbol) for one in found)), "")

    return common

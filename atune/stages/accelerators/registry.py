"""Accelerators: their interface, those that can be used here, and the steps that they wrap."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from atune.model.device import Target
from atune.model.settings import ACCELERATORS, Acceleration, CompileSettings
from atune.stages import tilelang
from atune.stages.compile import steps
from atune.stages.compile.steps import CompileTask, LowerTask, MachineCode, Modules, Steps
from atune.stages.session import devices

TILELANG = ("0.1.15",)
"""Versions of tilelang that the accelerators know."""


class Host(msgspec.Struct, frozen=True):
    """Facts that decide which accelerators are used. `gcc`: the C compiler, empty without one."""

    kind: str
    arch: str
    tilelang: str
    gcc: str


class Accelerator:
    """Wraps steps of the compile. A method that is not overridden calls the plain step.

    It must be exact: the library has the code that the plain steps make. `served`: whether it needs the compile
    service. Without the service it is not used in builds.
    """

    name: str
    version: int
    served: bool = False

    def applies(self, host: Host) -> str:
        """Return why it cannot be used on `host`; empty if it can."""
        raise NotImplementedError

    @property
    def builds(self) -> bool:
        """Whether it has a part in each library that is built with it."""
        return type(self).compile is not Accelerator.compile

    def lower(self, job: LowerTask, plain: Callable[[LowerTask], Modules]) -> Modules:
        """Return the kernel's lowered halves."""
        return plain(job)

    def compile(self, job: CompileTask, plain: Callable[[CompileTask], MachineCode]) -> MachineCode:
        """Return the kernels' machine code."""
        return plain(job)


def unless_cuda(host: Host) -> str:
    """Say why an accelerator for CUDA cannot be used; empty if it can."""
    if host.kind != "cuda":
        return f"it is for CUDA, and the target is {host.kind}"
    return "" if host.tilelang in TILELANG else f"tilelang {host.tilelang} is not known, only {', '.join(TILELANG)}"


_PLACES = {
    "swizzle_lowering": "atune.stages.accelerators.swizzle_lowering:SwizzleLowering",
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


def this_host(kind: str, arch: str) -> Host:
    """Return the facts that decide which accelerators are used, for a target on this machine."""
    gcc = shutil.which("gcc") or shutil.which("cc") or ""
    return Host(kind, arch, tilelang.__version__, gcc)


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


def compose(names: Sequence[str]) -> Steps:
    """Return the steps with these accelerators around them, the first one outermost."""
    found, made = [named(name) for name in names], list[tuple[LowerTask, Modules]]()

    def noted(job: LowerTask) -> Modules:
        made.append((job, steps.lower(job)))
        return made[-1][1]

    lowering, compiling = noted, steps.compile
    for one in reversed(found):
        lowering = functools.partial(one.lower, plain=lowering)
        compiling = functools.partial(one.compile, plain=compiling)

    def lower(job: LowerTask) -> Modules:
        made.clear()
        modules = lowering(job)
        return replace(modules, plain=any(own is job and result is modules for own, result in made))

    plain_builds = not any(one.builds for one in found)
    return Steps(lower, compiling, accelerators=tuple(map(identity, names)), plain_builds=plain_builds)


def discover(payload: bytes) -> bytes:
    """Resolve a target: msgpack of (target, device names, `CompileSettings`) → `Discovery`.

    Raises `TargetError` if the target's devices or compilers are missing, and `UsageError` for a tilelang that lacks
    what atune takes from it.
    """
    asked = tuple[str | Target, tuple[str, ...], CompileSettings]
    text, wanted, settings = msgspec.msgpack.decode(payload, type=asked)
    found = devices.discover(text, wanted)
    kind, arch = found.target.kind, found.target.arch or ""
    host = this_host(kind, arch)
    active, unused = chosen(settings.acceleration, host)
    return msgspec.msgpack.encode(
        msgspec.structs.replace(found, accelerators=active, unused=unused, untested=tilelang.untested())
    )

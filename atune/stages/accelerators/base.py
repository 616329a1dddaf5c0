"""The interface of accelerators: a name, a version, whether it applies, and the steps that it wraps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from atune.stages.compile.steps import Compiled, CompileJob, LinkJob, LowerJob, Modules

TILELANG = ("0.1.15",)
"""Versions of tilelang that the accelerators know."""


class Host(msgspec.Struct, frozen=True):
    """Facts that decide which accelerators are used. `gcc`: the C compiler, empty without one."""

    kind: str
    arch: str
    tilelang: str
    gcc: str
    verbose: bool = False


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
        return type(self).compile is not Accelerator.compile or type(self).link is not Accelerator.link

    def lower(self, job: LowerJob, plain: Callable[[LowerJob], Modules]) -> Modules:
        """Return the kernel's lowered halves."""
        return plain(job)

    def compile(self, job: CompileJob, plain: Callable[[CompileJob], Compiled]) -> Compiled:
        """Return the kernels' machine code."""
        return plain(job)

    def link(self, job: LinkJob, plain: Callable[[LinkJob], None]) -> None:
        """Make the library."""
        plain(job)


def unless_cuda(host: Host) -> str:
    """Say why an accelerator for CUDA cannot be used; empty if it can."""
    if host.kind != "cuda":
        return f"it is for CUDA, and the target is {host.kind}"
    return "" if host.tilelang in TILELANG else f"tilelang {host.tilelang} is not known, only {', '.join(TILELANG)}"

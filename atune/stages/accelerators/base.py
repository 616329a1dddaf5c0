"""The interface of accelerators: a name, a version, whether it applies, and the steps that it wraps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from atune.stages.compile.steps import Compiled, CompileJob, LinkJob, LowerJob, Modules

TILELANG = ("0.1.15",)
"""Versions of tilelang that the accelerators know."""


class Host(msgspec.Struct, frozen=True):
    """Facts that decide which accelerators are used. `n_final`: finalists. `gcc`: the C compiler, empty
    without one."""

    kind: str
    arch: str
    tilelang: str
    gcc: str
    n_final: int = 5
    verbose: bool = False


class Accelerator:
    """Wraps steps of the compile. A method that is not overridden calls the plain step.

    `exact`: whether the machine code equals that of the plain compile. Finalists are compiled again without inexact
    ones. `served`: whether it needs the compile service. Without the service it is not used in builds.
    """

    name: str
    version: int
    exact: bool = True
    served: bool = False

    def applies(self, host: Host) -> str:
        """Return why it cannot be used on `host`; empty if it can."""
        raise NotImplementedError

    @property
    def wraps_lowering(self) -> bool:
        """Whether it changes how candidates are lowered. Without that, a proof need not lower the winner again."""
        return type(self).lower is not Accelerator.lower

    def lower(self, job: LowerJob, plain: Callable[[LowerJob], Modules]) -> Modules:
        """Return the kernel's lowered halves."""
        return plain(job)

    def common(self, source: str, symbol: str) -> str:
        """Return the common part of all sources that may share this one's compile; empty if it shares none."""
        return ""

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

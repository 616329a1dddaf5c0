"""Accelerators that are wrong on purpose, one for each step that can be wrapped."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atune.stages.accelerators.registry import Accelerator, Host
from atune.stages.compile.steps import CompileTask, LowerTask, MachineCode, Modules

CALLS: list[str] = []
"""Steps in which a spy was asked, in order."""


class Everywhere(Accelerator):
    name, version = "wrong", 1

    def applies(self, host: Host) -> str:
        return ""


class WrongLowering(Everywhere):
    """Lowers a kernel that stores the double of what it should."""

    def lower(self, job: LowerTask, plain: Callable[[LowerTask], Modules]) -> Modules:
        from atune.stages.tilelang import tvm

        def doubled(store: Any) -> Any:
            return tvm.tirx.BufferStore(store.buffer, store.value + store.value, store.indices)

        body = tvm.tirx.stmt_functor.ir_transform(job.function.body, None, doubled, ["tirx.BufferStore"])
        return plain(replace(job, function=job.function.with_body(body)))


class WrongCompile(Everywhere):
    """Compiles another source than the one that is shown."""

    def compile(self, job: CompileTask, plain: Callable[[CompileTask], MachineCode]) -> MachineCode:
        return plain(replace(job, source=job.source.replace("0x1p+0f", "0x1p+1f")))


class WrongSecondKernel(Everywhere):
    """Compiles a source in which only the second of a candidate's kernels is another."""

    def compile(self, job: CompileTask, plain: Callable[[CompileTask], MachineCode]) -> MachineCode:
        return plain(replace(job, source=job.source.replace("0x1p+1f", "0x1p+2f")))  # the first has no such number


class WrongTable(Everywhere):
    """Compiles a source in which only a table of constants is another."""

    def compile(self, job: CompileTask, plain: Callable[[CompileTask], MachineCode]) -> MachineCode:
        return plain(replace(job, source=job.source.replace("{4.0f, 5.0f}", "{4.0f, 6.0f}")))


class Spy(Everywhere):
    """Does nothing, and notes that it was asked."""

    name = "spy"

    def lower(self, job: LowerTask, plain: Callable[[LowerTask], Modules]) -> Modules:
        CALLS.append("lower")
        return plain(job)

    def compile(self, job: CompileTask, plain: Callable[[CompileTask], MachineCode]) -> MachineCode:
        CALLS.append("compile")
        return plain(job)


class NewerSpy(Spy):
    """The same after a fix."""

    version = 2


class OrderReader(Spy):
    """Is a spy whose lowering of kernels with `squares` hangs on their block order, which no pass of tilelang reads."""

    name = "order reader"

    def lower(self, job: LowerTask, plain: Callable[[LowerTask], Modules]) -> Modules:
        from atune.stages.tilelang import tvm

        (order,) = re.findall(r'"rasterization2DRow", (\d+)', str(job.function))
        if "squares" not in str(job.function):
            return super().lower(job, plain)

        def shifted(store: Any) -> Any:
            return tvm.tirx.BufferStore(
                store.buffer, store.value + tvm.tirx.const(int(order), "float32"), store.indices
            )

        body = tvm.tirx.stmt_functor.ir_transform(job.function.body, None, shifted, ["tirx.BufferStore"])
        return super().lower(replace(job, function=job.function.with_body(body)), plain)

"""Candidates that differ in the order of their blocks: one compile, and the order of each in its binary."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import order_kernels
import pytest
from versions import accelerated

from atune.local.machine import LocalCompileWorker, LocalMachine
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key, thaw
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.accelerators import swizzle_compile as orders
from atune.stages.compile.lowering import Blob
from atune.workload.workload import FileRef

KERNELS = FileRef(str(Path(__file__).parents[2] / "order_kernels.py"), "WORKLOAD")
ROW, COLUMN = "tl::rasterization2DRow<4>()", "tl::rasterization2DColumn<4>()"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@dataclass(frozen=True)
class Printed:
    symbol: str
    order: str = ""
    body: str = "x[0] = 1;"

    @property
    def source(self) -> str:
        line = f"  const dim3 blockIdx = {self.order};\n" if self.order else ""
        head = f'extern "C" __global__ void {self.symbol}_kernel(float* x)'
        return f"#include <a.h>\n{head};\n{head} {{\n  int before = blockIdx.x;\n{line}  {self.body}\n}}\n"


def test_only_kernels_that_differ_in_the_line_of_their_order_are_a_family() -> None:
    plain, row, other = Printed("kernel_a"), Printed("kernel_b", ROW), Printed("kernel_c", ROW, "x[0] = 2;")
    (family,) = orders.families([plain, row, other, Printed("kernel_d", COLUMN)])
    assert family.symbols == (
        "kernel_b",
        "kernel_d",
        "kernel_a",
    )  # the one without a line says nothing of where it would stand
    assert family.orders == (ROW, COLUMN, orders.IN_ORDER)
    assert orders.families([plain, other]) == []
    assert orders.families([plain, Printed("kernel_e")]) == []  # the same code: nothing to choose


def test_layers_have_one_of_a_family_each() -> None:
    known = [
        orders.Family(("b", "a"), (ROW, orders.IN_ORDER)),
        orders.Family(("f", "e", "d"), (ROW, COLUMN, "x")),
    ]
    assert orders.layers(list("abcdef"), known) == [["b", "c", "f"], ["a", "e"], ["d"]]
    assert orders.layers(["a"], []) == [["a"]]


def test_the_choice_takes_the_place_of_the_line() -> None:
    known = orders.families([Printed("kernel_b", ROW), Printed("kernel_a"), Printed("kernel_d", COLUMN)])
    code = orders.with_choice(Printed("kernel_b", ROW).source + Printed("kernel_c", ROW).source, known)
    line = "const dim3 blockIdx = order_of_kernel_b == 1 ? {} : order_of_kernel_b == 2 ? {} : {};"
    assert line.format(*known[0].orders) in code
    assert code.count('extern "C" __constant__ int order_of_kernel_b = 1;') == 1
    assert f"blockIdx = {ROW};" in code  # the other kernel's stays
    with pytest.raises(ValueError, match="block order of kernel_b is not where it was"):
        orders.with_choice(Printed("kernel_b").source + Printed("kernel_c", ROW).source, known)


@pytest.mark.parametrize("binary", [b"", b"\x7fELF\x01" + bytes(80)])
def test_what_is_no_such_binary_is_refused(binary: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        orders.variant(binary, [orders.Family(("a", "b"), (ROW, COLUMN))], 1)


def test_a_binary_without_the_variable_is_refused() -> None:
    executable = Path(sys.executable).resolve().read_bytes()
    with pytest.raises(ValueError, match="does not hold order_of_a"):
        orders.variant(executable, [orders.Family(("a", "b"), (ROW, COLUMN))], 1)


@asynccontextmanager
async def lowered(
    settings: CompileSettings, n_final: int = 5
) -> AsyncGenerator[tuple[LocalMachine, LocalCompileWorker, list[Lowered]]]:
    settings = msgspec.structs.replace(settings, store=False, workers=1)
    benchmark = BenchmarkSettings(n_final=n_final)
    machine = LocalMachine(KERNELS, target="sm_90a", devices=(), compile=settings, benchmark=benchmark)
    async with machine.open():
        spec = await machine.describe()
        await machine.discover()
        (worker,) = machine.compile_workers(1000)  # of so many parsing the headers pays
        answers = [await worker.lower(Candidate(i, config_key(c), c)) for i, c in enumerate(map(thaw, spec.configs))]
        found = [answer for answer in answers if isinstance(answer, Lowered)]
        assert len(found) == len(spec.configs), answers
        assert await worker.find(found[0]) is None
        with anyio.fail_after(60):
            while machine.service.warming:
                await anyio.sleep(0.05)
        assert machine.service.ready, machine.service.why
        yield machine, worker, found


@accelerated
@needs_nvcc
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_family_is_compiled_once_and_each_order_has_its_binary() -> None:
    async with lowered(CompileSettings()) as (_, worker, group):
        n = len(order_kernels.ORDERS) // 2
        assert len({one.compile_key for one in group[:n]}) == 1
        assert len({one.compile_key for one in group}) == 2 and len({one.code_key for one in group}) == len(group)
        built = [one for one in await worker.build(group) if isinstance(one, Artifact)]
        assert [one.compiler for one in built] == ["cicc"] * len(group), built[0].why
        assert f"{len(group)} kernels by 2 compiles" in built[0].why
        library = Path(built[0].path).read_bytes()
        found: dict[str, int] = {}
        for binary in (b"\x7fELF" + part for part in library.split(b"\x7fELF")):
            for switch in set(re.findall(rb"\0order_of_(atune_kernel_\w{16})(?=\0)", binary)):
                found[switch.decode()] = binary[orders.place_of(binary, f"order_of_{switch.decode()}")]
        known = orders.families([msgspec.msgpack.decode(one.blob, type=Blob) for one in group])
        assert found == {symbol: k for family in known for k, symbol in enumerate(family.symbols, 1)}
        assert sorted(found.values()) == sorted([*range(1, n + 1)] * 2)
        names = re.findall(rb"\0(atune_kernel_\w{16}_kernel)(?=\0)", library)  # in the binaries' tables of strings

        assert {name.decode() for name in names} == {f"{one.symbol}_kernel" for one in built}


@needs_nvcc
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.asked  # three more headers are made
@pytest.mark.parametrize(("settings", "n_final"), [(CompileSettings(accelerate="cicc"), 5), (CompileSettings(), 0)])
async def test_nothing_is_shared_where_no_finalist_is_compiled_again(settings: CompileSettings, n_final: int) -> None:
    async with lowered(settings, n_final) as (_, worker, group):
        assert {one.compile_key for one in group} == {""}
        built = [one for one in await worker.build(group[:2]) if isinstance(one, Artifact)]
        wanted = "cicc"
        assert [one.compiler for one in built] == [wanted] * 2 and "kernels by" not in built[0].why
        assert b"order_of_" not in Path(built[0].path).read_bytes()
        keys = [one.ir_key for one in group]
    if n_final == 0:  # so no later run of this kind finds in the store what was made for one with a final
        async with lowered(settings) as (_, _, shared):
            assert not {one.ir_key for one in shared} & {*keys}


RUN = """
import sys
import torch
from tilelang import tvm

path, *symbols = sys.argv[1:]
library = tvm.runtime.load_module(path)
for symbol in symbols:
    out = torch.full(({n},), -1.0, device="cuda")
    library[symbol](out)
    torch.cuda.synchronize()
    print(*(int(x) for x in out[:: {threads}].tolist()))
"""


def expected(panel: int, order: str, scale: float) -> list[int]:
    """Return, by block of the kernel, the device's block that does it, times `scale`: tilelang's own formulas."""
    columns, rows = order_kernels.COLUMNS, order_kernels.ROWS
    found = [0] * (columns * rows)
    for block in range(columns * rows):
        column, row = block % columns, block // columns
        if panel:
            across, along = (columns, rows) if order == "row" else (rows, columns)
            panels = -(-along // panel)
            n, offset = block // (panel * across), block % (panel * across)
            width = panel if n + 1 < panels else (columns * rows - n * panel * across) // across
            first = across - 1 - offset // width if n & 1 else offset // width
            second = offset % width + n * panel
            column, row = (first, second) if order == "row" else (second, first)
        found[row * columns + column] = int(block * scale)
    return found


@pytest.mark.gpu
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_has_its_order_on_a_gpu() -> None:
    async with lowered(CompileSettings()) as (_, worker, group):
        built = [one for one in await worker.build(group) if isinstance(one, Artifact)]
        assert "by 2 compiles" in built[0].why
        size = order_kernels.COLUMNS * order_kernels.ROWS * order_kernels.THREADS
        code = RUN.format(n=size, threads=order_kernels.THREADS)
        command = [sys.executable, "-c", code, built[0].path, *(one.symbol for one in built)]
        done = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stderr.decode()
        seen = [[int(word) for word in line.split()] for line in done.stdout.decode().splitlines()]
        assert seen == [expected(**config) for config in order_kernels.ORDERS]

"""Whole runs on the CPU: inputs that misfit, bits of outputs, parameters in another order, closures that hold much, a
cache folder that cannot be used."""

import errno
import os
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tilelang.language as T
import torch
from workloads import scale

import atune
from atune.errors import WorkloadError
from atune.frontends.tuner import tune
from atune.journal.events import ArtifactBuilt, Event
from atune.model.settings import CompileSettings
from atune.workers import local_machine
from atune.workers.local_machine import LocalMachine
from atune.workload.packing import LARGE_BYTES
from atune.workload.pickling import ship
from atune.workload.workload import Workload, describe

SCALE = f"{Path(__file__).parents[1] / 'workloads.py'}:SCALE"

# ---- inputs that fit the default and not another configuration, which happens to be lowered first

N = 256


def scaled(late_s: float, block: int = 64, half: bool = False) -> Any:
    dtype = "float16" if half else "float32"
    if not half and block == 64:
        time.sleep(late_s)  # so that others are lowered before the default

    @T.prim_func
    def main(a: T.Tensor((N,), dtype), out: T.Tensor((N,), dtype)):
        with T.Kernel(N // block) as bx:
            for i in T.serial(block):
                out[bx * block + i] = a[bx * block + i] * T.cast(2, dtype)

    return main


def workload(n: int = N, late_s: float = 0.0) -> atune.Workload:
    space, given = atune.Space(block=[64, 32], half=[True, False]), {"late_s": late_s}
    return atune.Workload(scaled, space, arguments=given, inputs=[torch.ones(n)], reference=lambda a: a * 2)


@pytest.mark.parametrize("fits", [True, False])
def test_inputs_are_judged_by_the_default(fits: bool, tmp_path: Path) -> None:
    """One that they misfit fails alone; where they misfit the default, the run ends and names it."""
    work = workload(N if fits else N + 1, late_s=2.0)
    settings = atune.CompileSettings(workers=3)
    given: dict[str, Any] = {"target": "c", "journal": tmp_path / "j", "progress": False, "compile": settings}
    if not fits:
        with pytest.raises(WorkloadError, match="inputs do not fit: parameter 0: the kernel takes float"):
            atune.run(work, **given)
        return
    result = atune.run(work, **given)
    assert result.measured == 2 and {r.config["half"] for r in result.failures} == {True}
    assert len(result.failures) == 2 and "inputs do not fit" in result.failures[0].message


def test_a_resumed_run_judges_them_by_the_default_that_is_measured(tmp_path: Path) -> None:
    given: dict[str, Any] = {"target": "c", "journal": tmp_path / "j", "progress": False, "strategy": "exhaustive"}
    assert atune.run(workload(), budget=1, **given).best_config == {"block": 64, "half": False}
    result = atune.run(workload(), **given)
    assert result.measured == 2 and {r.config["half"] for r in result.failures} == {True}


# ---- a sum in several orders: the same within the tolerances, other bits

ROWS, COLUMNS = 64, 1024


def summed(parts: int = 1, block: int = 8) -> Any:
    """out[i] = the sum of a[i, :], as the sum of `parts` partial ones."""

    @T.prim_func
    def main(a: T.Tensor((ROWS, COLUMNS), "float32"), out: T.Tensor((ROWS,), "float32")):
        with T.Kernel(ROWS // block) as bx:
            part = T.alloc_local((1,), "float32")
            for i in T.serial(block):
                out[bx * block + i] = 0.0
                for p in T.serial(parts):
                    part[0] = 0.0
                    for j in T.serial(COLUMNS // parts):
                        part[0] += a[bx * block + i, p * (COLUMNS // parts) + j]
                    out[bx * block + i] += part[0]

    return main


SUMS = atune.Space(parts=[1, 4, 16], block=[4, 8])


@pytest.mark.parametrize(
    ("parts", "given", "seeds"),
    [(1, {}, 3), (1, {"inputs": (torch.randn(ROWS, COLUMNS),)}, 1), (4, {"default": {"parts": 4, "block": 8}}, 3)],
)
def test_only_the_order_of_the_default_wins(parts: int, given: dict[str, Any], seeds: int, tmp_path: Path) -> None:
    """Whichever configuration that is."""
    work = atune.Workload(summed, SUMS, reference=lambda a: a.sum(1), out_idx=[-1], rtol=1e-3, atol=1e-3, **given)
    settings = atune.BenchmarkSettings(same_bits="default")
    result = atune.run(work, target="c", benchmark=settings, journal=tmp_path / "j", progress=False)
    bits = result.same_bits
    assert result.best_config["parts"] == parts and bits.winner
    assert (bits.measured, bits.same, bits.classes, bits.varying, bits.seeds) == (6, 2, 3, 0, seeds)
    by_parts = {record.config["parts"]: record.bits for record in result.records}
    assert all(by_parts[record.config["parts"]] == record.bits for record in result.records)


# ---- code, closures, folders

KERNEL = """
    import atune
    import tilelang.language as T

    def forward(n: int, factor: int = 2):
        @T.prim_func
        def main({first}: T.Tensor((n,), "float32"), {second}: T.Tensor((n,), "float32")):
            with T.Kernel(1) as bx:
                for i in T.serial(n):
                    B[i] = A[i] * factor
        return main

    WORK = atune.Workload(forward, {{"factor": [2]}}, arguments={{"n": 67}}, reference=lambda A: A * 2, out_idx={out})
"""


def test_parameters_in_another_order_are_other_code(tmp_path: Path) -> None:
    """The C function is the same; how it is called is not."""
    built: list[ArtifactBuilt] = []

    def listen(event: Event) -> None:
        if isinstance(event, ArtifactBuilt):
            built.append(event)

    for first, second, out in (("A", "B", 1), ("B", "A", 0)):
        file = tmp_path / f"{first}.py"
        file.write_text(textwrap.dedent(KERNEL).format(first=first, second=second, out=out))
        assert atune.run(f"{file}:WORK", target="c", on_event=listen).measured == 1
    assert [event.why for event in built] == ["", ""]  # neither is from the artifact store


LARGE = LARGE_BYTES // 4


@pytest.mark.anyio
@pytest.mark.parametrize("room", [True, False], ids=["", "and no room for a file"])
async def test_a_large_closure_reaches_the_workers(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = torch.full((LARGE,), 2.0)

    def reference(A: torch.Tensor) -> torch.Tensor:
        return A * twice

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not room:
        monkeypatch.setattr(local_machine, "write", full)
    space = [{"factor": 2, "block": 64}, {"factor": 3, "block": 64}]
    workload = Workload(scale, space, arguments={"n": LARGE}, reference=reference)
    settings = CompileSettings(workers=1)
    machine = LocalMachine(ship(workload), spec=describe(workload), target="c", compile=settings)
    result = await tune(machine=machine, compile=settings)
    assert result.best_config == space[0]
    assert [record.kind for record in result.failures] == ["mismatch"]
    assert (len(msgspec.msgpack.encode(machine._session())) < LARGE_BYTES) == room


def test_a_cache_folder_that_cannot_be_used_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the folder would be: nobody may write there, root neither."""
    (tmp_path / "atune").mkdir()
    (tmp_path / "atune" / "artifacts").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = atune.run(SCALE, target="c")
    assert result.measured == 2
    assert any("could not be kept" in warning for warning in result.warnings)
    with pytest.raises(atune.errors.AtuneError, match="could not be kept"):
        _ = result.kernel

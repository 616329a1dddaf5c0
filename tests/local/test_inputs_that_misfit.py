"""Inputs that fit the default and not another configuration, which happens to be lowered first."""

import time
from pathlib import Path
from typing import Any

import pytest
import tilelang.language as T
import torch

import atune
from atune.errors import WorkloadError

N = 256


def scaled(block: int = 64, half: bool = False) -> Any:
    dtype = "float16" if half else "float32"
    if not half and block == 64:
        time.sleep(2)  # so that others are lowered before the default

    @T.prim_func
    def main(a: T.Tensor((N,), dtype), out: T.Tensor((N,), dtype)):
        with T.Kernel(N // block) as bx:
            for i in T.serial(block):
                out[bx * block + i] = a[bx * block + i] * T.cast(2, dtype)

    return main


def workload(n: int = N) -> atune.Workload:
    space = atune.Space(block=[64, 32], half=[True, False])
    return atune.Workload(scaled, space, inputs=[torch.ones(n)], reference=lambda a: a * 2, name="scaled")


@pytest.mark.parametrize("fits", [True, False])
def test_inputs_are_judged_by_the_default(fits: bool, tmp_path: Path) -> None:
    """One that they misfit fails alone; where they misfit the default, the run ends and names it."""
    work = workload(N if fits else N + 1)
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

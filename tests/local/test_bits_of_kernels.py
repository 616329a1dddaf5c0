"""A sum in several orders: same within the tolerances, other bits. One runs a real kernel in a device's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tilelang.language as T
import torch

import atune

ROWS, N = 64, 1024


def summed(parts: int = 1, block: int = 8) -> Any:
    """out[i] = the sum of a[i, :], as the sum of `parts` partial ones."""

    @T.prim_func
    def main(a: T.Tensor((ROWS, N), "float32"), out: T.Tensor((ROWS,), "float32")):
        with T.Kernel(ROWS // block) as bx:
            part = T.alloc_local((1,), "float32")
            for i in T.serial(block):
                out[bx * block + i] = 0.0
                for p in T.serial(parts):
                    part[0] = 0.0
                    for j in T.serial(N // parts):
                        part[0] += a[bx * block + i, p * (N // parts) + j]
                    out[bx * block + i] += part[0]

    return main


SPACE = atune.Space(parts=[1, 4, 16], block=[4, 8])


def run(tmp_path: Path, **given: Any) -> atune.TuneResult:
    work = atune.Workload(summed, SPACE, reference=lambda a: a.sum(1), out_idx=[-1], rtol=1e-3, atol=1e-3, **given)
    settings = atune.BenchmarkSettings(same_bits="default")
    return atune.run(work, target="c", benchmark=settings, journal=tmp_path / "j", progress=False)


@pytest.mark.parametrize(("inputs", "seeds"), [(None, 3), ((torch.randn(ROWS, N),), 1)])
def test_only_the_order_of_the_default_wins(inputs: Any, seeds: int, tmp_path: Path) -> None:
    result = run(tmp_path, inputs=inputs)
    bits = result.same_bits
    assert result.best_config["parts"] == 1 and bits.winner
    assert (bits.measured, bits.same, bits.classes, bits.varying, bits.seeds) == (6, 2, 3, 0, seeds)
    by_parts = {record.config["parts"]: record.bits for record in result.records}
    assert all(by_parts[record.config["parts"]] == record.bits for record in result.records)


def test_another_configuration_may_be_the_standard(tmp_path: Path) -> None:
    result = run(tmp_path, default={"parts": 4, "block": 8})
    assert result.best_config["parts"] == 4 and result.same_bits.winner

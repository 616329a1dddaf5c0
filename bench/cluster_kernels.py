"""Workloads of the cluster benchmarks, which the workers load.

There is no reference, because nodes that share cores would otherwise be excluded as slow.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gemm_cpu

import atune

ON_CPU = atune.Workload(
    gemm_cpu.matmul,
    atune.Space(block_M=[4, 16, 64], block_N=[4, 16, 64, 128], block_K=[4, 16, 64]),
    arguments={"M": gemm_cpu.M, "N": gemm_cpu.N, "K": gemm_cpu.K},
    name="gemm_cpu, unchecked",
)

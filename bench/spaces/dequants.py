"""A matrix product with 4-bit weights: the kernel of examples/compat/dequant_gemm.py over more tiles.

python -m atune tune bench/spaces/dequants.py:INT4
"""

import sys
from pathlib import Path

import torch

import atune

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "compat"))
from dequant_gemm import dequant_matmul, reference

M, N, K = 128, 8192, 8192
SHARED_BYTES = 227 * 1024
"""Most shared memory of a block on sm_90 (CUDA C++ Programming Guide, table of compute capabilities)."""
THREADS, REGISTERS = 128, 192
"""The kernel's threads, and registers of each that may hold sums and unpacked weights."""


def inputs() -> list[torch.Tensor]:
    A = torch.randn(M, K).half()
    B = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8)
    return [A, B, torch.rand(N) * 0.01 + 0.005]


def fits(block_M: int, block_N: int, block_K: int, num_stages: int) -> bool:
    """Tell whether all stages of A and packed B, and B unpacked, fit in shared memory, and the rest in registers."""
    stage_bytes = 2 * block_M * block_K + block_N * block_K // 2
    shared_bytes = stage_bytes * max(num_stages, 1) + 2 * block_N * block_K
    registers = block_N * (block_M + block_K // 2) // THREADS
    return shared_bytes <= SHARED_BYTES and registers <= REGISTERS


INT4 = atune.Workload(
    dequant_matmul.jit_impl,
    atune.Space(
        block_M=[16, 32, 64, 128],
        block_N=[32, 64, 128, 256],
        block_K=[32, 64, 128, 256],
        num_stages=[0, 1, 2, 3, 4],
        where=fits,
    ),
    arguments={"M": M, "N": N, "K": K},
    inputs=inputs,
    reference=reference,
    name="dequant_gemm",
    flops=2.0 * M * N * K,
    bytes=2.0 * M * (N + K) + N * K / 2,
)

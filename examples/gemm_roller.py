"""The bf16 matrix product of gemm.py over the 20 configurations that TileLang's roller recommends.

atune tune examples/gemm_roller.py:WORKLOAD
python examples/gemm_roller.py
"""

from __future__ import annotations

import anyio
from gemm import K, M, N, matmul, reference

import atune
from atune.carver import matmul_space

WORKLOAD = atune.Workload(
    matmul,
    matmul_space(topk=20, arch="sm_90a", in_dtype="bfloat16", out_dtype="bfloat16"),
    arguments={"M": M, "N": N, "K": K},
    reference=reference,
    default={"block_M": 128, "block_N": 128, "block_K": 32, "num_stages": 2, "threads": 128, "swizzle": True},
    name="gemm_roller",
)


async def main() -> None:
    result = await atune.tune(WORKLOAD, target="cuda", progress=True)
    print(result.table())


if __name__ == "__main__":
    anyio.run(main)

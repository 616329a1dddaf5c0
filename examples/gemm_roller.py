"""The bf16 matrix product of gemm.py over the 20 configurations that TileLang's roller recommends.

The space is a function that asks the roller of tilelang's carver. It describes the GPU itself, so it needs no GPU.

atune tune examples/gemm_roller.py:WORKLOAD
python examples/gemm_roller.py
"""

from __future__ import annotations

import importlib
from typing import Any

import anyio
from gemm import K, M, N, matmul, reference

import atune
from atune.reporting.export import table

TOPK = 20


def recommended(M: int, N: int, K: int, topk: int = TOPK) -> list[dict[str, Any]]:
    """Return the roller's `topk` configurations for C = A @ B^T in bfloat16 on an H100 or H200, the best first."""
    from tilelang.carver.roller.policy import TensorCorePolicy
    from tilelang.carver.roller.rasterization import NoRasterization
    from tilelang.carver.template import MatmulTemplate
    from tvm.ir.attrs import DictAttrs

    def attribute(self: Any, name: str, get: Any = DictAttrs.__getattr__) -> Any:
        if name not in self._dict():  # saves a second: the first error in tvm's C++ reads all libraries' symbols
            raise AttributeError(name)
        return get(self, name)

    DictAttrs.__getattr__ = attribute
    analysis: Any = importlib.import_module("tilelang.carver.matmul_analysis")
    arch = hopper()
    analysis.get_arch = lambda _target: arch  # the original looks for the machine's GPU
    # Not MatmulTemplate(...): its constructor asks for the machine's own GPU, which makes a CUDA context.
    template = MatmulTemplate.__new__(MatmulTemplate)
    template.M, template.N, template.K = M, N, K
    template.trans_A, template.trans_B, template.with_bias = False, True, False
    template.in_dtype, template.out_dtype, template.accum_dtype = "bfloat16", "bfloat16", "float32"
    template.initialize_function()
    function, tags = analysis.get_tensorized_func_and_tags(template.equivalent_function(), arch.target, allow_gemv=True)
    if not tags:
        raise ValueError(f"the roller has no tensor core schedule for M={M}, N={N}, K={K}")
    configs: dict[tuple[Any, ...], dict[str, Any]] = {}
    # Hints that differ only in their warps' shapes give the same configuration, so ask for more hints.
    for hint in TensorCorePolicy.from_prim_func(func=function, arch=arch, tags=tags).emit_config(2 * topk):
        (block_M, block_N), (warp_M, warp_N) = hint.block, hint.warp
        config = {
            "block_M": int(block_M),
            "block_N": int(block_N),
            "block_K": int(hint.rstep[0]),
            "num_stages": int(hint.pipeline_stage) if hint.pipeline_stage > 1 else 0,
            "threads": int(block_M // warp_M) * int(block_N // warp_N) * arch.warp_size,
            "swizzle": not isinstance(hint.rasterization_plan, NoRasterization),
        }
        configs.setdefault(tuple(config.values()), config)
    return list(configs.values())[:topk]


def hopper() -> Any:
    """Return the carver's description of an H100 or H200 SXM5, which its constructor would read from the driver."""
    from tilelang.carver.arch.cuda import CUDA
    from tvm.target import Target

    arch = CUDA.__new__(CUDA)
    arch.target = Target({"kind": "cuda", "arch": "sm_90a"})
    arch.name, arch.platform, arch.device = "sm_90a", "CUDA", None
    arch.sm_version, arch.compute_capability = 90, "90"
    # From table 3 of NVIDIA's H100 white paper. Shared memory is a block's default.
    arch.compute_max_core, arch.reg_cap, arch.l2_cache_size_bytes = 132, 65536, 50 << 20
    arch.smem_cap, arch.max_smem_usage = 48 * 1024, 2 * 48 * 1024
    # Constants of tilelang's constructor.
    arch.warp_size, arch.sm_partition = 32, 4
    arch.transaction_size, arch.bandwidth = [32, 128], [750, 12080]
    arch.available_tensor_instructions = None
    return arch


WORKLOAD = atune.Workload(
    matmul,
    recommended,
    arguments={"M": M, "N": N, "K": K},
    reference=reference,
    default={"block_M": 128, "block_N": 128, "block_K": 32, "num_stages": 2, "threads": 128, "swizzle": True},
    name="gemm_roller",
)


async def main() -> None:
    result = await atune.tune(WORKLOAD, target="cuda")
    print(table(result))


if __name__ == "__main__":
    anyio.run(main)

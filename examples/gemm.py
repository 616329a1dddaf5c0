"""A bf16 matrix product on a CUDA GPU: 288 configurations, checked against torch.

atune tune examples/gemm.py:WORKLOAD
python examples/gemm.py

The script also takes the options of the example in TileLang's pull request 2159; --help lists them.
"""

from __future__ import annotations

import argparse
from typing import Any

import anyio
import tilelang.language as T
import torch

import atune
from atune.reporting.export import table

M = N = K = 4096


def matmul(
    M: int,
    N: int,
    K: int,
    block_M: int = 128,
    block_N: int = 128,
    block_K: int = 32,
    num_stages: int = 2,
    threads: int = 128,
    swizzle: bool = False,
) -> Any:
    """C = A @ B^T in bfloat16, accumulated in float32; A is (M, K), B is (N, K)."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), C: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
            B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), "bfloat16")
            T.use_swizzle(panel_size=10, enable=swizzle)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


def reference(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B.T


WORKLOAD = atune.Workload(
    matmul,
    atune.Space(
        block_M=[64, 128, 256],
        block_N=[64, 128, 256],
        block_K=[32, 64],
        num_stages=[0, 1, 2, 3],
        threads=[128, 256],
        swizzle=[True, False],
    ),
    arguments={"M": M, "N": N, "K": K},
    reference=reference,
    name="gemm",
)


async def main(given: argparse.Namespace) -> None:
    problem = {"M": given.m, "N": given.n, "K": given.k}
    workload, devices = WORKLOAD.at(problem), given.benchmark_devices
    if given.with_roller:
        from gemm_roller import TOPK, recommended  # here, because gemm_roller imports this file

        configs = recommended(**problem, topk=given.topk or TOPK)
        workload = atune.Workload(matmul, configs, arguments=problem, reference=reference)
    result = await atune.tune(
        workload,
        target="cuda",
        devices=devices or "all" if given.benchmark_multi_gpu else (devices or [0])[:1],
        pipeline=given.pipeline,
        compile=atune.CompileSettings(group_size=given.group_compile_size if given.grouped_compile else 1),
        benchmark=atune.BenchmarkSettings(
            n_warmup=given.warmup,
            n_repeat=given.rep,
            benchmark_timeout_s=given.timeout,
            check=not given.skip_check,
            cache_inputs=given.cache_input_tensors,
        ),
    )
    print(table(result))
    A, B = (torch.randn(size, given.k, device="cuda").bfloat16() for size in (given.m, given.n))
    torch.testing.assert_close(result.kernel(A, B), A @ B.T, rtol=2e-2, atol=1.0)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line. For options that are not given, atune decides, as in `atune tune`."""
    parser = argparse.ArgumentParser(description="Tune a bf16 matrix product: C (m, n) = A (m, k) @ B (n, k)^T.")
    for name in ("--m", "--n", "--k"):
        parser.add_argument(name, type=int, default=4096)
    parser.add_argument("--with-roller", action="store_true", help="try only what TileLang's roller recommends")
    parser.add_argument("--without-roller", dest="with_roller", action="store_false")
    parser.add_argument("--topk", type=int, help="configurations that the roller recommends (20)")
    parser.add_argument("--warmup", type=int, default=3, help="calls before the first sample (3)")
    parser.add_argument("--rep", type=int, default=20, help="samples of each configuration (20)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one configuration (60)")
    parser.add_argument("--skip-check", action="store_true", help="do not compare outputs with torch")
    parser.add_argument("--execution-backend", choices=["auto", "tvm_ffi"], help="kernels are called by tvm_ffi")
    parser.add_argument("--group-compile-size", type=int, metavar="N", help="kernels that are compiled together")
    parser.add_argument("--benchmark-devices", type=int, action="append", metavar="GPU", help="a GPU; repeatable")
    for name, text in {
        "--cache-input-tensors": "use the same inputs for all configurations",
        "--pipeline": "measure while others compile",
        "--grouped-compile": "compile several kernels together",
        "--benchmark-multi-gpu": "measure on all GPUs, or on those of --benchmark-devices",
    }.items():
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=True, help=f"{text} (on)")
    given = parser.parse_args(arguments)
    if given.topk is not None and not given.with_roller:
        parser.error("--topk needs --with-roller, because only the roller ranks configurations")
    if len(given.benchmark_devices or ()) > 1 and not given.benchmark_multi_gpu:
        parser.error("--no-benchmark-multi-gpu measures on one GPU, so name at most one with --benchmark-devices")
    if given.group_compile_size is not None and not given.grouped_compile:
        parser.error("--no-grouped-compile compiles each kernel by itself, so leave out --group-compile-size")
    return given


if __name__ == "__main__":
    anyio.run(main, options())

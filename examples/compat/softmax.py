"""A row-wise softmax, written for tilelang's autotuner. Only an import line differs.

python examples/compat/softmax.py
"""

from typing import Any

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune  # was: from tilelang.autotuner import autotune

M, N = 8192, 4096
LOG2_E = 1.4426950408889634


def reference(X: torch.Tensor) -> torch.Tensor:
    return torch.softmax(X.float(), dim=1).to(X.dtype)


@autotune(
    configs=[{"rows": rows, "threads": threads} for rows in (1, 2, 4) for threads in (128, 256, 512)],
    warmup=3,
    rep=20,
    timeout=60,
    ref_prog=reference,
    rtol=1e-2,
    atol=1e-4,
    cache_input_tensors=True,
)
@tilelang.jit(out_idx=[-1], target="cuda")
def softmax(M: int, N: int, rows: int = 1, threads: int = 256) -> Any:
    """Each block takes `rows` rows and keeps them in registers."""

    @T.prim_func
    def main(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            highest = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows, 0], x)
            T.reduce_max(x, highest, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.exp2((x[i, j] - highest[i]) * LOG2_E)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * rows, 0])

    return main


def arguments() -> tuple[Any, ...]:
    return M, N


def inputs() -> list[torch.Tensor]:
    return [torch.randn(M, N, device="cuda").half()]


def tuned() -> Any:
    return softmax(*arguments())


if __name__ == "__main__":
    kernel, tensors = tuned(), inputs()
    torch.testing.assert_close(kernel(*tensors), reference(*tensors), rtol=1e-2, atol=1e-4)
    print(f"{kernel.latency:.4f} ms with {kernel.config}; torch {kernel.ref_latency:.4f} ms")

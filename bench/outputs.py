"""What is tuned is what is called, on a GPU: a kernel that reads its length from its last tensor, and a sum into zeros.

The first has no output: each variant's tuned latency stands beside that of its calls. The second adds to an output that
`zero=` names: its kernel is called on memory that holds other numbers, through each way to call it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import tilelang
import tilelang.language as T
import torch
from common import options, report

import atune

LENGTH, ROWS, COLUMNS, CALLS = 1 << 22, 512, 4096, 9


@tilelang.jit
def walk(X, L, rounds: int = 20):
    n = T.const("n")
    X: T.Tensor[[n], T.float32]
    L: T.Tensor[[1], T.int32]
    with T.Kernel(T.ceildiv(n, 1024), threads=256) as b:
        for i in T.Parallel(1024):
            if b * 1024 + i < L[0]:
                for _ in T.serial(rounds):
                    X[b * 1024 + i] = T.sin(X[b * 1024 + i] + 1.0)


def column_sums(block: int = 128, split: int = 4) -> Any:
    @T.prim_func
    def main(X: T.Tensor((ROWS, COLUMNS), "float32"), S: T.Tensor((COLUMNS,), "float32")):
        with T.Kernel(COLUMNS // block, split, threads=block) as (b, s):
            for i in T.Parallel(block):
                for k in T.serial(ROWS // split):
                    T.atomic_add(S[b * block + i], X[s * (ROWS // split) + k, b * block + i])

    return main


def called_ms(call: Callable[[], Any]) -> float:
    """Return the median milliseconds of a call on the GPU."""
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def lengths() -> list[list[Any]]:
    """Return a row for each variant of the kernel that reads its length: milliseconds as tuned and as called."""
    X, L = torch.zeros(LENGTH, device="cuda"), torch.tensor([LENGTH], dtype=torch.int32, device="cuda")
    tuned = atune.autotune(walk, space={"rounds": [20, 200]}, inputs="call", tuning="quick", cache=False)
    tuned(X, L)
    rows = []
    for record in tuned.tune(X, L).records:
        real = called_ms(lambda rounds=record.config["rounds"]: walk(X, L, rounds))  # type: ignore[misc]
        rows.append(["length", record.config, f"{record.latency_ms:.4f}", f"{real:.4f}", ""])
    return rows


def zeros() -> list[list[Any]]:
    """Return a row for each way to call the winner: how many of its calls on used memory are right."""
    space = atune.Space(block=[128, 256], split=[2, 4])
    work = atune.Workload(column_sums, space, reference=lambda X: X.sum(0), zero=[1], rtol=1e-3)
    result = atune.run(work, target="cuda", progress=False)
    tuned = atune.autotune(
        column_sums, space=space, reference=lambda X: X.sum(0), zero=[1], rtol=1e-3, target="cuda", tuning="quick"
    )
    kernel = tuned()
    ways = {"result.kernel": result.kernel, "decorated": kernel, "as_op": result.kernel.as_op("bench::column_sums")}
    X = torch.rand(ROWS, COLUMNS, device="cuda")
    rows = []
    for name, call in ways.items():
        right = 0
        for _ in range(CALLS):
            torch.full((COLUMNS,), 1e6, device="cuda")  # the allocator hands this memory out again
            right += bool(torch.allclose(call(X), X.sum(0), rtol=1e-3))
        rows.append(["zero", name, f"{result.latency_ms:.4f}", "", f"{right} of {CALLS}"])
    return rows


def main() -> None:
    arguments = options(__doc__ or "", 240)
    rows = [["case", "what", "tuned ms", "called ms", "right"], *lengths(), *zeros()]
    report(arguments, "outputs", rows, {"device": torch.cuda.get_device_name(0), "rows": rows})


if __name__ == "__main__":
    main()

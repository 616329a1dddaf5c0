"""What the digest of outputs costs beside a check: call, guards, search for unwritten elements, comparison.

python bench/digest.py --out bench/results/digest
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import options, report
from vs_tilelang import machine

from atune.model.artifact import KernelParam, Roles
from atune.stages.measure.arguments import POISONS, KernelArguments
from atune.stages.measure.check import expected_outputs, judged
from atune.workload.workload import Workload


def median_ms(call: Callable[[], Any], n: int, device: str) -> float:
    took = []
    for _ in range(n + 2):
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took[2:])


def main() -> None:
    given = options("the digest of outputs", 120.0, device="cuda", repeats=20)
    torch.set_num_threads(1)
    table: list[tuple[Any, ...]] = [("output", "check ms", "digest ms", "share")]
    for dtype in ("float32", "bfloat16"):
        for n in (256, 1024, 4096, 8192):
            work = Workload(lambda x: None, [{"x": 1}], reference=lambda a: a * 2)
            param = KernelParam(dtype, (n, n))
            made = KernelArguments(work, [param, param], Roles((1,)), given.device)
            expected = expected_outputs(work, made)

            def check(made: KernelArguments = made, expected: Any = expected, work: Workload = work) -> None:
                made.guards.renew()
                made.fill_outputs(POISONS[0])
                made.outputs[0].copy_(made.inputs[0] * 2)
                assert not made.guards.damage()
                assert judged(work, made, expected, made.kept(POISONS[0]))[0] is None
                made.restore_inputs()

            whole = median_ms(check, given.repeats, given.device)
            own = median_ms(made.digest, given.repeats, given.device)
            table.append((f"{n} x {n} {dtype}", round(whole, 3), round(own, 3), round(own / (whole + own), 4)))
    command = f"python bench/digest.py {' '.join(sys.argv[1:])}"
    report(given, "digest", table, {"command": command, "machine": machine(), "rows": table[1:]})


if __name__ == "__main__":
    main()

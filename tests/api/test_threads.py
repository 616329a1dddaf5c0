"""`run()` in several threads of one program at once, with real processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fault_kernels import doubled, inputs, kernel

from atune.frontends.api.tuner import run
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.processes.server import shutdown
from atune.workload.workload import Workload


@pytest.mark.asked
def test_eight_threads_run_at_once() -> None:
    """Each packs its workload, has its fork server, and takes turns on the CPU with the others."""
    together = threading.Barrier(8)

    def runs(thread: int) -> list[int]:
        work = Workload(kernel, [{"x": 0}, {"x": 1}], inputs=inputs, reference=doubled, name=f"thread {thread}")
        settings = CompileSettings(workers=1), BenchmarkSettings(n_repeat=2, n_final=0)
        together.wait()
        return [run(work, target="c", compile=settings[0], benchmark=settings[1]).measured for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(runs, range(8))) == [[2, 2]] * 8
    shutdown()

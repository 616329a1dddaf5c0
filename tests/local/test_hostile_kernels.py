"""What a kernel does to the worker that makes it is its own failure, named rightly, and costs no other candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_kernels import RAISED

from atune.frontends.api.tuner import tune
from atune.journal.reader import read
from atune.journal.result import TuneResult
from atune.model.settings import BenchmarkSettings, CompileSettings

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "hostile_kernels.py"
BENCHMARK = BenchmarkSettings(n_repeat=5, n_final=0)


async def test_what_a_kernel_raises_is_its_failure_alone(tmp_path: Path) -> None:
    """Interrupts, cancellations, skips, panics, exceptions without a message or with one that no journal can hold."""
    result = await tune(
        f"{KERNELS}:RAISING",
        target="c",
        compile=CompileSettings(workers=1),
        benchmark=BENCHMARK,
        journal=tmp_path / "j",
    )
    assert result.measured == 4 and result.failed == len(RAISED)
    failures = {record.config["mode"]: record for record in result.failures}
    assert failures.keys() == RAISED.keys()
    for name, failure in failures.items():
        assert failure.kind == "lower" and failure.message.startswith(f"{name}: "), failure
        assert "raise RAISED[mode]" in failure.detail or "<no traceback>" in failure.detail
    assert failures["Skipped"].message == "Skipped: not today"
    assert failures["Panic"].message == "Panic: index out of bounds"
    assert failures["Speechless"].message == "Speechless: <no message: str() raised RuntimeError>"
    assert failures["SpeechlessPanic"].message == "SpeechlessPanic: <no message: str() raised KeyboardInterrupt>"
    assert failures["ValueError"].message == "ValueError: a lone \\udcff surrogate"
    assert TuneResult.from_events(read(tmp_path / "j")).records == result.records


async def test_kernels_that_meddle_with_their_worker_are_named_and_cost_no_other() -> None:
    """`os.fork()` that returns twice, a socket that is closed, and an answer that nobody asked for."""
    result = await tune(f"{KERNELS}:MEDDLING", target="c", compile=CompileSettings(workers=1), benchmark=BENCHMARK)
    failed = {record.config["mode"]: (record.kind, record.message) for record in result.failures}
    closed = "lowering ended its process: closed the socket that its answers go through"
    written = "lowering ended its process: something wrote to the socket that its answers go through"
    assert failed == {
        "closes its socket": ("crash", closed),
        "closes its socket and stays": ("crash", closed),
        "answers": ("crash", written),
    }
    assert result.measured == 4

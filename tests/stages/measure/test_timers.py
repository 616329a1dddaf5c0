"""Timing methods: how CUPTI's records become samples, and, on a GPU, that all methods agree."""

from __future__ import annotations

from pathlib import Path

import pytest

import atune
from atune.model.settings import BenchmarkSettings
from atune.stages.measure.timer import between_marks

KERNELS = Path(__file__).parents[3] / "bench" / "kernels.py"
MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def recorded(*names: str) -> list[tuple[float, float, str]]:
    """Return records of kernels of 1, 2, 3 … µs, each with a gap after it."""
    spans, now = [], 0.0
    for i, name in enumerate(names):
        spans.append((now, now + i + 1, name))
        now += i + 2.5
    return spans


def test_samples_are_what_ran_between_two_marks() -> None:
    """The flush has the timed kernel's name, and one call launches two kernels; order of delivery does not matter."""
    spans = recorded(MARK, "fill", MARK, "fill", MARK, "fill", MARK, "fill", "Memcpy DtoD", MARK)
    assert between_marks(spans, 2) == [4.0, 8.0 + 9.0] == between_marks(spans[::-1], 2)


def test_missing_records_are_no_samples() -> None:
    whole = recorded(MARK, "fill", MARK, "kernel", MARK)
    assert between_marks(whole, 1) == [4.0]
    for lost in range(5):
        without = whole[:lost] + whole[lost + 1 :]
        assert (between_marks(without, 1) is None) == (lost != 1)
    assert between_marks([], 1) is None and between_marks(whole, 2) is None


@pytest.mark.gpu
def test_methods_agree_on_a_gpu() -> None:
    """A call of about 70 µs; events and graphs cost a little of that, CUPTI does not."""
    found = {}
    for method in ("events", "cuda_graph", "cupti"):
        settings = BenchmarkSettings(method=method, adaptive=False, n_repeat=50, n_final=0)
        result = atune.run(f"{KERNELS}:CLEAN", target="cuda", devices=["0"], budget=2, benchmark=settings)
        assert result.measured == 2 and {m.timing.method for m in result.measurements} == {method}
        found[method] = {m.index: m.timing.latency_ms for m in result.measurements}
    for index, events in found["events"].items():
        assert 0.9 < found["cuda_graph"][index] / events < 1.1, found
        assert 0.85 < found["cupti"][index] / events < 1.05, found

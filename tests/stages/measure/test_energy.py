"""Power and energy of finalists, from a counter of a GPU's energy that steps now and then."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from event_streams import Stream

from atune.journal.events import FinalOrdered, decode, encode
from atune.journal.result import Result
from atune.model.measurement import Energy, FinalEntry, Timing
from atune.reporting.summary import summary, summary_text
from atune.stages.measure import benchmark
from atune.stages.measure.telemetry import PATIENCE_S, Observer, energy_of
from atune.stages.measure.timer import Timed


class Gpu:
    """Calls of 2 ms each at 500 W; its counter steps every 0.1 s."""

    def __init__(self) -> None:
        self.now, self.calls = 0.017, 0

    def call(self) -> None:
        self.now += 0.002
        self.calls += 1

    def synchronise(self) -> None:
        pass

    def counter(self) -> int:
        return int(self.now / 0.1 + 1e-9) * 50_000

    def energy(self, counter: Any = None) -> Energy | None:
        return energy_of(self.call, self.synchronise, counter or self.counter, 2.0, lambda: self.now)


def test_power_and_energy_are_counted_between_two_steps() -> None:
    gpu = Gpu()
    energy = gpu.energy()
    assert energy is not None and energy.power_w == pytest.approx(500, rel=0.05)
    assert energy.call_j == pytest.approx(1.0, rel=0.05) and 150 <= energy.calls < gpu.calls < 250


@pytest.mark.parametrize("counter", [lambda: None, lambda: 5], ids=["does not tell", "stands still"])
def test_a_gpu_that_does_not_count_is_not_waited_for_long(counter: Any) -> None:
    gpu = Gpu()
    assert gpu.energy(counter) is None
    assert gpu.now < PATIENCE_S + 0.1


def test_a_counter_that_begins_anew_tells_nothing() -> None:
    steps = iter([9, 10, 3])
    assert Gpu().energy(lambda: next(steps)) is None


def test_nvml_is_asked_for_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Observer("GPU-1").energy_mj() is None  # a driver, or a GPU, that does not know it
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: {"GPU-1": 123_456}[handle]
    assert Observer("GPU-1").energy_mj() == 123_456


def test_a_finalist_whose_inputs_must_be_restored_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    monkeypatch.setattr(benchmark._device, "timer", gpu, raising=False)
    monkeypatch.setattr(benchmark._device, "observer", SimpleNamespace(energy_mj=iter([1, *range(2, 9000)]).__next__))
    monkeypatch.setattr("atune.stages.measure.telemetry.WINDOW_S", 0.001)
    entry = FinalEntry(0, Timing.of([2000.0], "events"))
    assert benchmark._with_energy(entry, Timed(gpu.call, gpu.call)) == entry
    found = benchmark._with_energy(entry, Timed(gpu.call)).timing.energy
    assert found is not None and found.calls >= 2


def test_energy_is_in_the_record_the_journal_and_the_summary() -> None:
    energy = Energy(power_w=512.5, call_j=0.0912, calls=1500)
    timing = Timing.of([1000.0], "events")
    timing = Timing(timing.latency_ms, timing.spread, timing.samples_us, timing.method, None, energy)
    assert timing.and_more(Timing.of([900.0], "events")).energy == energy  # measured once, in the first look
    stream = Stream(total=1).candidate(0, 1.0).add(FinalOrdered, device="cpu", entries=(FinalEntry(0, timing),))
    result = Result.from_events(decode(encode(event)) for event in stream.finished().events)
    assert result.best is not None and result.best.timing is not None and result.best.timing.energy == energy
    assert summary(result)["energy"] == {"power_w": 512.5, "call_j": 0.0912, "calls": 1500}
    assert "\nenergy     512 W, 0.0912 J a call" in summary_text(result)

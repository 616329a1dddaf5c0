"""Weaknesses of tilelang's own tuner (0.1.15) that the drop-in does not have, on the CPU target.

Those that belong to the engine have their tests there; docs/design/promises.md lists them.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peer_kernels import (
    N,
    counting_reference,
    doubled,
    doubled_into,
    in_place,
    logged_inputs,
    moody_and_logged,
    picky,
    scale,
)

import atune
from atune.compat.tilelang import (
    AutoTuner,
    AutotuneResult,
    CompatWarning,
    CompileArgs,
    TuningFailed,
    autotune,
    set_autotune_inputs,
)
from atune.compat.tilelang.arguments import ProfileArgs, RunArgs
from atune.compat.tilelang.environment import plan
from atune.errors import NoWinner
from atune.frontends.api import cached_tune as cached
from atune.frontends.api.machines import discover
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkStarted,
    Event,
)
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.measure import benchmark
from atune.stages.measure.timer import Timed

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")
QUICK = BenchmarkSettings(n_warmup=1, n_repeat=5, n_final=0)
BLOCKS = [{"block": 8}, {"block": 16}, {"block": 32}]


def tuner(kernel: Any, configs: Any, **profile: Any) -> AutoTuner:
    """Return a drop-in tuner for the CPU, with few samples."""
    made = AutoTuner.from_kernel(kernel, configs=configs).set_compile_args(out_idx=[-1], target="c")
    return made.set_profile_args(warmup=1, rep=5, **profile)


def tuned(*work: Any, **options: Any) -> tuple[atune.TuneResult, list[Event]]:
    """Run a workload on the CPU; return its result and its events."""
    events: list[Event] = []
    options.setdefault("benchmark", QUICK)
    return atune.run(
        atune.Workload(*work, **options.pop("work", {})), target="c", on_event=events.append, **options
    ), events


def of(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_the_decorator_takes_pipeline_groups_and_gpus_as_run_does() -> None:
    run_parameters = inspect.signature(AutoTuner.run).parameters.keys() - {"self", "warmup", "rep", "timeout"}
    assert run_parameters <= inspect.signature(autotune).parameters.keys()
    assert not plan(CompileArgs(target="c"), ProfileArgs(), RunArgs(use_pipeline=False)).pipeline


def test_the_host_compiler_runs_in_compile_workers_and_never_in_the_device_s_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers, devices = tmp_path / "compilers", tmp_path / "devices"
    wrapper = tmp_path / "bin" / "g++"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho $PPID >> {compilers}\nPATH="${{PATH#*:}}" exec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    work = {"arguments": {"log": str(devices)}, "inputs": logged_inputs, "reference": doubled}
    modes = [{"mode": "ok"}, {"mode": "also ok"}]
    result, events = tuned(moody_and_logged, modes, work=work, compile=CompileSettings(store=False, group_size=1))
    assert result.measured == 2
    started_by, measured_in = set(compilers.read_text().split()), set(devices.read_text().split())
    assert len(started_by) >= 1 and len(measured_in) == 1
    assert not started_by & measured_in
    built = {index: event.seq for event in of(events, ArtifactBuilt) for index in event.indices}
    assert all(built[event.index] < event.seq for event in of(events, BenchmarkStarted))


def test_a_bad_first_configuration_costs_the_others_nothing() -> None:
    found = tuner(picky, [{"block": 24}, {"block": 16}], ref_prog=doubled).run()
    assert found.config == {"block": 16}
    [bad] = found.tuning.failures
    assert bad.index == 0 and "24 is no power of two" in bad.message
    A = torch.randn(N)
    assert torch.equal(found.kernel(A), A * 2)


def test_a_candidate_that_is_stopped_early_has_true_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops it is compared with is timed the same way, and what is recorded is the median of real samples."""

    class OneTimer:
        method = "events"

        def __init__(self) -> None:
            self.asked: list[int] = []

        def samples(self, timed: Timed, n_warmup: int, n_repeat: int) -> list[float]:
            self.asked.append(n_repeat)
            return [100.0] * n_repeat

    # As fast as the best; twice as slow; as slow, where that is not slow enough; slower than a limit of one's own.
    for best_ms, factor, expected in ((0.1, None, 50), (0.05, None, 3), (0.05, 2.5, 50), (0.09, 1.05, 3)):
        settings = BenchmarkSettings(n_warmup=1, n_repeat=50, early_stop_factor=factor)
        timer = OneTimer()
        monkeypatch.setattr(benchmark._device, "timer", timer, raising=False)
        samples = benchmark._samples(Timed(lambda: None), settings, best_ms)
        assert len(samples) in (expected, expected + 3) and set(samples) == {100.0}
        assert benchmark._timing(samples).latency_ms == pytest.approx(0.1)


def test_run_uses_what_set_profile_args_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BenchmarkSettings] = []

    async def tune(work: Any, **options: Any) -> Any:
        asked.append(options["benchmark"])
        raise NoWinner("enough", atune.results.Result(atune.journal.result.State()))

    monkeypatch.setattr(cached, "tune_apart", tune)
    profiled = AutoTuner.from_kernel(picky, [{"block": 16}]).set_compile_args(out_idx=-1, target="c")
    profiled.set_profile_args(warmup=7, rep=11, timeout=13)
    for options in ({}, {"rep": 17}):
        with pytest.raises(TuningFailed):
            profiled.run(**options)
    with pytest.raises(TuningFailed):
        profiled.set_profile_args(rep=3).run()
    assert [(s.n_warmup, s.n_repeat, s.benchmark_timeout_s) for s in asked] == [(7, 11, 13), (7, 17, 13), (25, 3, 180)]
    assert plan(CompileArgs(target="c"), ProfileArgs(timeout=0), RunArgs()).benchmark.benchmark_timeout_s > 86400


def test_outputs_that_kernel_and_reference_write_into_are_compared() -> None:
    made = AutoTuner.from_kernel(scale, configs=[{"factor": 3}, {"factor": 2}])
    made.set_compile_args(out_idx=None, target="c").set_profile_args(warmup=1, rep=5, ref_prog=doubled_into)
    found = made.run()
    assert found.config == {"factor": 2}
    assert [record.kind for record in found.tuning.failures] == ["mismatch"]
    A, B = torch.randn(N), torch.empty(N)
    found.kernel(A, B)
    assert torch.equal(B, A * 2)


def test_the_reference_runs_as_often_for_many_candidates_as_for_one_and_on_clean_inputs(tmp_path: Path) -> None:
    counts = []
    for blocks in (BLOCKS[:1], BLOCKS):
        log = tmp_path / f"{len(blocks)}"
        counted = msgspec.structs.replace(QUICK, adaptive=False)  # else samples that scatter are followed by more
        result, _ = tuned(in_place, blocks, work={"reference": counting_reference(str(log))}, benchmark=counted)
        assert result.measured == len(blocks)
        sums = log.read_text().split()
        counts.append(len(sums))
        assert sums[0] != "0.000000"  # what the check compares with
    assert counts[0] == counts[1]


@pytest.mark.gpu
@pytest.mark.timeout(170)
def test_a_trap_on_a_gpu_leaves_the_users_cuda_context_alone(tmp_path: Path) -> None:
    mine = torch.ones(8, device="cuda")
    modes = [{"mode": "crash"}, {"mode": "ok"}]
    arguments = {"log": str(tmp_path / "log"), "threads": 32}
    work = atune.Workload(moody_and_logged, modes, arguments=arguments, inputs=logged_inputs, reference=doubled)
    result = atune.run(work, target="cuda", devices=["0"], benchmark=QUICK)
    assert [record.kind for record in result.records] == ["fault", ""]
    assert mine.sum().item() == 8.0
    x = torch.arange(32, dtype=torch.float32, device="cuda")
    assert torch.equal(result.kernel(x), x * 2)


def test_callbacks_and_given_inputs_do_not_turn_the_cache_off(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def supply(params: list[Any]) -> list[torch.Tensor]:
        with open(log, "a") as file:
            file.write(f"{[tuple(p.shape) for p in params]}\n")
        return [torch.ones(tuple(p.shape)) for p in params]

    def check(outputs: list[torch.Tensor], references: list[torch.Tensor]) -> None:
        torch.testing.assert_close(outputs, references)

    def run_once(**more: Any) -> AutotuneResult:
        return tuner(scale, [{"block": 8}, {"block": 64}], ref_prog=doubled, **more).run()

    first = run_once(supply_prog=supply, manual_check_prog=check)
    assert not first.tuning.cache_hit and log.read_text() == f"[({N},)]\n"
    second = run_once(supply_prog=supply, manual_check_prog=check)
    assert second.tuning.cache_hit and second.config == first.config and second.latency == first.latency
    assert log.read_text() == f"[({N},)]\n"  # nobody asked for inputs again
    A = torch.randn(N)
    assert torch.equal(second.kernel(A), A * 2)
    hits = []
    for _ in range(2):
        with set_autotune_inputs(A):
            hits.append(run_once().tuning.cache_hit)
    assert hits == [False, True]
    assert not run_once(supply_prog=supply).tuning.cache_hit  # another way to check is another tuning


def test_the_cache_tells_runs_by_their_arguments_and_devices_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def hit(rep: int) -> bool:
        made = tuner(scale, [{"block": 4}, {"block": 2}])
        return bool(made.run(rep=rep).tuning.cache_hit)

    assert [hit(5), hit(5), hit(6), hit(6)] == [False, True, False, True]

    def other_device(*asked: Any) -> Any:
        target, devices = discover(*asked)
        return target, [msgspec.structs.replace(device, name="another CPU") for device in devices]

    monkeypatch.setattr(cached, "discover", other_device)
    assert not hit(5)
    assert hit(5)


def test_a_half_written_folder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    found = tuner(picky, [{"block": 16}]).run()
    found.save_to_disk(folder)
    assert sorted(os.listdir(tmp_path)) == ["saved"]  # nothing is left in staging
    args = CompileArgs(out_idx=[-1], target="c", execution_backend="cython")
    again = AutotuneResult.load_from_disk(folder, args)
    assert again is not None and again.config == {"block": 16}
    for name in ("best_config.json", "kernel_lib.so"):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.warns(CompatWarning, match=f"it lacks .*{name}"):
            assert AutotuneResult.load_from_disk(folder, args) is None
        (folder / name).write_bytes(kept)
    (folder / "kernel_lib.so").unlink()
    found.save_to_disk(folder)  # and it is written anew
    assert os.listdir(tmp_path) == ["saved"]
    assert AutotuneResult.load_from_disk(folder, args) is not None


def test_configurations_may_be_generated() -> None:
    def generated(n: int) -> Any:
        for block in (8, 16, 32):
            if n % block == 0:
                yield {"block": block}

    for configs in (generated(48), [{"block": 8}, {"block": 16}, {"block": 8}], lambda: generated(48)):
        made = tuner(picky, configs, ref_prog=doubled)
        for _ in range(2):  # a generator object, too, is good for a second run
            assert made.run().tuning.total == 2


def test_kernels_may_close_over_anything() -> None:
    sizes, tiles = {"n": N}, [8, 16]
    dtype, make = torch.float32, scale

    def kernel(tile: int) -> Any:
        assert dtype is torch.float32
        return make(sizes["n"], 2, tiles[tile])

    found = tuner(kernel, [{"tile": 0}, {"tile": 1}], ref_prog=doubled).run()
    assert found.tuning.measured == 2
    A = torch.randn(N)
    assert torch.equal(found.kernel(A), A * 2)


def test_no_file_appears_in_the_working_folder_and_errors_reach_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    configs = [{"mode": "ok"}, {"mode": "refused"}, {"mode": "raise"}]
    arguments = {"log": str(tmp_path / "log")}
    made = AutoTuner(moody_and_logged, configs).set_compile_args(out_idx=-1, target="c")
    made.set_profile_args(warmup=1, rep=5, supply_prog=lambda params: logged_inputs(arguments["log"]))
    made.set_kernel_parameters(((), arguments))
    found = made.run()
    assert os.listdir(work) == []
    reasons = {record.config["mode"]: record for record in found.tuning.failures}
    assert "no_such_function" in reasons["refused"].detail
    assert "the kernel does not like 'raise'" in reasons["raise"].message


def test_when_nothing_works_the_error_says_why() -> None:
    made = tuner(picky, [{"block": 12}, {"block": 24}, {"block": 48}])
    with pytest.raises(RuntimeError, match="no candidate worked") as caught:
        made.run()
    message = str(caught.value)
    assert isinstance(caught.value, atune.NoWinner) and len(caught.value.result.failures) == 3
    assert "3 failed to lower, for example: ValueError: block 12 is no power of two" in message
    said = [failure.message for failure in caught.value.result.failures]
    assert [block for block in (12, 24, 48) if any(f"block {block} is no power of two" in one for one in said)] == [
        12,
        24,
        48,
    ]
    wrong = tuner(scale, [{"factor": 3}], ref_prog=lambda a: a * 5)
    with pytest.raises(TuningFailed, match=r"1 gave wrong outputs: output 0: \d+ of 64 elements differ"):
        wrong.run()

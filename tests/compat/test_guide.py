"""tilelang's autotuning guide, section by section, under its names; and weaknesses of its tuner that are not here.

On the CPU target, and the guide's examples on a GPU, too.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from contract_kernels import moody
from event_streams import Stream
from guide_kernels import doubled, product, product_of, scaled, tiles, typed
from peer_kernels import N, picky, scale

import atune
from atune.compat.tilelang import (
    ArgumentError,
    AutoTuner,
    AutotuneResult,
    CompatWarning,
    ConfigError,
    TuningFailed,
    autotune,
    set_autotune_inputs,
)
from atune.compat.tilelang.autotuner import TilelangKernel
from atune.errors import NoWinner
from atune.frontends.api import cached_tune as cached
from atune.model.settings import BenchmarkSettings
from atune.stages.measure import benchmark
from atune.stages.measure.timer import CpuTimer, Timed

pytestmark = pytest.mark.timeout(170)
SIZE = 64
QUICK = {"warmup": 1, "rep": 5, "timeout": 60}


class Place:
    """Where a test runs: the CPU, or a GPU."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.device = "cpu" if target == "c" else "cuda"
        self.backend = "cython" if target == "c" else "tvm_ffi"
        self.dtype = "float32" if target == "c" else "float16"
        self.problem = {"gpu": target == "cuda", "dtype": self.dtype}
        self.threads = None if target == "c" else 32
        self.tiles = tiles(SIZE, SIZE, SIZE, gpu=target == "cuda")

    def matrix(self) -> torch.Tensor:
        return torch.randn(SIZE, SIZE, device=self.device).to(getattr(torch, self.dtype))

    def decorated(self, kernel: Any, configs: Any, **options: Any) -> Any:
        jit = tilelang.jit(out_idx=[-1], target=self.target, execution_backend=self.backend)
        return autotune(configs=configs, **{**QUICK, **options})(jit(kernel))

    def tuner(self, kernel: Any, configs: Any, out_idx: Any = -1, arguments: Any = None, **profile: Any) -> AutoTuner:
        made = AutoTuner.from_kernel(kernel, configs=configs).set_compile_args(out_idx=out_idx, target=self.target)
        made.set_profile_args(**{**QUICK, **profile})
        made.set_kernel_parameters(((), {} if arguments is None else arguments), {})
        return made

    def product(self, configs: Any = tiles, **options: Any) -> AutoTuner:
        return self.tuner(product, configs, arguments={"M": SIZE, "N": SIZE, "K": SIZE, **self.problem}, **options)

    def scaled(self, configs: Any = ({"block": 16}, {"block": 32}), n: Any = 256, **options: Any) -> AutoTuner:
        return self.tuner(scaled, list(configs), arguments={"n": n, "threads": self.threads}, **options)


@pytest.fixture(params=["c", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-2, atol=1e-2)


# ---- 1) Decorator-based autotune


def test_decorator_tunes_once_for_each_argument_tuple_on_the_tensors_given(place: Place) -> None:
    matmul = place.decorated(product, tiles)
    A, B, C = place.matrix(), place.matrix(), torch.empty(SIZE, SIZE, device=place.device)
    with set_autotune_inputs(A, B, C):  # the guide gives the output, too
        kernel = matmul(SIZE, SIZE, SIZE, **place.problem)
    assert isinstance(kernel, tilelang.JITKernel)
    assert set(kernel.config) == {"block_M", "block_N"} and kernel.latency > 0
    close(kernel(A, B), product_of(A, B))  # and not kernel(A, B, C): with out_idx=[-1] it returns C
    with set_autotune_inputs(A, B):
        assert matmul(SIZE, SIZE, K=SIZE, **place.problem) is kernel  # however the arguments are given
    assert matmul(SIZE, SIZE, 32, **place.problem) is not kernel


# ---- 2) Programmatic autotune


def test_from_kernel_refuses_a_kernel_that_something_else_compiled() -> None:
    kernel = tilelang.compile(scaled(64), out_idx=[-1], target="c", execution_backend="cython")
    with pytest.raises(ArgumentError, match="got a compiled kernel: omit the call"):
        AutoTuner.from_kernel(kernel, configs=[{"block": 16}])


# ---- Input tensor supply


def test_a_supply_program_gets_dtypes_and_shapes_and_the_context_manager_comes_first(
    place: Place, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def supply(params: list[Any]) -> list[torch.Tensor]:
        with open(log, "a") as file:
            file.write(f"{[(str(p.dtype), tuple(p.shape)) for p in params]}\n")
        return [torch.ones(*p.shape) for p in params]

    found = place.scaled(supply_prog=supply, ref_prog=doubled, n=192).run()
    assert log.read_text() == "[('float32', (192,))]\n" and found.tuning.failed == 0
    A = torch.ones(192, device=place.device)
    with set_autotune_inputs([A]), pytest.warns(CompatWarning, match="supply_prog: is not called inside"):
        place.scaled(supply_prog=supply, ref_prog=doubled, n=192).run()
    assert len(log.read_text().splitlines()) == 1


def through(n: int, threads: int | None, block: int = 16) -> Any:
    """B = A + 1, by way of a workspace."""

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), W: T.Tensor((2, n), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
            for i in T.Parallel(block):
                W[1, b * block + i] = A[b * block + i]
            for i in T.Parallel(block):
                B[b * block + i] = W[1, b * block + i] + 1.0

    return main


@pytest.mark.parametrize(("out_idx", "given"), [(None, 3), (-1, 2)])
@pytest.mark.parametrize("starred", [False, True])
def test_functions_get_every_parameter_where_nobody_names_outputs(
    place: Place, tmp_path: Path, out_idx: Any, given: int, starred: bool
) -> None:
    """As there, and with the values that were supplied, whatever atune takes for an output."""
    log, values = tmp_path / "log", {(64,): 0.0, (2, 64): 1.0}

    def supply(params: list[Any]) -> list[torch.Tensor]:
        made = [torch.full(tuple(p.shape), values[tuple(p.shape)], dtype=torch.float32) for p in params]
        return [*made[:-1], made[-1] + 2] if len(params) == 3 else made

    def noted(*inputs: torch.Tensor) -> Any:
        log.write_text(repr([(tuple(one.shape), one.flatten()[0].item()) for one in inputs]))
        return inputs[0] + 1

    fixed = {2: lambda a, b: noted(a, b), 3: lambda a, b, c: noted(a, b, c)}
    made = place.tuner(
        through,
        [{"block": 16}, {"block": 32}],
        out_idx,
        {"n": 64, "threads": place.threads},
        supply_prog=supply,
        ref_prog=noted if starred else fixed[given],
    )
    assert made.run().tuning.failed == 0
    assert log.read_text() == repr([((64,), 0.0), ((2, 64), 1.0), ((64,), 2.0)][:given])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "bfloat16"])
def test_dtypes_that_only_some_devices_have(dtype: str) -> None:
    Place("cuda").tuner(typed, [{"block": 16}], arguments={"dtype": dtype, "threads": 16}).run()


def test_symbolic_dimensions_need_concrete_inputs(place: Place) -> None:
    m = T.dynamic("m")
    with pytest.raises(ArgumentError, match="dimension 'm' is symbolic, and nothing says its size: give tensors"):
        place.scaled(n=m).run()
    A = torch.randn(128, device=place.device)
    with set_autotune_inputs(A):
        found = place.scaled(n=m, ref_prog=doubled).run()
    for n in (32, 320):
        A = torch.randn(n, device=place.device)
        close(found.kernel(A), A * 2)


# ---- Correctness checking and tolerances


def test_checks_and_inputs_are_those_of_a_workload() -> None:
    tolerances = {"rtol": 1e-4, "atol": 1e-6, "max_mismatched_ratio": 0.5}
    for supply in tilelang.TensorSupplyType:
        made = Place("c").scaled(ref_prog=doubled, manual_check_prog=close, supply_type=supply, **tolerances)
        assert workload_of(made).supply == supply.name.lower()
    work = workload_of(made)
    assert {name: getattr(work, name) for name in tolerances} == tolerances
    assert (work.reference.func, work.check.func, work.inputs) == (doubled, close, None)  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="manual_check_prog gets the outputs alone without ref_prog: let it take"):
        workload_of(Place("c").scaled(manual_check_prog=close))
    alone = workload_of(Place("c").scaled(manual_check_prog=doubled))
    assert (alone.reference, alone.check.func, alone.rtol) == (None, doubled, 1e-2)  # type: ignore[union-attr]
    assert alone.max_mismatched_ratio == 0.01


@pytest.mark.parametrize("step", ["set_profile_args", "run"])
def test_a_block_around_either_step_gives_its_tensors(step: str) -> None:
    block, A = {step: set_autotune_inputs(torch.ones(64))}, torch.ones(64)
    made = AutoTuner.from_kernel(scaled, [{"block": 16}]).set_compile_args(out_idx=[-1], target="c")
    made.set_kernel_parameters(((64,), {}), {})
    with block.get("set_profile_args", nullcontext()):
        made.set_profile_args(ref_prog=doubled)
    with block.get("run", nullcontext()):
        inputs: Any = workload_of(made).inputs
    assert inputs is not None and torch.equal(*inputs(), A)


def workload_of(tuner: AutoTuner) -> atune.Workload:
    return tuner.call_of(TilelangKernel(tuner.fn), {}).workload


# ---- Configuration spaces


def test_threads_may_be_a_tuple() -> None:
    configs = [{"block": 256, "threads": (64, 2)}, {"block": 256, "threads": (128, 1)}]
    tuner = AutoTuner(scaled, configs)
    tuner.set_kernel_parameters(((64,), {}), {})
    assert [c["threads"] for c in workload_of(tuner).space.points({}).walk()] == [(64, 2), (128, 1)]


# ---- Troubleshooting


@pytest.mark.parametrize("configs", [[], lambda **_: [], (c for c in ())], ids=["list", "callable", "generator"])
def test_no_configurations_to_tune(configs: Any) -> None:
    with pytest.raises(ValueError, match="No configurations to tune"):
        AutoTuner(scaled, configs).run()


def test_unused_keys_and_what_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="scaled takes no argument 'tile'; it takes n, factor, block"):
        AutoTuner(scaled, [{"tile": 1}]).run()
    for configs in ("block", {"block": 16}, [16]):
        with pytest.raises(ConfigError, match="configs: give "):
            AutoTuner(scaled, configs).run()


# ---- Weaknesses of tilelang's own tuner


def tuner(kernel: Any, configs: Any, **profile: Any) -> AutoTuner:
    """Return a drop-in tuner for the CPU, with few samples."""
    return Place("c").tuner(kernel, configs, **profile)


def test_a_candidate_that_is_stopped_early_has_true_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops it is compared with is timed the same way, and what is recorded is the median of real samples."""

    class OneTimer(CpuTimer):
        def samples(self, timed: Timed, n_warmup: int, n_repeat: int) -> list[float]:
            return [100.0] * n_repeat

    timed = Timed(lambda: None)
    monkeypatch.setattr(benchmark._device, "timer", OneTimer(), raising=False)
    # As fast as the best; twice as slow; as slow, where that is not slow enough; slower than a limit of one's own.
    for best_ms, factor, expected in ((0.1, None, 50), (0.05, None, 3), (0.05, 2.5, 50), (0.09, 1.05, 3)):
        settings = BenchmarkSettings(n_warmup=1, n_repeat=50, early_stop_factor=factor)
        samples = benchmark._samples(timed, settings, best_ms)
        assert len(samples) in (expected, expected + 3) and set(samples) == {100.0}
        assert benchmark._timing(samples, timed).latency_ms == pytest.approx(0.1)


def test_run_uses_what_set_profile_args_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BenchmarkSettings] = []

    async def tune(work: Any, **options: Any) -> Any:
        asked.append(options["benchmark"])
        raise NoWinner("enough", atune.results.Result.from_events(Stream().events))

    monkeypatch.setattr(cached, "tune_apart", tune)
    profiled = AutoTuner.from_kernel(picky, [{"block": 16}]).set_compile_args(out_idx=-1, target="c")
    profiled.set_profile_args(warmup=7, rep=11, timeout=13)
    for options in ({}, {"rep": 17}):
        with pytest.raises(TuningFailed):
            profiled.run(**options)
    with pytest.raises(TuningFailed):
        profiled.set_profile_args(rep=3).run()
    assert [(s.n_warmup, s.n_repeat, s.benchmark_timeout_s) for s in asked] == [(7, 11, 13), (7, 17, 13), (25, 3, 180)]


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


def test_no_file_appears_in_the_working_folder_and_errors_reach_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configs = [{"mode": "ok"}, {"mode": "refused"}, {"mode": "raise"}]
    found = tuner(moody, configs).run()
    assert os.listdir(tmp_path) == []
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
    wrong = tuner(scale, [{"factor": 3}], ref_prog=lambda a: a * 5)
    with pytest.raises(TuningFailed, match=r"1 gave wrong outputs: output 0: \d+ of 64 elements differ"):
        wrong.run()

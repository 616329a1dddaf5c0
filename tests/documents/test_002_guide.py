"""TileLang's autotuning guide, from its examples to its checks, point by point, with the guide's names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from contract_kernels import moody
from drop_in_tuners import BLOCKS, Place, close, cpu_tuner, lazy, planned, workload_of
from guide_kernels import doubled, picky, product, product_of, scaled, tiles, typed
from tilelang.autotuner import param, tuner

import atune
import atune.compat.tilelang as compat
from atune.compat.tilelang import ArgumentError, AutoTuner, AutotuneResult, autotune, set_autotune_inputs
from atune.engine.prior import exceeded_limit
from atune.frontends.cli.main import main
from atune.journal.events import ArtifactBuilt, CandidateLowered
from atune.journal.reader import read
from atune.model.artifact import StaticFacts
from atune.model.device import DeviceLimits

pytestmark = pytest.mark.timeout(170)
WRONG = [{"factor": 2}, {"factor": 3}]
"""Configurations of `scaled`: the second computes something other than `doubled`."""


@pytest.fixture(scope="module", params=["c", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


@pytest.fixture(scope="module")
def guide(place: Place, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The guide's program, both ways and in its order. For the CPU target, it is smaller and runs on the CPU."""
    M = N = K = 1024 if place.target == "cuda" else 64
    matmul = place.decorated(product, tiles, warmup=25, rep=100, timeout=60)
    A, B, C = place.matrix(M), place.matrix(M), torch.empty(M, N, dtype=torch.float32, device=place.device)
    with set_autotune_inputs(A, B, C):
        tuned_kernel = matmul(M, N, K, **place.problem)
    tuned_kernel(A, B, C)

    tuner = AutoTuner.from_kernel(matmul(M, N, K, **place.problem), configs=[*tiles(M, N, K, **place.problem)])
    tuner.set_profile_args(
        warmup=25,
        rep=100,
        timeout=60,
        supply_type=tilelang.TensorSupplyType.Auto,
        ref_prog=lambda A, B, C: torch.allclose(C, (A @ B).to(C.dtype), rtol=1e-2, atol=1e-2),
    )
    tuner.set_compile_args(target=place.target, execution_backend="auto", out_idx=[-1], pass_configs={})
    artifact = tuner.run()
    save_dir = tmp_path_factory.mktemp("best") / "matmul"
    artifact.save_to_disk(save_dir, verbose=True)
    return SimpleNamespace(**locals())


@pytest.fixture(scope="module")
def hung() -> AutotuneResult:
    """Tune a kernel that never ends, outside the main thread, because only the main thread gets signals."""
    made = cpu_tuner(moody, [{"mode": "ok"}, {"mode": "loop"}], timeout=1, skip_check=True)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(made.run).result()


# ---- The two ways


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (autotune, tuner.autotune),
        (AutoTuner.set_compile_args, tuner.AutoTuner.set_compile_args),
        (AutoTuner.set_profile_args, tuner.AutoTuner.set_profile_args),
        (AutoTuner.run, tuner.AutoTuner.run),
        (AutotuneResult.save_to_disk, param.AutotuneResult.save_to_disk),
        (AutotuneResult.load_from_disk, param.AutotuneResult.load_from_disk),
    ],
    ids=lambda function: function.__qualname__,
)
def test_b1_functions_take_what_tilelangs_take_in_their_order(ours: Any, theirs: Any) -> None:
    """The arguments of both interfaces have TileLang's order and defaults. With None, the engine decides."""
    mine, others = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    assert [*mine][: len(others)] == [*others]
    for name, parameter in others.items():
        other = name == "supply_type" or (theirs, name) == (tuner.AutoTuner.set_profile_args, "timeout")
        assert mine[name].default in (None, parameter.default) or other, name
        assert mine[name].kind in (parameter.kind, parameter.POSITIONAL_OR_KEYWORD), name


def test_b2_the_decorated_function_returns_the_best_kernel(guide: SimpleNamespace) -> None:
    """Calling a function under `autotune` and `tilelang.jit` tunes it and returns the best kernel."""
    kernel = guide.tuned_kernel
    assert isinstance(kernel, tilelang.JITKernel) and kernel.latency > 0
    close(kernel(guide.A, guide.B), product_of(guide.A, guide.B))


def test_b3_configs_may_be_generated_once_and_serve_every_problem() -> None:
    """Configurations come from a list, a generator or a function; a kernel's arguments may be any objects."""

    def kernel(policy: Any, n: int = 64, block: int = 16) -> Any:
        return scaled(n, 2.0 if policy is T.GemmWarpPolicy.Square else 3.0, block)

    tuned = lazy((config for config in BLOCKS), kernel)
    A = torch.randn(64)
    twice, thrice = tuned(T.GemmWarpPolicy.Square), tuned(T.GemmWarpPolicy.FullRow)
    assert torch.equal(twice(A), A * 2) and torch.equal(thrice(A), A * 3)
    assert tuned(policy=T.GemmWarpPolicy.Square) is twice


def test_b4_a_function_of_configs_gets_the_call() -> None:
    """A function that returns configurations gets the call's arguments as written. Repeated calls tune nothing."""
    asked: list[Any] = []
    kernel = lazy(lambda *args, **kwargs: asked.append((args, kwargs)) or BLOCKS)
    first = kernel(64, factor=2.0)
    assert kernel(64, 2.0) is kernel(64, factor=2.0) is first
    assert asked == [((64,), {"factor": 2.0}), ((64, 2.0), {})]
    with pytest.raises(ArgumentError, match="cannot be called like that: too many positional arguments"):
        kernel(64, 2.0, 16, None, "too many")


def test_b5_every_configuration_is_tried(guide: SimpleNamespace) -> None:
    """Each configuration of the guide's space is compiled, checked and measured, unless it duplicates another."""
    tuning = guide.artifact.tuning
    assert tuning.total == len(guide.tuner.configs) == tuning.measured + tuning.duplicates
    assert all(one.checked for one in tuning.measurements)


def test_b6_without_a_gpu_the_guides_kernel_says_so() -> None:
    """A kernel written for CUDA fails on the CPU, with an error that says how to compile it without a GPU."""
    configs = [*tiles(64, 64, 64, gpu=True)][:2]
    made = Place("c").tuner(product, configs, arguments={"M": 64, "N": 64, "K": 64, "gpu": True})
    with pytest.raises(compat.TuningFailed, match=r"2 failed to lower(.|\n)*written for CUDA(.|\n)*--compile-only"):
        made.run()


def test_b7_keys_of_a_configuration_are_arguments_of_the_kernel() -> None:
    """If a configuration names something that the kernel does not take, the error lists the kernel's arguments."""
    with pytest.raises(compat.ConfigError, match="scaled takes no argument 'tile'; it takes n, factor, block"):
        AutoTuner(scaled, [{"tile": 1}]).run()
    for configs in ("block", {"block": 16}, [16]):
        with pytest.raises(compat.ConfigError, match="configs: give "):
            AutoTuner(scaled, configs).run()


def test_b8_the_best_kernel_writes_into_the_output_that_it_is_given(guide: SimpleNamespace) -> None:
    """The best kernel writes into outputs that you pass, even if `out_idx` names them."""
    close(guide.C, product_of(guide.A, guide.B))


def test_b9_each_argument_tuple_is_tuned_once() -> None:
    """A program tunes once for each tuple of arguments, and keeps the kernels under TileLang's keys."""
    kernel = lazy()
    assert isinstance(kernel._tuner_cache, Mapping) and len(kernel._tuner_cache) == 0
    assert kernel(64) is kernel(n=64) is kernel(64, factor=2.0)
    assert list(kernel._tuner_cache) == [((64,), ()), ((), (("n", 64),)), ((64,), (("factor", 2.0),))]
    assert kernel(128) is not kernel(64) and len(kernel.results) == 2
    left_out = lazy(do_not_specialize="factor")
    left_out(64, factor=3.0)
    assert list(left_out._tuner_cache) == [((), (("block", 16), ("n", 64), ("threads", None)))]


@pytest.mark.parametrize("step", ["set_profile_args", "run"])
def test_b10_a_block_around_either_step_gives_its_tensors(step: str) -> None:
    """`set_autotune_inputs` gives the tensors to tune on. Without tensors, `supply_type` says how inputs are drawn."""
    block, A = {step: set_autotune_inputs(torch.ones(64))}, torch.ones(64)
    made = AutoTuner.from_kernel(scaled, [{"block": 16}]).set_compile_args(out_idx=[-1], target="c")
    made.set_kernel_parameters(((64,), {}), {})
    with block.get("set_profile_args", nullcontext()):
        made.set_profile_args(ref_prog=doubled)
    with block.get("run", nullcontext()):
        inputs: Any = workload_of(made).inputs
    assert inputs is not None and torch.equal(*inputs(), A)
    assert workload_of(cpu_tuner()).inputs is None and workload_of(cpu_tuner()).supply == "auto"


def test_b11_the_programmatic_path_runs_as_it_stands(guide: SimpleNamespace) -> None:
    """`AutoTuner.from_kernel` takes the result of a decorated function, and tunes the problem of this function."""
    assert guide.artifact.tuning.header.arguments["M"] == guide.M
    close(guide.artifact.kernel(guide.A, guide.B), product_of(guide.A, guide.B))


def test_b12_the_result_has_kernel_latency_and_configuration(guide: SimpleNamespace) -> None:
    """A result has the best kernel, its latency in milliseconds, and its configuration as you gave it."""
    found = guide.artifact
    assert isinstance(found.kernel, tilelang.JITKernel) and found.config in guide.tuner.configs
    assert found.latency == found.kernel.latency == found.tuning.latency_ms > 0


# ---- Inputs


def test_b13_who_gives_the_tensors_comes_in_the_guides_order() -> None:
    """`set_autotune_inputs` overrides `supply_prog`, which overrides `supply_type`. A warning names unused sources."""
    given, supplied = torch.zeros(64), torch.ones(64)
    made = cpu_tuner(supply_prog=lambda params: [supplied], supply_type="zero")
    with pytest.warns(compat.CompatWarning, match="^supply_type: has no effect together with supply_prog$"):
        found = made.run()
    assert found.warnings == found.tuning.warnings == ("supply_type: has no effect together with supply_prog",)
    with set_autotune_inputs(given), pytest.warns(compat.CompatWarning):
        assert torch.equal(*workload_of(made).inputs(), given)  # type: ignore[operator,misc]


def test_b14_a_supply_program_gets_dtypes_and_shapes(place: Place, tmp_path: Path) -> None:
    """`supply_prog` gets the parameters' dtypes and shapes, and returns the tensors for every candidate."""
    log = tmp_path / "log"

    def supply(params: list[Any]) -> list[torch.Tensor]:
        with open(log, "a") as file:
            file.write(f"{[(str(p.dtype), tuple(p.shape)) for p in params]}\n")
        return [torch.ones(*p.shape) for p in params]

    found = place.scaled(supply_prog=supply, ref_prog=doubled, n=192).run()
    assert log.read_text() == "[('float32', (192,))]\n" and found.tuning.failed == 0
    A = torch.ones(192, device=place.device)
    with set_autotune_inputs([A]), pytest.warns(compat.CompatWarning, match="supply_prog: is not called inside"):
        place.scaled(supply_prog=supply, ref_prog=doubled, n=192).run()
    assert len(log.read_text().splitlines()) == 1


def test_b15_supply_types_have_tilelangs_names() -> None:
    """Inputs can be drawn by each of TileLang's supply types, of which `Auto` is the default."""
    for supply in tilelang.TensorSupplyType:
        assert workload_of(cpu_tuner(supply_type=supply)).supply == supply.name.lower()


def test_b16_drawing_needs_static_shapes(place: Place) -> None:
    """If a dimension is symbolic and tensors are missing, the error says how to give them."""
    with pytest.raises(ArgumentError, match=r"dimension 'm' is symbolic.*: give tensors and scalars with `with"):
        place.scaled(n=T.dynamic("m")).run()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "bfloat16"])
def test_b17_dtypes_that_only_some_devices_have(dtype: str) -> None:
    """Inputs can be drawn for float8 dtypes."""
    Place("cuda").tuner(typed, [{"block": 16}], arguments={"dtype": dtype, "threads": 16}).run()


# ---- Checks


def test_b18_each_configuration_is_checked() -> None:
    """The outputs of each configuration are checked. If all configurations fail, the error counts the reasons."""
    made = cpu_tuner(picky, [{"block": 12}, {"block": 24}, {"block": 48}])
    with pytest.raises(RuntimeError, match="no candidate worked") as caught:
        made.run()
    message = str(caught.value)
    assert isinstance(caught.value, atune.NoWinner) and len(caught.value.result.failures) == 3
    assert "3 failed to lower, for example: ValueError: block 12 is no power of two" in message
    wrong = cpu_tuner(configs=[{"factor": 3}], ref_prog=lambda a: a * 5)
    with pytest.raises(compat.TuningFailed, match=r"1 gave wrong outputs: output 0: \d+ of 64 elements differ"):
        wrong.run()


def test_b19_a_reference_gets_the_inputs_that_candidates_get() -> None:
    """`ref_prog` gets the candidates' inputs and is timed; the candidates' outputs are compared with its outputs."""

    def reference(A: torch.Tensor) -> torch.Tensor:
        assert bool((A == 3).all())
        return A * 2

    threes = [torch.full((64,), 3.0, dtype=torch.float32, device="cpu")]
    found = cpu_tuner(configs=WRONG, supply_prog=lambda params: threes, ref_prog=reference).run()
    assert found.config == {"factor": 2} and found.ref_latency == found.kernel.ref_latency > 0


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (lambda A, B: torch.equal(B, A * 2), "ref_prog returned a false value"),
        (lambda A, B: torch.testing.assert_close(B, A * 2), "ref_prog says: Tensor-likes are not close"),
    ],
)
def test_b20_a_reference_may_judge(reference: Any, why: str) -> None:
    """A `ref_prog` that takes every parameter may judge: it returns True or False, or raises an error."""
    found = cpu_tuner(configs=WRONG, ref_prog=reference).run()
    [failure] = found.tuning.failures
    assert found.config == {"factor": 2} and failure.kind == "mismatch" and failure.message.startswith(why)
    assert found.ref_latency is None, "a judge is not timed"
    with pytest.raises(
        ArgumentError, match=r"ref_prog returned a bool, but .*. If the function judges outputs, let it take"
    ):
        cpu_tuner(configs=WRONG, ref_prog=lambda A: True).run()


def test_b21_a_manual_check_is_called_with_the_outputs() -> None:
    """A `manual_check_prog` judges the outputs alone, and refuses them by returning False or by raising an error."""

    def check(outputs: list[torch.Tensor]) -> None:
        if outputs[0].max() > 2:
            raise ValueError("too large")

    ones = [torch.ones(64, dtype=torch.float32, device="cpu")]
    found = cpu_tuner(configs=WRONG, supply_prog=lambda params: ones, manual_check_prog=check).run()
    assert found.config == {"factor": 2}
    assert [one.message for one in found.tuning.failures] == ["manual_check_prog raised ValueError: too large"]
    with pytest.raises(ArgumentError, match="without ref_prog, manual_check_prog gets only the outputs: let it take"):
        workload_of(cpu_tuner(manual_check_prog=close))


def test_b22_checks_can_be_skipped() -> None:
    """`skip_check=True` turns off the check of outputs."""
    found = cpu_tuner(configs=WRONG, ref_prog=doubled, skip_check=True).run()
    assert found.tuning.measured == 2 and not any(one.checked for one in found.tuning.measurements)


def test_b23_tolerances_are_the_guides() -> None:
    """By default `rtol` and `atol` are 1e-2, and 1 % of the elements may differ."""
    names, given = ("rtol", "atol", "max_mismatched_ratio"), (1e-4, 1e-6, 0.5)
    for values, options in (((1e-2, 1e-2, 0.01), {}), (given, dict(zip(names, given, strict=True)))):
        work = workload_of(cpu_tuner(ref_prog=doubled, manual_check_prog=close, **options))
        assert tuple(getattr(work, name) for name in names) == values
        assert (work.reference.func, work.check.func) == (doubled, close)  # type: ignore[union-attr]


# ---- Spaces, compiling and time limits


def test_b24_threads_may_be_a_tuple() -> None:
    """Tile sizes, stages and threads can be tuned, even if the value for the threads is a tuple."""
    configs = [{"block": 256, "threads": (64, 2)}, {"block": 256, "threads": (128, 1)}]
    assert [*workload_of(cpu_tuner(configs=configs)).space.points({}).walk()] == configs


def test_b25_dtypes_may_be_tuned() -> None:
    """A configuration may set a dtype; each candidate then gets its own inputs."""
    found = cpu_tuner(typed, [{"dtype": dtype} for dtype in ("float32", "int32", "int8")], ref_prog=torch.clone).run()
    assert found.tuning.measured == 3


def test_b26_what_exceeds_the_device_is_not_compiled() -> None:
    """Configurations that exceed the device's shared memory or threads are not compiled."""
    limits = DeviceLimits(smem_bytes=1000, threads=1024)
    over = exceeded_limit(StaticFacts(smem_bytes=1001), limits)
    assert over == "shared memory: 1001 bytes per block, but the device has 1000"
    assert exceeded_limit(StaticFacts(threads=1025), limits) == "threads: 1025 per block, but the device allows 1024"
    assert exceeded_limit(StaticFacts(smem_bytes=1000, threads=1024), limits) == ""


def test_b27_the_best_configuration_can_be_read_again(guide: SimpleNamespace, capsys: Any) -> None:
    """`atune show` prints the best configuration of a journal, which you can use as the new default."""
    assert main(["show", guide.artifact.tuning.journal, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"].items() >= guide.artifact.config.items()


def test_b28_workers_compile(guide: SimpleNamespace) -> None:
    """Worker processes, not your program, lower and compile the candidates. A library holds several candidates."""
    events = read(guide.artifact.tuning.journal)
    lowered = {event.worker for event in events if isinstance(event, CandidateLowered)}
    assert lowered and not {name for name in lowered if not name.startswith("compile")}
    assert any(isinstance(event, ArtifactBuilt) for event in events)


def test_b29_the_current_device_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are measured on the program's current device."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    assert planned().devices == ("1",)


def test_b30_a_kernel_that_never_ends_fails_alone(hung: AutotuneResult) -> None:
    """A configuration that runs past `timeout` fails, and its error names the limit. Other configurations go on."""
    [failure] = hung.tuning.failures  # type: ignore[union-attr]
    assert (failure.config, failure.kind, hung.config) == ({"mode": "loop"}, "timeout", {"mode": "ok"})
    assert failure.message.startswith("ran past benchmark_timeout_s=1")


def test_b31_deadlines_need_no_signals(hung: AutotuneResult) -> None:
    """Deadlines hold in every thread of your program, and not only in the main thread, because they need no signals."""
    assert hung.tuning.finished and hung.tuning.failed == 1  # type: ignore[union-attr]

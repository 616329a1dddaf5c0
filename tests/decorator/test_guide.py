"""tilelang's autotuning guide, section by section: an example of our own for each, under tilelang's names.

On the CPU target, and the same on a GPU. Where the guide does not say what tilelang 0.1.15 does,
it is made true here if it can be, and a test below says so.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from guide_kernels import (
    doubled,
    product,
    product_of,
    scaled,
    tiles,
    typed,
)

import atune
from atune.compat.tilelang import (
    ArgumentError,
    AutoTuner,
    CompatWarning,
    ConfigError,
    autotune,
    set_autotune_inputs,
)
from atune.compat.tilelang.arguments import RunArgs
from atune.compat.tilelang.inputs import TilelangKernel

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
        made.set_kernel_parameters(((), {} if arguments is None else arguments))
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


def test_decorator_takes_a_list_of_configurations_and_tunables_given_in_the_call_are_not_tuned(place: Place) -> None:
    matmul = place.decorated(product, place.tiles, ref_prog=product_of)
    assert matmul(SIZE, SIZE, SIZE, **place.problem).ref_latency > 0
    with pytest.warns(CompatWarning, match="nothing is tuned"):
        fixed = matmul(SIZE, SIZE, SIZE, block_M=32, block_N=64, block_K=32, **place.problem)
    assert fixed.latency is None and fixed.config == {"block_M": 32, "block_N": 64}
    A, B = place.matrix(), place.matrix()
    close(fixed(A, B), product_of(A, B))


# ---- 2) Programmatic autotune


def test_from_kernel_refuses_a_kernel_that_is_compiled_already() -> None:
    kernel = Place("c").decorated(scaled, [{"block": 16}])(64)
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
    with pytest.warns(CompatWarning, match="manual_check_prog: is not called without ref_prog"):
        alone = workload_of(Place("c").scaled(manual_check_prog=close))
    assert (alone.reference, alone.check, alone.rtol, alone.max_mismatched_ratio) == (None, None, 1e-2, 0.01)


def test_a_check_of_the_outputs_alone_needs_no_reference(place: Place) -> None:
    def wrong(outputs: list[torch.Tensor]) -> None:
        assert not bool((outputs[0] == 2).all()), "all are doubled"

    with set_autotune_inputs(torch.ones(256, device=place.device)):
        right = place.scaled(manual_check_prog=lambda outputs: bool((outputs[0] == 2).all())).run()
        with pytest.raises(RuntimeError, match=r"2 gave wrong outputs: .*all are doubled"):
            place.scaled(manual_check_prog=wrong).run()
    assert right.tuning.failed == 0


def workload_of(tuner: AutoTuner) -> atune.Workload:
    return tuner.call_of(TilelangKernel(tuner.fn), RunArgs()).workload


# ---- Configuration spaces


def test_threads_may_be_a_tuple() -> None:
    configs = [{"block": 256, "threads": (64, 2)}, {"block": 256, "threads": (128, 1)}]
    tuner = AutoTuner(scaled, configs)
    tuner.set_kernel_parameters(((64,), {}))
    assert [c["threads"] for c in workload_of(tuner).space.walk({})] == [(64, 2), (128, 1)]
    if shutil.which("nvcc") is None:
        pytest.skip(reason="nvcc is not installed")
    kernels = atune.compile_all(scaled, configs, arguments={"n": 1024}, target="sm_90a")
    assert [kernel.config["threads"] for kernel in kernels] == [(64, 2), (128, 1)]


def test_values_that_are_no_data_may_be_configurations_and_come_back_as_they_were() -> None:
    policies = [{"policy": policy} for policy in (T.GemmWarpPolicy.Square, T.GemmWarpPolicy.FullRow)]

    def kernel(policy: Any) -> Any:
        assert isinstance(policy, T.GemmWarpPolicy)
        return scaled(64, 2.0, 16 if policy is T.GemmWarpPolicy.Square else 32)

    found = Place("c").tuner(kernel, policies, ref_prog=doubled).run()
    assert found.config in policies and isinstance(found.config["policy"], T.GemmWarpPolicy)
    assert found.tuning.measured == 2


# ---- Device and backend selection


def test_targets_and_backends() -> None:
    tuner = AutoTuner(scaled, [{"block": 16}])
    for target in ("hip", "metal"):
        with pytest.raises(ArgumentError, match=f"target '{target}' is not supported"):
            tuner.set_compile_args(target=target)
    with pytest.raises(ArgumentError, match="execution_backend must be one of auto, cython for target c, got 'nvrtc'"):
        tuner.set_compile_args(target="c", execution_backend="nvrtc")
    with_passes = Place("c").scaled([{"block": 16}, {"block": 16, "pass_configs": {"tirx.disable_vectorize": True}}])
    assert with_passes.run().tuning.total == 2


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


# ---- where the guide is wrong: what tilelang itself does


def test_what_the_guide_says_and_tilelang_does_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs without a GPU. When tilelang changes, so must the places below that make it true."""
    monkeypatch.chdir(tmp_path)  # its tuner writes a log here
    from tilelang.autotuner import AutoTuner as Theirs
    from tilelang.autotuner import param

    cpu = {"target": "c", "execution_backend": "cython"}
    kernel = tilelang.compile(scaled(SIZE), out_idx=[-1], **cpu)
    A, B = torch.randn(SIZE), torch.empty(SIZE)
    with pytest.raises(ValueError, match="Expected 2 inputs, got 3"):
        kernel(A, B)
    jit = tilelang.jit(out_idx=[-1], **cpu)(product)
    for given in (kernel, jit):
        with pytest.raises(AttributeError, match="no attribute '__closure__'"):
            Theirs.from_kernel(given, [{"block": 16}]).run()
    with pytest.raises(TypeError, match="missing a required argument: 'M'"):
        jit.par_compile([{"block_M": 16}])
    theirs = Theirs(scaled, lambda n: ({"block": b} for b in (16, 32))).set_compile_args(**cpu)
    theirs.set_kernel_parameters(((SIZE,), ()), {})
    with pytest.raises(TypeError, match="generator is not JSON serializable"):
        theirs.run()
    with pytest.raises(ValueError, match="Invalid execution backend 'ctypes'"):
        tilelang.compile(scaled(SIZE), target="c", execution_backend="ctypes")
    folder = tmp_path / "cache" / "saved"
    param.AutotuneResult(0.5, {}, None, "", kernel.prim_func, kernel).save_to_disk(folder)
    assert (folder / "out_idx.json").read_text() == '{"out_idx": null}' and (folder / param.PARAMS_PATH).exists()
    with pytest.raises(ValueError, match="Expected 2 inputs, got 1"):
        param.AutotuneResult.load_from_disk(folder, param.CompileArgs(**cpu)).kernel(A)

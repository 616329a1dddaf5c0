"""The drop-in for tilelang's autotuner: its names and parameters, its warnings, its files on disk, its decorator."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tilelang
import tilelang.language as T
import torch
from drop_in_tuners import BLOCKS, ON_CPU, Place, cpu_tuner, key, lazy, planned, saved_by_tilelang
from guide_kernels import doubled, few_blocks, scaled
from programs import python
from tilelang.autotuner import param, tuner

import atune
import atune.compat.tilelang as compat
from atune.compat.tilelang import (
    ArgumentError,
    AutoTuner,
    AutotuneResult,
    CompatWarning,
    CompileArgs,
    TuningFailed,
    autotune,
    set_autotune_inputs,
)
from atune.errors import WorkloadError
from atune.frontends import winners
from atune.model.device import Target
from atune.model.folders import artifacts_folder
from atune.model.settings import BenchmarkSettings, Budget
from atune.stages import benchmark
from atune.stages.jit_kernel import jit_kernel
from atune.stages.tilelang import REPLACED
from atune.stages.timer import CpuTimer, DeviceStream, Timed
from atune.workers.result_key import result_key
from atune.workers.workers import process_folders

pytestmark = pytest.mark.timeout(170)


# ---- names and parameters


def test_a_keyword_of_our_own_has_the_prior_choose() -> None:
    assert planned(tuning="pick").on_miss == "pick" and planned().on_miss == planned(tuning=None).on_miss == "tune"
    assert planned(tuning="quick").budget == Budget(auto=True) and planned(tuning="quick").on_miss == "tune"
    picking = autotune(configs=BLOCKS, tuning="pick")(tilelang.jit(target="c")(scaled))
    assert picking.call_of((64,), {}).options.on_miss == "pick"
    for call in (AutoTuner(scaled, BLOCKS).run, lambda **given: autotune(configs=BLOCKS, **given)):
        with pytest.raises(ArgumentError, match="tuning must be 'pick' or 'quick', or None to tune all, got 'slow'"):
            call(tuning="slow")


# ---- what means something else here


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"manual_check_prog": doubled, "skip_check": True}, "manual_check_prog: has no effect with skip_check=True"),
        ({"target": "c", "benchmark_multi_gpu": True}, "benchmark_multi_gpu: has no effect for target c"),
        ({"backend": "cupti"}, "backend='cupti': kernels are timed by CUDA events"),
    ],
)
def test_what_has_no_meaning_here_warns_once_and_says_what_happens(
    given: dict[str, Any], message: str, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.warns(CompatWarning, match=message):
        first = planned(**given)
    recwarn.clear()
    assert planned(**given) == first
    assert not [w for w in recwarn if issubclass(w.category, CompatWarning)]


def test_what_only_the_run_can_find_is_a_value_error_too() -> None:
    with pytest.raises(ArgumentError, match="out_idx 9: the kernel has 2 parameters"):
        cpu_tuner().set_compile_args(out_idx=[9], target="c").run()
    with pytest.raises(ArgumentError, match="configs: the function must take the call's arguments: too many"):
        cpu_tuner(configs=lambda: BLOCKS).run()


def test_mistakes_are_value_errors_too() -> None:
    for given in ({}, {"configs": BLOCKS}):
        with pytest.raises(ArgumentError, match=r"autotune needs its configs: write @autotune\(configs=...\)"):
            autotune(scaled, **given)
    with pytest.raises(ArgumentError, match=r"@autotune goes above @tilelang.jit, over a kernel function"):
        autotune(configs=BLOCKS)(scaled)


# ---- environment variables


def test_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELANG_COMPILE_TIMEOUT_SECONDS", "7")
    assert planned(target="c").compile.compile_timeout_s == 7
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    monkeypatch.setenv("TILELANG_EXECUTION_BACKEND", "tvm_ffi")
    monkeypatch.setenv("TILELANG_VERBOSE", "1")
    args = AutoTuner(scaled, BLOCKS).set_compile_args().compile_args
    assert (args.target, args.execution_backend, args.verbose) == ({"kind": "cuda", "arch": "sm_80"}, "tvm_ffi", True)


# ---- given inputs


@tilelang.jit(target="c", execution_backend="cython")
def add_scalar(n: int = 64, block: int = 16) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), s: T.float32, B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] + s

    return main


def test_a_scalar_without_a_value_is_a_value_error_that_says_how_to_give_one() -> None:
    kernel = autotune(configs=BLOCKS, warmup=1, rep=1)(add_scalar)
    with pytest.raises(
        ValueError, match=r"float32 scalar .* no default value: give tensors and scalars with `"
    ) as refused:
        kernel()
    assert isinstance(refused.value, WorkloadError)
    with set_autotune_inputs(torch.randn(64), 0.5, torch.empty(64)):
        found = kernel()
    A, B = torch.randn(64), torch.empty(64)
    found(A, 0.5, B)
    assert torch.equal(B, A + 0.5)


def test_of_given_inputs_integers_count_by_value_and_floats_by_shape() -> None:
    """Lengths, indices and masks decide what a kernel does; floats are often drawn anew in each program."""

    def key_of(*tensors: Any) -> str:
        with set_autotune_inputs(*tensors):
            return key()

    ones, lengths, mask = torch.ones(64), torch.tensor([3, 5]), torch.tensor([True, False])
    assert key_of(ones, lengths, mask) == key_of(torch.zeros(64), lengths.clone(), mask)
    others = [(torch.ones(32), lengths, mask), (ones, lengths.flip(0), mask), (ones, lengths, ~mask), (ones, 3, mask)]
    assert len({key_of(ones, lengths, mask), *(key_of(*other) for other in others)}) == 5
    assert key_of(torch.zeros(0, dtype=torch.int32)) != key_of(torch.zeros((), dtype=torch.int32))


def test_the_winner_is_the_same_in_a_list_of_another_order() -> None:
    def slow_and_fast(rows: Any) -> Any:
        return scaled(64 * (64 if rows is Ellipsis else 1))  # values that are no data

    configs = [{"rows": ...}, {"rows": 1}]
    first = cpu_tuner(slow_and_fast, configs, skip_check=True).run()
    again = cpu_tuner(slow_and_fast, configs[::-1], skip_check=True).run()
    assert first.config == again.config == {"rows": 1}


# ---- on disk


def test_code_of_another_user_is_loaded_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_by_tilelang(tmp_path / "saved")
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "saved").stat().st_uid + 1)
    with pytest.raises(ArgumentError, match="belongs to another user"):
        AutotuneResult.load_from_disk(tmp_path / "saved", ON_CPU)
    assert AutotuneResult.load_from_disk(tmp_path / "saved", ON_CPU, trusted=True) is not None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_cuda_winner_is_saved_out_of_the_library_that_it_shares(tmp_path: Path) -> None:
    """tilelang's loader would take such a library's first member. Compiled for sm_90a, and not run."""
    before = set(artifacts_folder().glob("*.so"))
    configs = [{"blocks": 1}, {"blocks": 4}, {"blocks": 1024}]
    arguments = {"n": 1 << 20, "factor": 2.0}
    settings = atune.CompileSettings(group_size=3)
    last = atune.compile_all(few_blocks, configs, arguments=arguments, target="sm_90a", compile=settings)[-1].artifact
    [library] = set(artifacts_folder().glob("*.so")) - before
    shared = msgspec.structs.replace(last, path=str(library))
    kernel = jit_kernel(few_blocks, arguments, configs[-1], target=Target("cuda", "sm_90a"), artifact=shared)
    assert last.symbol in kernel.get_kernel_source()
    AutotuneResult(0.1, configs[-1], None, "", kernel.prim_func, kernel).save_to_disk(tmp_path / "saved")
    assert b"atune_kernel_" in library.read_bytes()
    assert b"atune_kernel_" not in (tmp_path / "saved" / "executable.so").read_bytes()
    target = {"kind": "cuda", "arch": "sm_90a"}
    theirs = param.AutotuneResult.load_from_disk(tmp_path / "saved", param.CompileArgs(target=target))
    assert theirs.config == configs[-1] and isinstance(theirs.kernel, tilelang.JITKernel)
    again = AutotuneResult.load_from_disk(tmp_path / "saved", CompileArgs())
    assert again is not None and again.kernel.target.attrs["arch"] == "sm_90a"


def test_a_judge_that_takes_nan_for_right_is_told_so() -> None:
    def largest(A: torch.Tensor, B: torch.Tensor) -> None:
        if (worst := (B - A * 2).abs().max()) > 1e-3:  # which NaN is not
            raise ValueError(f"wrong by {worst}")

    with pytest.raises(TuningFailed, match="output 0 holds NaN, but ref_prog accepts it"):
        cpu_tuner(configs=[{"factor": math.nan}], ref_prog=largest).run()


def test_a_boolean_that_is_expected_is_no_verdict() -> None:
    def any_of(A: Any = None, block: int = 1) -> Any:
        @T.prim_func
        def main(A: T.Tensor((4,), "float32"), C: T.Tensor((1,), "bool")):
            with T.Kernel(1, threads=1):
                C[0] = A[0] > 9.0

        return main

    with pytest.raises(TuningFailed, match="the reference's is"):
        Place("c").tuner(any_of, [{"block": 1}], ref_prog=lambda A, C: (A > -9).any()).run()


def test_atune_asks_anew_where_the_drop_in_refused_the_default() -> None:
    """There the kernel's default, which no configuration lists, may not win; here it may."""
    made = cpu_tuner(configs=[{"block": 32}])
    header = made.run().tuning.header
    assert header.refused and result_key(header) != result_key(msgspec.structs.replace(header, refused=""))


# ---- the decorator


def test_the_decorator_s_arguments_are_attributes_as_there() -> None:
    kernel = lazy(ref_prog=doubled, timeout=50, early_stop_factor=3.0)
    theirs = {field.name for field in dataclasses.fields(tuner.AutoTuneImpl)}
    assert theirs >= {"warmup", "ref_prog"} and not {name for name in theirs if not hasattr(kernel, name)}
    assert (kernel.warmup, kernel.rep, kernel.timeout, kernel.rtol) == (1, 5, 50, 1e-2)
    assert (kernel.ref_prog, kernel.supply_prog, kernel.early_stop_factor) == (doubled, None, 3.0)
    kernel.rep = 7
    benchmark = kernel.call_of((64,), {}).options.plan.settings.benchmark
    assert (benchmark.n_repeat, benchmark.early_stop_factor) == (7, 3.0)
    kernel.rep = 0
    with pytest.raises(ArgumentError, match=r"^rep must be a whole number >= 1, got 0"):
        kernel(64)


def test_a_program_that_cannot_be_edited_gets_atune_by_install(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import tilelang, torch\n"
        "from guide_kernels import scaled\n"
        "from tilelang.autotuner import AutoTuner, autotune, set_autotune_inputs\n"
        "jit = tilelang.jit(scaled, out_idx=[-1], target='c', execution_backend='cython')\n"
        "scaled = tilelang.autotune(configs=[{'block': 16}, {'block': 32}], warmup=1, rep=5)(jit)\n"
        "A = torch.randn(64)\n"
        "with set_autotune_inputs(A):\n"
        "    kernel = scaled(64)\n"
        "assert torch.equal(kernel(A), A * 2) and kernel.latency > 0\n"
        "print(AutoTuner.__module__, kernel.config)\n"
    )
    code = "import runpy, atune.compat.tilelang as c; c.install(); runpy.run_path('program.py', run_name='__main__')"
    done = python("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("atune.compat.tilelang.autotuner {'block': ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["program.py"]  # and no autotuner.log


def test_uninstall_puts_everything_back() -> None:
    before = {(place, name): getattr(sys.modules[place], name) for place, name in everywhere()}
    compat.install()
    compat.install()  # twice does no harm
    try:
        for place, name in everywhere():
            assert getattr(sys.modules[place], name) is getattr(compat, name)
    finally:
        compat.uninstall()
    assert {(place, name): getattr(sys.modules[place], name) for place, name in everywhere()} == before


def everywhere() -> list[tuple[str, str]]:
    return [(place, name) for name, places in REPLACED.items() for place in places]


# ---- what tilelang's tuner lacks


def test_from_kernel_refuses_a_kernel_that_something_else_compiled() -> None:
    kernel = tilelang.compile(scaled(64), out_idx=[-1], target="c", execution_backend="cython")
    with pytest.raises(ArgumentError, match="got a compiled kernel: omit the call"):
        AutoTuner.from_kernel(kernel, configs=[{"block": 16}])


def test_a_candidate_that_is_stopped_early_has_true_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops it is compared with is timed the same way, and what is recorded is the median of real samples."""

    class OneTimer(CpuTimer):
        def samples(self, timed: Timed, n_warmup: int, n_repeat: int) -> list[float]:
            return [100.0] * n_repeat

    timed = Timed(lambda: None)
    monkeypatch.setattr(benchmark.device, "timer", OneTimer(DeviceStream("cpu")), raising=False)
    # As fast as the best; twice as slow; as slow, where that is not slow enough; slower than a limit of one's own.
    for best_ms, factor, expected in ((0.1, None, 50), (0.05, None, 3), (0.05, 2.5, 50), (0.09, 1.05, 3)):
        settings = BenchmarkSettings(n_warmup=1, n_repeat=50, early_stop_factor=factor)
        samples = benchmark._samples(timed, settings, best_ms)
        assert len(samples) in (expected, expected + 3) and set(samples) == {100.0}
        assert benchmark._timing(samples, timed).latency_ms == pytest.approx(0.1)


def test_workers_get_no_variable_that_tilelang_does_not_know(tmp_path: Path) -> None:
    given = {name for name in process_folders(str(tmp_path)) if name.startswith("TILELANG_")}
    assert given == {"TILELANG_CACHE_DIR"}


def test_a_host_target_reaches_the_candidates() -> None:
    def tuned(host: Any) -> Any:
        return cpu_tuner(n=64).set_compile_args(out_idx=[-1], target="c", target_host=host).run()

    assert tuned({"kind": "c"}).tuning.measured == 2
    with pytest.raises(ArgumentError, match="target_host must be a target such as 'c' or 'llvm', got 'no_such_host'"):
        tuned("no_such_host")


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


@pytest.mark.parametrize("target", ["c", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("out_idx", "given"), [(None, 3), (-1, 2)])
@pytest.mark.parametrize("starred", [False, True])
def test_functions_get_every_parameter_where_nobody_names_outputs(
    target: str, tmp_path: Path, out_idx: Any, given: int, starred: bool
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
    place = Place(target)
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


# ---- libraries that wrap the tuner: they give all tunables at the call, and name them in `do_not_specialize`


@pytest.mark.parametrize("names", [["block"], ("block",), "block", ["block", "factor"], ["block", "no parameter"]])
def test_tunables_that_do_not_specialize_are_tuned_whatever_is_given(names: Any) -> None:
    kernel = lazy(do_not_specialize=names)
    found = kernel(n=64, factor=2.0, block=8)
    assert found.config in BLOCKS and found.latency > 0
    for block in (16, 4, None, "text", object()):
        assert kernel(64, 2.0, block) is found and kernel.compile(n=64, factor=2.0, block=block) is found
    assert kernel(64) is found and len(kernel._tuner_cache) == 1
    assert kernel.tune(128, 2.0, 8).config in BLOCKS and len(kernel._tuner_cache) == 2
    A = torch.randn(64)
    assert torch.equal(found(A), A * 2)


@pytest.mark.filterwarnings("ignore:tunable parameters")
@pytest.mark.parametrize("options", [{}, {"do_not_specialize": ["n"]}, {"do_not_specialize": ["factor"]}])
def test_where_nothing_is_tuned_the_kernel_has_the_values_that_it_was_made_with(options: Any) -> None:
    configs = [{"block": 16, "factor": 2.0}, {"block": 32, "factor": 2.0}]
    kernel = lazy(configs, **options)
    found, A = kernel(64, block=8), torch.randn(64)
    assert (found.config, found.latency, found.ref_latency) == ({"factor": 2.0, "block": 8}, None, None)
    assert kernel.tune(64, block=8).config == found.config and torch.equal(found(A), A * 2)
    assert kernel(64, 3.0, 16).config == {"factor": 3.0, "block": 16} and found.config["block"] == 8


class Scaling:
    """A library's class whose kernels, inputs and expected outputs all come from `self`."""

    def __init__(self, n: int, factor: float) -> None:
        self.n, self.factor, self.weight = n, factor, torch.ones(3)
        self.kernels: list[Any] = []

    def kernel(self) -> Any:
        @tilelang.jit(out_idx=[-1], target="c")
        def kernel(block: int) -> Any:
            @T.prim_func
            def main(A: T.Tensor((self.n,), "float32"), B: T.Tensor((self.n,), "float32")):
                with T.Kernel(T.ceildiv(self.n, block)) as bx:
                    for i in T.serial(block):
                        B[bx * block + i] = A[bx * block + i] * self.factor

            return main

        self.kernels.append(kernel)
        return kernel

    def supply(self, params: Any) -> list[torch.Tensor]:
        return [torch.full((self.n,), float(i + 1)) for i, _ in enumerate(params)]

    def expected(self, A: torch.Tensor) -> torch.Tensor:
        assert A.unique().tolist() == [1.0]
        return A * self.factor

    def tuned(self) -> Any:
        progs = {"supply_prog": self.supply, "ref_prog": self.expected}
        return autotune(configs=BLOCKS, warmup=1, rep=5, do_not_specialize=["block"], **progs)(self.kernel())(block=8)


def test_kernels_made_in_methods_may_close_over_self(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another object of the library finds what was tuned."""
    A = torch.randn(64)
    for n, factor in ((64, 2.0), (32, 2.0), (64, 3.0)):
        kernel = Scaling(n, factor).tuned()
        assert kernel.config in BLOCKS and kernel.latency > 0 and kernel.ref_latency > 0
        assert torch.equal(kernel(A[:n]), A[:n] * factor)
    monkeypatch.setattr(winners, "tune_work", None)  # as in another program, where nothing is tuned
    again = Scaling(64, 3.0).tuned()
    assert again.config == kernel.config and torch.equal(again(A), A * 3.0)

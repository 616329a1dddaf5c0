"""The drop-in for tilelang's autotuner: its names and parameters, its warnings, its files on disk, its decorator."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tilelang
import tilelang.language as T
import torch
from drop_in_tuners import BLOCKS, cpu_tuner, lazy
from guide_kernels import doubled, few_blocks, scaled
from tilelang.autotuner import param, tuner

import atune
import atune.compat.tilelang as compat
from atune.compat.tilelang import (
    ArgumentError,
    AutoTuner,
    AutotuneResult,
    CompatWarning,
    CompileArgs,
    ProfileArgs,
    autotune,
    environment,
)
from atune.compat.tilelang.environment import plan
from atune.model.device import Target
from atune.model.folders import artifacts_folder
from atune.model.settings import Budget
from atune.stages.frontend.jit_kernel import jit_kernel
from atune.workers.system.resources import usable_cores

pytestmark = pytest.mark.timeout(170)
ON_CPU = CompileArgs(target="c", execution_backend="cython")


def planned(**given: Any) -> Any:
    """Return what these of tilelang's arguments mean; for an H100, unless they say otherwise."""
    records: list[Any] = []
    for record, defaults in ((CompileArgs, {"target": "sm_90a"}), (ProfileArgs, {})):
        own = {field.name for field in dataclasses.fields(record)} & given.keys()
        records.append(record(**{**defaults, **{name: given.pop(name) for name in own}}))
    found = plan(*records, given)
    return SimpleNamespace(**found.pop("run"), **found)


# ---- names and parameters


def names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


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
def test_functions_take_what_tilelangs_take_in_their_order(ours: Any, theirs: Any) -> None:
    """With the same defaults, or None, where the engine decides."""
    assert names(ours)[: len(names(theirs))] == names(theirs)
    mine = inspect.signature(ours).parameters
    for name, parameter in inspect.signature(theirs).parameters.items():
        other = name == "supply_type" or (theirs, name) == (tuner.AutoTuner.set_profile_args, "timeout")
        assert mine[name].default in (None, parameter.default) or other, name
        assert mine[name].kind in (parameter.kind, parameter.POSITIONAL_OR_KEYWORD), name


@pytest.mark.parametrize(
    ("target", "seen", "given"), [("auto", [], "auto"), (None, [], "auto"), ("auto", ["a GPU"], "c"), ("c", [], "c")]
)
def test_the_engine_says_that_there_is_no_gpu(
    target: Any, seen: list[str], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where it is asked for ``auto``. A GPU that tilelang cannot use stays unused."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(environment, "visible_gpus", lambda: seen)
    assert planned(target=target).target == given


def test_arguments_by_position_go_where_the_signature_says() -> None:
    """tilelang's `set_profile_args` has `backend` last, and its `ProfileArgs` fourth."""
    in_order = [1, 2, 3.0, "normal", doubled, None, 0.1, 0.2, 0.3, True, None, False, "cupti"]
    given = dict(zip(names(AutoTuner.set_profile_args)[1:], in_order, strict=True))
    made = AutoTuner(scaled, BLOCKS).set_profile_args(*in_order)
    assert vars(made.profile_args) == given and made.profile_args == ProfileArgs(**given)
    assert ProfileArgs(1, 2, 3, "cupti").backend == "cupti"


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
        ({"execution_backend": "nvrtc"}, "'nvrtc': counts for as_tilelang.*: tvm_ffi builds and calls"),
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


def test_what_means_the_same_warns_of_nothing() -> None:
    asked = planned(
        target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="tvm_ffi", warmup=10, rep=20, timeout=30,
        use_pipeline=True, enable_grouped_compile=True, group_compile_size=4, benchmark_devices=[0, 1],
        benchmark_multi_gpu=True, early_stop=True, early_stop_factor=2.0,
    )  # fmt: skip
    benchmark = asked.benchmark
    assert (benchmark.n_warmup, benchmark.n_repeat, benchmark.benchmark_timeout_s) == (10, 20, 30)
    assert asked.pipeline and benchmark.adaptive and asked.compile.group_size == 4
    assert benchmark.early_stop_factor == 2.0
    assert asked.target == "sm_90a" and asked.devices == ("0", "1")
    off = planned(target="c", cache_input_tensors=False, early_stop=False, use_pipeline=False, timeout=0)
    assert not off.benchmark.adaptive and not off.benchmark.cache_inputs and not off.pipeline
    assert off.benchmark.benchmark_timeout_s > 86400
    assert planned(enable_grouped_compile=False).compile.group_size == 1


@pytest.mark.parametrize("target", ["c", "sm_90a"])
@pytest.mark.parametrize("backend", ["torch", "dlpack", "cutedsl"])
def test_an_adapter_that_the_target_lacks_is_refused_and_never_replaced(target: str, backend: str) -> None:
    with pytest.raises(
        ArgumentError, match=rf"^execution_backend must be one of auto, .* for target .*, got '{backend}'$"
    ):
        AutoTuner(scaled, BLOCKS).set_compile_args(target=target, execution_backend=backend)
    decorated = autotune(configs=BLOCKS)(tilelang.jit(target=target)(scaled))
    decorated.jit_impl.execution_backend = backend
    with pytest.raises(ArgumentError, match=f"got '{backend}'$"):
        decorated(64)


def test_what_only_the_run_can_find_is_a_value_error_too() -> None:
    with pytest.raises(ArgumentError, match="target 'hip' is not supported"):
        AutoTuner(scaled, BLOCKS).set_compile_args(target="hip")
    with pytest.raises(ArgumentError, match="out_idx 9: the kernel has 2 parameters"):
        cpu_tuner().set_compile_args(out_idx=[9], target="c").run()
    with pytest.raises(ArgumentError, match="configs: its function must take a call as it is written: too many"):
        cpu_tuner(configs=lambda: BLOCKS).run()


def test_mistakes_are_value_errors_too() -> None:
    for given in ({}, {"configs": BLOCKS}):
        with pytest.raises(ArgumentError, match=r"autotune needs its configs: write @autotune\(configs=...\)"):
            autotune(scaled, **given)
    with pytest.raises(ArgumentError, match=r"@autotune goes above @tilelang.jit, over a kernel function"):
        autotune(configs=BLOCKS)(scaled)


# ---- environment variables


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"CPU_COUNTS": "1"}, 1),
        ({"CPU_COUNTS": "100000"}, len(usable_cores())),
        ({"CPU_COUNTS": "-1", "CPU_UTILITIES": "0.01"}, 1),
        ({"CPU_UTILITIES": "1.0"}, len(usable_cores())),
        ({"CPU_COUNTS": "100000", "MAX_CPU_COUNT": "1"}, 1),
        ({"MAX_CPU_COUNT": "1"}, 1),
    ],
)
def test_cpu_variables_set_the_number_of_compile_processes(
    variables: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TILELANG_AUTO_TUNING_{name}", value)
    assert planned(target="c").compile.workers == expected


def test_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELANG_COMPILE_TIMEOUT_SECONDS", "7")
    assert planned(target="c").compile.compile_timeout_s == 7
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    monkeypatch.setenv("TILELANG_EXECUTION_BACKEND", "tvm_ffi")
    monkeypatch.setenv("TILELANG_VERBOSE", "1")
    args = AutoTuner(scaled, BLOCKS).set_compile_args().compile_args
    assert (args.target, args.execution_backend, args.verbose) == ({"kind": "cuda", "arch": "sm_80"}, "tvm_ffi", True)


# ---- given inputs


def test_the_winner_is_the_same_in_a_list_of_another_order() -> None:
    def slow_and_fast(rows: Any) -> Any:
        return scaled(64 * (64 if rows is Ellipsis else 1))  # values that are no data

    configs = [{"rows": ...}, {"rows": 1}]
    first = cpu_tuner(slow_and_fast, configs, skip_check=True).run()
    again = cpu_tuner(slow_and_fast, configs[::-1], skip_check=True).run()
    assert first.config == again.config == {"rows": 1}


# ---- on disk


def tilelangs_result(kernel: Any) -> Any:
    config = {"block": 16}
    return param.AutotuneResult(0.5, config, 1.5, kernel.get_kernel_source(), kernel.prim_func, kernel)


def test_code_of_another_user_is_loaded_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tilelang.compile(scaled(64), out_idx=[-1], target="c", execution_backend="cython")
    tilelangs_result(kernel).save_to_disk(tmp_path / "saved")
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


# ---- the decorator


def test_generated_configurations_serve_every_problem_and_arguments_need_not_be_data() -> None:
    def kernel(policy: Any, n: int = 64, block: int = 16) -> Any:
        return scaled(n, 2.0 if policy is T.GemmWarpPolicy.Square else 3.0, block)

    tuned = lazy((config for config in BLOCKS), kernel)
    A = torch.randn(64)
    twice, thrice = tuned(T.GemmWarpPolicy.Square), tuned(T.GemmWarpPolicy.FullRow)
    assert torch.equal(twice(A), A * 2) and torch.equal(thrice(A), A * 3)
    assert tuned(policy=T.GemmWarpPolicy.Square) is twice


def test_the_decorator_s_arguments_are_attributes_as_there() -> None:
    kernel = lazy(ref_prog=doubled, timeout=50, early_stop_factor=3.0)
    theirs = {field.name for field in dataclasses.fields(tuner.AutoTuneImpl)}
    assert theirs >= {"warmup", "ref_prog"} and not {name for name in theirs if not hasattr(kernel, name)}
    assert (kernel.warmup, kernel.rep, kernel.timeout, kernel.rtol) == (1, 5, 50, 1e-2)
    assert (kernel.ref_prog, kernel.supply_prog, kernel.early_stop_factor) == (doubled, None, 3.0)
    kernel.rep = 7
    benchmark = kernel.call_of((64,), {}).options.run["benchmark"]
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
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
    from atune.stages.tilelang import REPLACED

    return [(place, name) for name, places in REPLACED.items() for place in places]


# ---- the page about it


def first_column(heading: str) -> set[str]:
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    text = page[page.index(heading) :].split("\n#", 1)[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in row.split("`")[1::2]}


def test_the_migration_page_has_every_parameter_and_variable() -> None:
    taken = {
        name
        for function in (tuner.autotune, tuner.AutoTuner.run, tuner.AutoTuner.set_profile_args)
        for name in names(function)
    }
    taken |= set(names(tuner.AutoTuner.set_compile_args))
    assert first_column("## What each parameter does here") == taken - {"self", "func"}
    source = inspect.getsource(sys.modules["tilelang.env"])
    variables = first_column("## Environment variables")
    assert "TILELANG_CACHE_DIR" in variables and not {name for name in variables if f'"{name}"' not in source}

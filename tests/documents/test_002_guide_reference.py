"""TileLang's autotuning guide, from its logs to its troubleshooting, point by point, with the guide's names."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from contract_kernels import moody
from drop_in_tuners import BLOCKS, Place, close, cpu_tuner, key, lazy, planned, saved_by_tilelang, workload_of
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
    autotune,
    set_autotune_inputs,
)  # fmt: skip
from atune.compat.tilelang.autotuner import TilelangKernel
from atune.model.settings import CompileSettings
from atune.workers import server
from atune.workers.resources import usable_cores
from atune.workers.result_cache import ResultCache

pytestmark = pytest.mark.timeout(170)
ROOT = Path(__file__).parents[2]
MIGRATION = (ROOT / "docs" / "migration.md").read_text()


@pytest.fixture(scope="module", params=["c", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


@pytest.fixture
def same_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's runs fork from the waiting server, although the test changes the folder or a variable.

    Then no process imports tilelang again. A real program has its variables from its start.
    """
    atune.warm()
    here = server.surroundings()
    monkeypatch.setattr(server, "surroundings", lambda: here)


# ---- Files


@pytest.mark.usefixtures("same_server")
def test_b32_no_log_file_appears_and_errors_reach_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no autotuner.log. The result says what failed and why, and its journal is in the cache folder."""
    of_workers = Path("autotuner.log").resolve()  # workers stay in the folder in which their server started
    before = of_workers.exists() and of_workers.stat()
    monkeypatch.chdir(tmp_path)
    configs = [{"mode": "ok"}, {"mode": "refused"}, {"mode": "raise"}]
    found = cpu_tuner(moody, configs).run()
    assert os.listdir(tmp_path) == [] and (of_workers.exists() and of_workers.stat()) == before
    reasons = {record.config["mode"]: record for record in found.tuning.failures}
    assert "no_such_function" in reasons["refused"].detail
    assert "the kernel does not like 'raise'" in reasons["raise"].message


def test_b33_the_best_kernels_are_kept_in_memory() -> None:
    """The best kernels stay in memory. Once `_tuner_cache` is cleared, the next call looks the kernels up again."""
    asked: list[int] = []
    kernel = lazy(lambda n: asked.append(n) or BLOCKS)
    kernel(64)
    kernel._tuner_cache.clear()
    assert len(kernel._tuner_cache) == 0
    kernel(64)
    assert asked == [64, 64] and len(kernel._tuner_cache) == 1


def test_b34_the_key_covers_outputs_inputs_checks_and_callbacks() -> None:
    """A result's key covers the problem, the arguments of both setters, and the sources of the callbacks."""
    keys = [
        key(),
        key(128),
        key(out_idx=0),
        key(skip_check=True),
        key(cache_input_tensors=False),
        key(supply_type=tilelang.TensorSupplyType.Integer),
        key(ref_prog=doubled),
        key(ref_prog=torch.abs),
        key(supply_prog=lambda params: [torch.ones(64)]),
        key(supply_prog=lambda params: [torch.zeros(64)]),
        key(ref_prog=doubled, manual_check_prog=lambda ours, theirs: True),
    ]
    assert len(set(keys)) == len(keys) and key(ref_prog=doubled) in keys


def test_b35_results_lie_in_a_folder_of_their_own() -> None:
    """Results do not have a separate folder for each key; the migration page says where the results are."""
    assert (
        "| `TILELANG_CACHE_DIR` | atune keeps results and libraries in the subfolder `atune` of this folder |"
        in MIGRATION
    )


def test_b36_a_saved_result_has_the_guides_files(tmp_path: Path) -> None:
    """A saved result is a folder with the best configuration, latencies, sources, library and function."""
    found = cpu_tuner().run()
    found.save_to_disk(tmp_path / "best", verbose=True)
    files = {"best_config.json", "latency.json", "device_kernel.cu", "host_kernel.cu", "function.pkl"}
    assert {*os.listdir(tmp_path / "best")} >= files | {"kernel_lib.so"}
    assert json.loads((tmp_path / "best" / "best_config.json").read_text()) == found.config


# ---- Environment variables


def test_b37_tilelangs_cache_folder_moves_results_and_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TILELANG_CACHE_DIR moves results and libraries, and later runs find them there."""
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(own))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(theirs))
    first = cpu_tuner(n=192).run()
    codes = {file.name for file in (theirs / "atune" / "artifacts" / "codes").glob("*.json")}
    assert len(codes) == 2 and len(ResultCache(theirs / "atune").entries()) == 1
    assert not own.exists()
    assert Path(first.tuning.artifact.path).is_relative_to(theirs)
    again = cpu_tuner(n=192).run()
    assert again.tuning.cache_hit
    A = torch.randn(192)
    assert torch.equal(again.tuning.kernel(A), A * 2), "found again, and loaded when the tuning was over"


def test_b38_a_disabled_cache_keeps_nothing_of_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TILELANG_DISABLE_CACHE=1, atune neither keeps nor uses results or libraries."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "atune"))
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    found, A = cpu_tuner(n=160).run(), torch.randn(160)
    assert not [*(tmp_path / "atune" / "artifacts" / "codes").glob("*.json")]
    assert ResultCache(tmp_path / "atune").entries() == []
    assert torch.equal(found.kernel(A), A * 2)


def first_column(heading: str) -> set[str]:
    text = MIGRATION[MIGRATION.index(heading) :].split("\n#", 1)[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in row.split("`")[1::2]}


def test_b39_the_migration_page_has_every_parameter_and_variable() -> None:
    """The migration page lists every parameter and variable of the guide; TILELANG_TMP_DIR has no effect."""
    taken = {
        name
        for function in (tuner.autotune, tuner.AutoTuner.run, tuner.AutoTuner.set_profile_args)
        for name in inspect.signature(function).parameters
    }
    taken |= {*inspect.signature(tuner.AutoTuner.set_compile_args).parameters}
    assert first_column("## What each parameter does here") == taken - {"self", "func"}
    source = inspect.getsource(sys.modules["tilelang.env"])
    variables = first_column("## Environment variables")
    unread = {name for name in variables if f'"{name}"' not in source}
    assert "TILELANG_CACHE_DIR" in variables and unread == {"TILELANG_TMP_DIR"}, "the guide alone has it"


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
def test_b40_variables_set_the_number_of_compile_processes(
    variables: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three variables (number, share, limit) set the number of compile processes. Errors name the wrong variable."""
    for name, value in variables.items():
        monkeypatch.setenv(f"TILELANG_AUTO_TUNING_{name}", value)
    assert planned(target="c").compile.workers == expected
    for name in variables:
        monkeypatch.setenv(f"TILELANG_AUTO_TUNING_{name}", "x")
        with pytest.raises(ArgumentError, match=f"^TILELANG_AUTO_TUNING_{name} must be a number: .*'x'$"):
            planned(target="c")
        monkeypatch.setenv(f"TILELANG_AUTO_TUNING_{name}", "1")


@pytest.mark.usefixtures("same_server")
def test_b41_without_the_tuners_cache_libraries_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TILELANG_AUTO_TUNING_DISABLE_CACHE=1, atune keeps no results, but still reuses libraries."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILELANG_AUTO_TUNING_DISABLE_CACHE", "1")
    cpu_tuner(n=224).run()
    before = {file: file.stat().st_ino for file in (tmp_path / "atune" / "artifacts" / "codes").iterdir()}
    cpu_tuner(n=224).run()
    assert before == {file: file.stat().st_ino for file in before}, "nothing was compiled and kept again"
    assert len(before) == 2
    assert ResultCache(tmp_path / "atune").entries() == []


def test_b42_results_are_kept_on_disk_with_callbacks_too(tmp_path: Path) -> None:
    """Results with callbacks or given inputs are kept on disk, while TileLang keeps them only in memory."""
    log = tmp_path / "log"

    def supply(params: list[Any]) -> list[torch.Tensor]:
        with open(log, "a") as file:
            file.write(f"{[tuple(p.shape) for p in params]}\n")
        return [torch.ones(tuple(p.shape)) for p in params]

    def check(outputs: list[torch.Tensor], references: list[torch.Tensor]) -> None:
        torch.testing.assert_close(outputs, references)

    def run_once(**more: Any) -> AutotuneResult:
        return cpu_tuner(configs=[{"block": 8}, {"block": 64}], ref_prog=doubled, **more).run()

    first = run_once(supply_prog=supply, manual_check_prog=check)
    assert not first.tuning.cache_hit and log.read_text() == "[(64,)]\n"
    second = run_once(supply_prog=supply, manual_check_prog=check)
    assert second.tuning.cache_hit and second.config == first.config and second.latency == first.latency
    assert log.read_text() == "[(64,)]\n"  # nobody asked for inputs again
    A = torch.randn(64)
    assert torch.equal(second.kernel(A), A * 2)
    hits = []
    for _ in range(2):
        with set_autotune_inputs(A):
            hits.append(run_once().tuning.cache_hit)
    assert hits == [False, True]
    assert not run_once(supply_prog=supply).tuning.cache_hit  # a new check needs a new tuning


# ---- Backends, and kernels without a tuner


def test_b43_what_tilelang_compiles_itself_gets_backend_and_host_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nvrtc backend and a host target apply only to kernels that TileLang itself compiles; a warning says so."""

    class Compiled(Exception):
        pass

    def compiles(function: Any, **options: Any) -> Any:
        raise Compiled(options["execution_backend"], options["target_host"])

    jit = tilelang.jit(target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="nvrtc", target_host="c")
    kernel = autotune(configs=[{"blocks": 1}])(jit(few_blocks))
    monkeypatch.setattr(tilelang, "compile", compiles)
    counts, nothing = (
        pytest.warns(CompatWarning, match=message) for message in ("only affects as_tilelang", "nothing is tuned")
    )
    with counts, nothing, pytest.raises(Compiled) as asked:
        kernel(1 << 10, 2.0, blocks=4)
    assert asked.value.args == ("nvrtc", "c")


@pytest.mark.parametrize("target", ["c", "sm_90a"])
@pytest.mark.parametrize("backend", ["torch", "dlpack", "cutedsl"])
def test_b44_an_adapter_that_the_target_lacks_is_refused_and_never_replaced(target: str, backend: str) -> None:
    """The torch and dlpack backends, which keep nothing on disk, are refused with a list of backends that work."""
    decorated = autotune(configs=BLOCKS)(tilelang.jit(target=target)(scaled))
    decorated.jit_impl.execution_backend = backend
    with pytest.raises(ArgumentError, match=rf"must be one of auto, .* for target .*, got '{backend}'$"):
        decorated(64)


def test_b45_configurations_are_compiled_for_a_sweep_of_your_own() -> None:
    """`atune.compile_all` compiles configurations in parallel, and returns the kernels in order."""
    configs = [{"factor": factor, "block": block} for factor in (2, 3, 5) for block in (8, 16)]
    unstored = CompileSettings(store=False)
    kernels = atune.compile_all(scaled, configs, arguments={"n": 64}, target="c", compile=unstored)
    assert [kernel.config for kernel in kernels] == configs
    A = torch.randn(64)
    for kernel, config in zip(kernels, configs, strict=True):
        assert torch.equal(kernel(A), A * config["factor"])
        assert kernel.artifact.symbol in kernel.source
    A, B = torch.randn(64), torch.empty(64)
    kernels[-1](A, B)  # every parameter given
    assert torch.equal(B, A * 5)
    assert len({kernel.artifact.path for kernel in kernels}) < len(kernels)  # they share libraries


def test_b46_saved_results_go_both_ways(tmp_path: Path) -> None:
    """TileLang and atune can load each other's saved results, and saving leaves no other files behind."""
    A, given = torch.randn(64), {"target": "c", "execution_backend": "cython", "out_idx": [-1]}
    ours = cpu_tuner(ref_prog=doubled).run()
    ours.save_to_disk(tmp_path / "ours")
    (tmp_path / "ours" / "kernel_lib.so").unlink()
    ours.save_to_disk(tmp_path / "ours")  # replaces the whole folder
    assert os.listdir(tmp_path) == ["ours"], "nothing is left in staging"
    read = param.AutotuneResult.load_from_disk(tmp_path / "ours", param.CompileArgs(**given))
    assert (read.config, read.latency, read.ref_latency) == (ours.config, ours.latency, ours.ref_latency)
    assert torch.equal(read.kernel(A), A * 2)

    saved_by_tilelang(tmp_path / "cache" / "theirs")
    found = AutotuneResult.load_from_disk(tmp_path / "cache" / "theirs", CompileArgs(**given))
    assert found is not None
    assert (found.config, found.latency, found.ref_latency) == ({"block": 16}, 0.5, 1.5)
    assert torch.equal(found.kernel(A), A * 2) and found.kernel.latency == 0.5
    assert AutotuneResult.load_from_disk(tmp_path / "nowhere", CompileArgs(**given)) is None


def test_b47_spaces_follow_from_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that returns configurations gets the problem by name, with the kernel's defaults, as in TileLang."""
    monkeypatch.setattr(tuner, "_init_logger_handlers", lambda: None)  # it writes a file in the working folder
    asked: list[dict[str, Any]] = []

    def configs(**given: Any) -> Any:
        asked.append(given)
        return []

    for make in (autotune, tuner.autotune):
        made = make(configs=configs, do_not_specialize=["block"])(tilelang.jit(out_idx=[-1], target="c")(scaled))
        with pytest.raises(ValueError, match="No configurations to tune"):
            made(64, block=8)
    ours, theirs = asked
    assert ours == theirs == {"n": 64, "factor": 2.0, "threads": None}


@pytest.mark.parametrize("target", ["hip", "metal"])
def test_b48_other_targets_are_refused(target: str) -> None:
    """The targets hip and metal are refused with an ArgumentError, as the migration page says."""
    with pytest.raises(ArgumentError, match=f"target '{target}' is not supported"):
        AutoTuner(scaled, BLOCKS).set_compile_args(target=target)
    assert "| targets `hip` and `metal` | These targets raise `ArgumentError` |" in MIGRATION


@pytest.mark.parametrize(
    ("target", "seen", "given"), [("auto", [], "auto"), (None, [], "auto"), ("auto", ["a GPU"], "c"), ("c", [], "c")]
)
def test_b49_without_a_gpu_the_target_auto_says_so(
    target: Any, seen: list[str], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`target='auto'` means CUDA if TileLang sees a GPU; otherwise the engine says that there is no GPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(compat.environment, "visible_gpus", lambda: seen)
    assert planned(target=target).target == given


def test_b50_pass_configs_reach_the_candidates() -> None:
    """`pass_configs` of `set_compile_args` apply to every candidate, and a configuration may add its own."""
    passes = {"tl.disable_safe_memory_legalize": True}
    made = cpu_tuner(configs=[{"block": 16, "pass_configs": passes}])
    assert [*workload_of(made).space.points({}).walk()] == made.configs
    assert workload_of(cpu_tuner().set_compile_args(out_idx=-1, target="c", pass_configs=passes)).pass_configs == passes


def test_b51_what_means_the_same_warns_of_nothing() -> None:
    """Options for several GPUs, groups and time limits mean the same as in TileLang, without a warning."""
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


# ---- Troubleshooting


@pytest.mark.parametrize("configs", [[], lambda **_: [], (c for c in ())], ids=["list", "callable", "generator"])
def test_b52_no_configurations_to_tune(configs: Any) -> None:
    """An empty list, generator or function raises the guide's error, «No configurations to tune»."""
    with pytest.raises(ValueError, match="No configurations to tune"):
        AutoTuner(scaled, configs).run()


def test_b53_a_timeout_holds_for_every_configuration() -> None:
    """`timeout`, `warmup` and `rep` of `set_profile_args` apply to all configurations, unless `run` overrides them."""
    made = cpu_tuner(warmup=7, rep=11, timeout=13)
    calls = [made.call_of(TilelangKernel(made.fn), given) for given in ({}, {"rep": 17})]
    calls.append(made.set_profile_args(rep=3).call_of(TilelangKernel(made.fn), {}))
    asked = [call.options.plan.settings.benchmark for call in calls]
    assert [(s.n_warmup, s.n_repeat, s.benchmark_timeout_s) for s in asked] == [(7, 11, 13), (7, 17, 13), (25, 3, 180)]


def test_b54_given_tensors_size_symbolic_dimensions(place: Place) -> None:
    """With the tensors of `set_autotune_inputs`, a kernel with symbolic sizes is tuned, and then takes every size."""
    with set_autotune_inputs(torch.randn(128, device=place.device)):
        found = place.scaled(n=T.dynamic("m"), ref_prog=doubled).run()
    for n in (32, 320):
        A = torch.randn(n, device=place.device)
        close(found.kernel(A), A * 2)


def test_b55_stored_programs_found_tilelangs_winners() -> None:
    """For four kernels of TileLang's examples, both tuners find the same winners, but atune takes less time."""
    rows = json.loads((ROOT / "bench" / "results" / "compat" / "compat.json").read_text())["rows"]
    theirs, ours = ({row["example"]: row for row in rows if row["tuner"] == name} for name in ("tilelang", "atune"))
    assert len(theirs) == 4 and theirs.keys() == ours.keys()
    for name, row in ours.items():
        assert row["config"] == theirs[name]["config"] and row["result_s"] < theirs[name]["result_s"], name

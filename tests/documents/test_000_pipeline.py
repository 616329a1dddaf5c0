"""TileLang's pull request 2159: its pipeline, grouped compilation, benchmarks on several GPUs, and experiments."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import seed000
import torch
from drop_in_tuners import BLOCKS, cpu_tuner, planned
from fake_runs import anyio_backend as anyio_backend
from fake_runs import finish, valley
from guide_kernels import doubled, few_blocks, scaled

import atune
import atune.compat.tilelang as compat
from atune.compat.tilelang import ArgumentError, AutoTuner
from atune.compat.tilelang.autotuner import TilelangKernel
from atune.engine.engine import ARTIFACTS_PER_DEVICE
from atune.errors import UsageError
from atune.frontends.cli.main import make_parser
from atune.frontends.resume import read_state
from atune.journal import events
from atune.journal.reader import read
from atune.journal.result import Result
from atune.model.settings import CompileSettings
from atune.reporting.summary import failure_groups, summary
from atune.testing import FakeMachine, Script

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
ROLLER, END, GROUPS = "roller20", "result_s", ("groups of 2", "groups of 4", "groups automatic")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tune four configurations, of which two fail, with the drop-in on the CPU. The result also has its events."""
    calls = tmp_path_factory.mktemp("calls")

    def supply(params: Any) -> list[torch.Tensor]:
        (calls / str(len(list(calls.iterdir())))).touch()
        return [torch.ones(352)]

    profile: dict[str, Any] = {"ref_prog": doubled, "supply_prog": supply, "cache_input_tensors": False}
    configs = [*BLOCKS, {"factor": 3.0}, {"block": 0}]
    one = cpu_tuner(configs=configs, n=352, warmup=2, rep=6, **profile)  # no other test uses it, so no result is stored
    found = one.run(use_pipeline=False, enable_grouped_compile=True, group_compile_size=2, early_stop=False)
    found.tuning.calls, found.tuning.seen = calls, read(found.tuning.journal)
    return found


def of(run: Any, kind: type[Any]) -> list[Any]:
    return [event for event in run.tuning.seen if isinstance(event, kind)]


# ---- the pipeline


def test_a1_the_pipeline_can_be_switched_off(run: Any) -> None:
    """With `use_pipeline=False`, measuring starts only after everything is compiled."""
    assert of(run, events.ArtifactBuilt)[-1].seq < of(run, events.BenchmarkStarted)[0].seq


@pytest.mark.anyio
@pytest.mark.parametrize("pipeline", [True, False])
async def test_a2_measuring_runs_beside_compiling(pipeline: bool) -> None:
    """The pipeline measures candidates and references while other candidates compile."""
    machine = FakeMachine(200, Script(library_s=5.0), workers=3, devices=2)  # more than the artifacts' stream holds
    run = await finish(machine, pipeline=pipeline)
    built, references = run.of(events.ArtifactBuilt), run.of(events.ReferenceMeasured)
    assert len(references) == 2 and all((one.seq < built[0].seq) == pipeline for one in references)
    assert (run.of(events.BenchmarkStarted)[0].seq < built[-1].seq) == pipeline
    assert len(run.measured()) == 200 > ARTIFACTS_PER_DEVICE
    assert (len(built[0].indices) == 2) == pipeline  # the first group is small, because a device waits


# ---- grouped compilation


def test_a3_several_configurations_are_compiled_into_one_library(run: Any) -> None:
    """Grouped compilation compiles the device code of several configurations into one library."""
    assert of(run, events.ArtifactBuilt)[0].indices == (0, 1)


def test_a4_the_group_size_can_be_chosen(run: Any) -> None:
    """`group_compile_size` limits how many configurations are compiled together."""
    assert sorted(len(event.indices) for event in of(run, events.ArtifactBuilt)) == [1, 2]


@pytest.mark.parametrize(("given", "alone"), [({}, False), ({"enable_grouped_compile": False}, True)])
def test_a5_grouped_compilation_can_be_switched_off(given: dict[str, Any], alone: bool) -> None:
    """With `enable_grouped_compile=False`, each configuration compiles alone; by default the engine forms groups."""
    machine = FakeMachine(40)
    atune.run(machine=machine, compile=planned(**given).compile)
    assert (max(map(len, machine.groups)) == 1) == alone


def test_a6_every_way_of_compiling_and_measuring_finds_the_same() -> None:
    """Pipeline and groups change neither which candidates are measured nor which candidate wins."""
    found = []
    for pipeline, size in ((True, None), (True, 4), (False, 1)):
        machine = FakeMachine(20, Script(latency_ms=valley(7), fails={3: "compile", 5: "mismatch"}), devices=2)
        result = atune.run(machine=machine, pipeline=pipeline, compile=CompileSettings(group_size=size))
        found.append((result.best_config, [(one.index, one.status) for one in result.records]))
    assert found[0] == found[1] == found[2] and found[0][0] == {"x": 7}


def test_a7_each_configuration_of_a_library_has_its_own_kernel(run: Any) -> None:
    """Each configuration in a group computes its own outputs, which are checked separately."""
    assert [one.status for one in run.tuning.records] == ["measured", "measured", "failed", "failed"]
    assert [(e.index, e.kind) for e in of(run, events.BenchmarkFailed)] == [(2, "mismatch")]  # it multiplies by 3


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [[2], [0, 5], [1, 2, 3, 4, 5]])
async def test_a8_a_bad_member_of_a_group_fails_alone(bad: list[int]) -> None:
    """A group that does not compile is split until each failing member is alone and all other members compile."""
    machine = FakeMachine(6, Script(fails=dict.fromkeys(bad, "compile")), workers=2)
    run = await finish(machine, compile=CompileSettings(group_size=6))
    assert sorted((e.index, e.kind) for e in run.of(events.BuildFailed)) == [(index, "compile") for index in bad]
    assert sorted(run.of(events.GroupSplit)[0].indices) == [0, 1, 2, 3, 4, 5]
    assert run.measured() == [i for i in range(6) if i not in bad]


def test_a9_kernels_of_one_library_have_names_of_their_own(run: Any) -> None:
    """Kernels that share a name in the source get a separate name for each configuration."""
    assert f"atune_kernel_{run.tuning.best.key}" in run.libcode and "main_kernel" not in run.libcode


def test_a10_a_configuration_that_cannot_be_elaborated_fails_alone(run: Any) -> None:
    """If the kernel function fails for a configuration, all other configurations are compiled and measured."""
    assert [(e.index, e.kind) for e in of(run, events.BuildFailed)] == [(3, "lower")] and run.tuning.measured == 2


@pytest.mark.parametrize("target", ["c", "sm_90a"])
@pytest.mark.parametrize("backend", ["torch", "dlpack", "cutedsl"])
def test_a11_an_execution_backend_that_the_target_lacks_is_refused(target: str, backend: str) -> None:
    """If the target lacks a backend, the error lists the target's backends. atune never takes another backend."""
    match = rf"^execution_backend must be one of auto, .* for target .*, got '{backend}'$"
    with pytest.raises(ArgumentError, match=match):
        AutoTuner(scaled, BLOCKS).set_compile_args(target=target, execution_backend=backend)


# ---- several GPUs


def test_a12_devices_can_be_named() -> None:
    """`benchmark_devices` names the GPUs to measure on. On the command line, `--devices` can be repeated."""
    assert planned(benchmark_multi_gpu=True, benchmark_devices=[1, 0, 1]).devices == ("1", "0")
    given = make_parser().parse_args(["tune", "gemm.py", "--devices", "0", "--devices", "1"])
    assert given.devices == ["0", "1"]


def test_a13_devices_that_are_named_alone_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmark_devices` without `benchmark_multi_gpu=True` has no effect, and a warning says so."""
    monkeypatch.setattr(compat.environment, "_warned", set())
    with pytest.warns(compat.CompatWarning, match="^benchmark_devices: has no effect without benchmark_multi_gpu=True"):
        assert planned(benchmark_devices=[1]).devices == ("0",)


def test_a14_all_gpus_are_used_where_none_is_named() -> None:
    """`benchmark_multi_gpu=True` measures on all visible GPUs."""
    assert planned(benchmark_multi_gpu=True).devices == ("all",)


def test_a15_a_free_gpu_takes_what_is_ready() -> None:
    """All GPUs take work from one queue, so candidates do not wait for a GPU that hangs or is slow."""
    machine = FakeMachine(40, Script(hangs={0: "measure"}, lower_s=0.01, compile_s=0.01), devices=2, default=0)
    assert atune.run(machine=machine).measured == 39
    assert min(map(len, machine.measured.values())) <= 5


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a16_each_gpu_has_inputs_of_its_own() -> None:
    """The tensors of `set_autotune_inputs` are copied to every GPU that measures candidates."""
    one = AutoTuner.from_kernel(few_blocks, [{"blocks": 1 << n} for n in range(8)])
    one.set_compile_args(out_idx=[-1], target="cuda").set_kernel_parameters(((1 << 23, 2.0), {}), {})
    with compat.set_autotune_inputs([torch.randn(1 << 23, device="cuda:1")]):
        one.set_profile_args(ref_prog=doubled)
    found = one.run(benchmark_multi_gpu=True, benchmark_devices=[0, 1], use_pipeline=False).tuning
    assert found.measured == 8 and {record.device for record in found.records} == {"0", "1"}


@pytest.mark.anyio
@pytest.mark.parametrize("slow", ["fake-0", "fake-1", "fake-2"])
async def test_a17_a_gpu_that_is_not_as_fast_as_the_others_is_left_out(slow: str) -> None:
    """Each GPU times the reference. If a GPU's time deviates, other GPUs measure that GPU's candidates again."""
    script = Script(latency_ms=valley(9), slowdown={slow: 0.9}, lower_s=0.01, compile_s=0.01)
    run = await finish(FakeMachine(24, script, devices=3))
    [excluded] = run.of(events.DeviceExcluded)
    assert excluded.device == slow and "0.900 times" in excluded.reason
    assert run.result.measured == 24 and run.result.best_index == 9
    assert slow not in {r.device for r in run.result.records} and run.of(events.FinalOrdered)[0].device != slow
    assert any(slow in warning for warning in run.result.warnings)
    replayed = Result.from_events(run.events)
    assert summary(replayed) | {"journal": None} == summary(run.result) | {"journal": None}


# ---- deadlines, cancellation and arguments


def test_a18_a_kernel_that_never_ends_is_killed_at_its_deadline() -> None:
    """`timeout` is a deadline: a kernel that hangs is killed, and its GPU measures the next candidate at once."""
    head, *rows = json.loads((RESULTS / "faults" / "faults.json").read_text())["rows"]
    [endless] = [dict(zip(head, row, strict=True)) for row in rows if row[0] == "endless"]
    assert endless["named"] == "timeout" and "killed" in endless["words"]
    assert float(endless["kill s"]) < 0.2 and float(endless["again s"]) < 1  # after the deadline, on a GPU
    result = atune.run(machine=FakeMachine(8, Script(hangs={3: "measure"})))
    assert [(one.index, one.kind) for one in result.failures] == [(3, "timeout")] and result.measured == 7


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "lost"),
    [("fault", 1), ("worker_lost", 1), *((kind, 0) for kind in ("mismatch", "unwritten", "load", "out_of_memory"))],
)
async def test_a19_a_candidate_that_fails_or_ends_its_process_disturbs_no_other(kind: Any, lost: int) -> None:
    """If a candidate kills its process, a new process measures the rest. After other failures the process continues."""
    machine = FakeMachine(10, Script(fails={3: kind}))
    run = await finish(machine)
    assert [(e.index, e.kind) for e in run.of(events.BenchmarkFailed)] == [(3, kind)]
    starts = len(run.of(events.DeviceReady)), machine.starts["fake-0"]
    assert len(run.of(events.DeviceLost)) == lost and starts == (1 + lost, 1 + lost)
    assert run.measured() == [i for i in range(10) if i != 3] and len(run.of(events.FinalOrdered)) == 1
    [group] = failure_groups(run.result.records)
    assert (group.kind, group.message, group.count) == (kind, f"scripted to fail: {kind}", 1)


@pytest.mark.anyio
async def test_a20_leaving_a_run_early_cancels_what_is_under_way() -> None:
    """Leaving a run early cancels the running compiles and measurements, and starts no new ones."""
    machine = FakeMachine(500)
    async with atune.Tuner(machine=machine) as tuner:
        async for event in tuner.events():
            if isinstance(event, events.CandidateMeasured):
                break
    assert machine.closed == 1 and machine.running == 0 and sum(machine.cancelled.values()) >= 1


@pytest.mark.parametrize("name", ["warmup", "rep", "group_compile_size", "benchmark_devices", "use_pipeline"])
def test_a21_wrong_arguments_are_refused_before_anything_starts(name: str) -> None:
    """If an argument of `run` is wrong, the error names the argument, and says what the value must be."""
    with pytest.raises(ArgumentError, match=rf"^{name} must be .*, got -1$"):
        AutoTuner(scaled, BLOCKS).run(**{name: -1})


@pytest.mark.parametrize("given", [{"group_compile_size": 4}, {"early_stop_factor": 3.0, "early_stop": False}])
def test_a22_what_has_no_effect_is_said(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning and the result name every argument without effect, such as `group_compile_size` given alone."""
    monkeypatch.setattr(compat.environment, "_warned", set())
    said = f"{next(iter(given))}: has no effect with"
    with pytest.warns(compat.CompatWarning, match=f"^{said}"):
        found = cpu_tuner().run(**given)
    assert [text for text in found.tuning.warnings if text.startswith(said)]


def test_a23_a_second_run_of_a_tuner_forgets_the_first_ones_arguments() -> None:
    """The arguments of one `run` of a tuner do not carry over to the next `run`."""
    one = cpu_tuner()
    asked = ({"use_pipeline": False, "rep": 9}, {})
    first, second = (one.call_of(TilelangKernel(one.fn), given).options.plan.settings for given in asked)
    assert (first.pipeline, first.benchmark.n_repeat) == (False, 9)
    assert (second.pipeline, second.benchmark.n_repeat) == (True, 5)


def test_a24_the_programs_current_gpu_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `benchmark_multi_gpu`, candidates are measured on the program's current GPU."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    assert planned().devices == ("3",)


@pytest.mark.parametrize("name", ["jit_compile", "jit_elaborate"])
def test_a25_a_compile_function_of_your_own_is_not_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `jit_compile` or `jit_elaborate` of your own is not called, and both a warning and the result say so."""
    monkeypatch.setattr(compat.environment, "_warned", set())
    one = cpu_tuner()
    setattr(one, name, lambda **config: pytest.fail("it is not called"))
    with pytest.warns(compat.CompatWarning, match=rf"^{name}: your function is not called: [^.]*$"):
        found = one.run(warmup=1, rep=2)
    for again in (found, one.run(warmup=1, rep=2)):  # one warning, but each result says it
        assert again.warnings[0].startswith(f"{name}: your function is not called")
        assert again.tuning.warnings == again.warnings


LINE = """--m 512 --n 256 --k 128 --with-roller --topk 5 --warmup 1 --rep 2 --timeout 7 --skip-check --no-pipeline
--no-cache-input-tensors --execution-backend auto --grouped-compile --group-compile-size 4 --benchmark-multi-gpu
--benchmark-devices 0 --benchmark-devices 2"""


def test_a26_the_example_hands_all_its_options_to_atune(monkeypatch: pytest.MonkeyPatch) -> None:
    """`examples/gemm.py` has the command line of TileLang's own example."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    gemm = importlib.import_module("gemm")

    async def asked(workload: atune.Workload, **options: Any) -> None:
        raise KeyError(workload.arguments, len(workload.space.listed or ()), options)

    def given(line: str) -> Any:
        with pytest.raises(KeyError) as reached:
            anyio.run(gemm.main, gemm.options(line.split()))
        return reached.value.args

    monkeypatch.setattr(atune, "tune", asked)
    settings: dict[str, Any] = {"compile": CompileSettings(), "benchmark": atune.BenchmarkSettings()}
    assert given("")[2] == {"target": "cuda", "devices": "all", "pipeline": True, **settings}
    settings = {"n_warmup": 1, "n_repeat": 2, "benchmark_timeout_s": 7, "check": False, "cache_inputs": False}
    settings = {"compile": CompileSettings(group_size=4), "benchmark": atune.BenchmarkSettings(**settings)}
    options = {"target": "cuda", "devices": [0, 2], "pipeline": False, **settings}
    assert given(LINE) == ({"M": 512, "N": 256, "K": 128}, 5, options)
    options = given("--no-grouped-compile --no-benchmark-multi-gpu --benchmark-devices 2")[2]
    assert options["compile"].group_size == 1 and options["devices"] == [2]


def test_a27_warmup_and_rep_count_calls_of_kernel_and_reference_alike(run: Any) -> None:
    """`warmup` and `rep` count calls, both for the kernels and for the reference."""
    timings = [event.timing for event in of(run, events.ReferenceMeasured) + of(run, events.CandidateMeasured)]
    assert [len(timing.samples_us) for timing in timings] == [6] * 3


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("--pipeline --warmup 3 --rep 20 --timeout 180 --skip-check", ""),
        ("--topk 20", "--budget?"),
        ("--group-compile-size 4, --no-grouped-compile", "--group-size?"),
        ("--no-benchmark-multi-gpu, --benchmark-devices 0", "--devices?"),
        ("--cpu-count 2", "--workers?"),
        ("--shape 64x64", "--arg?"),
        ("--no-cache-input-tensors", "--no-cache-inputs?"),
        ("--runs 3", "each command tunes once: repeat the command"),
        ("--execution-backend cython", "candidates always run with tvm_ffi: leave the option out"),
        ("--with-roller, --without-roller", "examples/gemm_roller.py gets it from TileLang's roller"),
        ("--disable-cache", "CompileSettings(store=…) in Python or @atune.autotune(cache=…) in Python?"),
    ],
)
def test_a28_each_option_of_the_pull_request_is_taken_or_answered(options: str, answer: str) -> None:
    """`atune tune` takes each option of the pull request, or says what to write instead."""
    wrong = pytest.raises(UsageError, match=re.escape(f"{answer} (see atune tune --help)"))
    for one in options.split(", "):
        with wrong if answer else nullcontext():
            make_parser().parse_args(["tune", "gemm.py", *one.split()])


# ---- experiments


def test_a29_all_configurations_of_the_roller_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang's roller recommends 20 configurations for a 4096 product: all 20 compile and are measured."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    recommended = importlib.import_module("gemm_roller").recommended
    stored = Result(read_state(RESULTS / "roller20" / "atune.jsonl"))
    assert [one.status for one in stored.records] == ["measured"] * 20
    assert [one.config for one in stored.records] == recommended(4096, 4096, 4096)


def gains(folder: str, figure: str, *ways: str) -> list[str]:
    """Return each feature's speedup over a run without features, from the medians of three runs."""
    stored = json.loads((RESULTS / "seed000" / folder / "result.json").read_text())
    runs = [msgspec.convert(one, seed000.Run) for one in stored["runs"]]
    assert stored["settings"].items() >= seed000.COMMON.items() and not any(run.error or run.excluded for run in runs)
    assert Counter(run.variant for run in runs) == dict.fromkeys(stored["variants"], 3)
    none, *found = (seed000.median([run for run in runs if run.variant == way], figure) for way in ("nothing", *ways))
    assert all(none > one for one in found)
    return [f"{none / one:.2f}" for one in found]


def said(page: Path = RESULTS / "README.md") -> str:
    return " ".join(page.read_text().split())


def test_a30_the_pipeline_ends_a_tuning_earlier() -> None:
    """The pipeline alone shortens the tuning of the roller's 20 configurations."""
    [gain] = gains(ROLLER, END, "pipeline")
    assert f"With the pipeline the tuning of the roller's 20 candidates ends {gain} times as early" in said()


def test_a31_a_second_gpu_about_halves_the_time_to_measure() -> None:
    """Two equal GPUs measure about twice as fast as one GPU, but compiling limits how much earlier the run ends."""
    [most], [few] = (gains(folder, "benchmark_wall_s", "2 devices") for folder in ("gemm288", ROLLER))
    [run], page = gains("gemm288", END, "2 devices"), said(ROOT / "docs" / "concepts.md")
    assert f"288 candidates {most} times as fast" in said() and f"20 candidates {few} times" in said()
    assert f"[{most} times as fast]" in page and f"whole run was only {run} times as fast" in page


def test_a32_groups_compile_faster() -> None:
    """The larger the groups, the less time compiling takes."""
    found = gains(ROLLER, "compile_wall_s", *GROUPS)
    assert found == sorted(found) and "compiles {}, {} and {} times as fast".format(*found) in said()


def test_a33_all_features_together_end_a_tuning_earlier() -> None:
    """Pipeline, groups and two GPUs together tune a whole space in less time than two GPUs alone."""
    two, four, default = gains("gemm288", END, "2 devices", "all, groups of 4", "all")
    assert float(two) < float(four) < float(default)
    assert f"the 288 ends {four} times as early in groups of 4, and {default} times as early with cicc" in said()


TWO = {
    "nothing": "--devices 0",
    "2 devices": "--devices 0,1",
    "pipeline": "--devices 0 --pipeline",
    "groups of 2": "--devices 0 --group-size 2",
    "groups of 4": "--devices 0 --group-size 4",
    "groups automatic": "--devices 0 --group-size 0",
    "all, groups of 4": "--devices 0,1 --pipeline --group-size 4",
    "all": "--devices 0,1 --pipeline --group-size 0 --cicc",
}


def test_a34_each_experiment_turns_one_feature_on_and_all_every_one() -> None:
    """`bench/seed000.py` runs the experiments: each turns on one feature, and the last turns on all features."""
    assert {one.label: " ".join(one.arguments) for one in seed000.chosen("", ["0", "1"])} == TWO
    assert [one.label for one in seed000.chosen("groups", ["0", "1"])] == ["nothing", *list(TWO)[3:6]]
    assert "2 devices" not in [one.label for one in seed000.chosen("", ["0"])]
    with pytest.raises(SystemExit, match="'devices' needs several devices"):
        seed000.chosen("devices", ["0"])
    with pytest.raises(SystemExit, match="'roller' is unknown: choose from pipeline, groups, all"):
        seed000.chosen("roller", ["0"])


def test_a35_groups_end_a_tuning_earlier() -> None:
    """Groups alone shorten the tuning of the roller's 20 configurations, and larger groups shorten it more."""
    found = gains(ROLLER, END, *GROUPS)
    assert (
        found == sorted(found) and "and automatic groups it ends {}, {} and {} times as early".format(*found) in said()
    )


def test_a36_the_experiments_have_the_settings_of_the_pull_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every experiment has 3 warm-up calls, a limit of 180 s per candidate and new inputs, but no checks or caches."""
    path = tmp_path / "journal.jsonl"
    ref = f"{ROOT / 'examples' / 'gemm_cpu.py'}:WORKLOAD"
    seed000.tune([ref, "--target", "c", "--devices", "cpu", "--rep", "3", "--budget", "2", "--journal", str(path)])
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["measured"] == 2 and told["stages"]["compile_s"] > 0 < told["stages"]["benchmark_wall_s"]
    settings = read(path)[0].settings  # type: ignore[attr-defined]
    assert (settings["pipeline"], settings["compile"]["group_size"], settings["compile"]["cicc"]) == (False, 1, False)
    asked = {"n_warmup": 3, "benchmark_timeout_s": 180.0, "check": False, "cache_inputs": False}
    assert {name: settings["benchmark"][name] for name in asked} == seed000.COMMON == asked


def test_a37_inputs_can_be_made_anew_for_each_candidate(run: Any) -> None:
    """`cache_input_tensors=False` makes new inputs for each candidate."""
    assert len(list(run.tuning.calls.iterdir())) > len(of(run, events.BenchmarkStarted))

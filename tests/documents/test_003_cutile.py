"""What cuTile.jl's pull request 247 promises of `@autotune`: the space in the call, hints, keys, and the pipeline."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import torch
from decorated import doubled, plus, scale, scale_jit, shift, workload
from fake_runs import Run, finish
from stage_runs import session_of
from stand_in_engine import Engine
from stand_in_engine import engine as engine
from stand_in_engine import tuned as tuned
from stand_in_engine import unbuilt as unbuilt
from work_kernels import product

import atune
from atune.engine.engine import ARTIFACTS_PER_DEVICE
from atune.errors import NoWinner, SpaceError, UsageError
from atune.events import ArtifactBuilt, BenchmarkStarted, CandidateLowered, CandidateMeasured, Event, RunStarted
from atune.frontends import cached_tune
from atune.frontends.decorator_options import PRESETS, tuning_options
from atune.journal.reader import read
from atune.model.device import Target
from atune.model.settings import Budget
from atune.stages.codegen import Blob
from atune.stages.frontend import elaborate
from atune.stages.lowering import lower
from atune.testing import FakeClock, FakeMachine, Script
from atune.workers.server import PRELOAD, parked
from atune.workload.pickling import FileRef
from atune.workload.workload import describe

WORKLOADS = Path(__file__).parents[1] / "workloads.py"
STORED = Path(__file__).parents[2] / "bench" / "results"


def ones(A: torch.Tensor) -> None:
    A.fill_(1.0)


def all_ones(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    return bool((inputs[0] == 1).all()) and bool((outputs[0] == 2).all())


def test_d1_a_call_tunes_and_runs_the_winner(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a kernel under `@autotune(space=…)` tunes the kernel. Every call runs the winner."""
    kernel = tuned(shift, reference=plus)
    A = torch.randn(256)
    before = A.clone()
    assert torch.equal(kernel(A), A + 1) and torch.equal(A, before)
    result = kernel.tune(A)
    assert result.cache_hit and result.measured == 2 and not result.failed  # checked against the reference
    monkeypatch.setattr(cached_tune, "tune_planned", None)
    B = torch.randn(256)
    assert torch.equal(kernel(B), B + 1) and torch.equal(kernel(A=B), B + 1) and torch.equal(kernel(B, 1), B + 1)
    compiled = kernel.compile(n=256)
    assert torch.equal(compiled(B), B + 1) and kernel.compile(B) is compiled


def test_d2_a_list_is_tried_as_it_stands(tuned: Any, unbuilt: Engine) -> None:
    """A list of configurations, or a generator of configurations, is tried unchanged."""
    configs = [{"block": 64}, {"block": 16}, {"block": 32}]
    for space in (configs, iter(configs), lambda n: configs):
        assert [one.config for one in tuned(space=space, cache=False).tune(64).records] == configs


def test_d3_axes_are_multiplied(tuned: Any, unbuilt: Engine) -> None:
    """If a space lists values for each axis, every combination is tried, in a stable order."""
    records = tuned(space={"factor": (1, 2), "block": (16, 64)}).tune(64).records
    assert [[*one.config.values()] for one in records] == [[1, 16], [1, 64], [2, 16], [2, 64]]
    assert [*records[0].config] == ["factor", "block"]
    assert tuned(space=lambda n: {"block": [16, 64]}).tune(128).total == 2


def test_d4_a_space_of_ones_own_has_its_constraints(tuned: Any, unbuilt: Engine) -> None:
    """Constraints on the configuration and the call can be part of a `Space`, or be given next to axes."""
    space = atune.Space(block=[16, 32, 64], where=lambda block, n: block <= n)
    for kernel in (tuned(space=space), tuned(space=lambda n: space)):
        assert kernel.tune(32).total == 2
    assert tuned(shift, {"block": [16, 32, 64]}, where=lambda block, n: block <= n).tune(torch.zeros(16)).total == 1
    with pytest.raises(SpaceError, match="give the constraints to the Space"):
        tuned(space=space, where=lambda block: True)
    for wrong in ("block", 3):
        with pytest.raises(SpaceError, match="space: give axes"):
            tuned(space=wrong)


def test_d5_the_grid_follows_the_configuration() -> None:
    """A kernel may compute its launch grid from the values of a configuration."""
    launches = [elaborate(scale, {"n": 256}, {"block": block}).body.block.body for block in (16, 64)]
    assert [int(launch.extent) for launch in launches] == [16, 4]


def test_d6_names_of_the_configuration_are_constants_of_the_kernel() -> None:
    """Inside the kernel, the values of a configuration are constants."""
    assert "for i in range(16)" in str(elaborate(scale, {"n": 256}, {"block": 16, "factor": 3}))


def test_d7_a_decorator_without_a_space_is_refused() -> None:
    """A decorator without a space is refused where it is written, with advice on how to give a space."""
    bare: Any = atune.autotune
    with pytest.raises(SpaceError, match=r"autotune: give a space, such as @atune\.autotune\(space={"):
        bare(scale_jit)


HINTED = workload(atune.Space(occupancy=[None, 2], num_ctas=[None, 4]))


def test_d8_occupancy_and_num_ctas_are_hints_for_the_launch(tmp_path: Path) -> None:
    """`occupancy` and `num_ctas` are launch hints, unless a kernel has such parameters. None means no hint."""
    with session_of(FileRef(__file__, "HINTED"), tmp_path) as candidates:
        blobs = [msgspec.msgpack.decode(lower(candidate).blob, type=Blob) for candidate in candidates]
    bounds = ["__launch_bounds__(128, 2)" in blob.source for blob in blobs]
    assert bounds == [False, False, True, True], "the second axis varies fastest"
    assert ["cluster_dims" in blob.device for blob in blobs] == [False, True, False, True]
    assert describe(HINTED).default_config == {"occupancy": None, "num_ctas": None}
    assert describe(workload(atune.Space(occupancy=[2]))).baseline == {"occupancy": None}
    refused = {
        "num_ctas: the target sm_80 does not support it; set the cluster's size in the kernel": (
            Target("cuda", "sm_80"),
            1,
        ),
        "occupancy: the target c does not support it; give the kernel a parameter of that name": (
            Target("c"),
            2,
        ),
    }
    for message, (target, index) in refused.items():
        with session_of(FileRef(__file__, "HINTED"), tmp_path, target), pytest.raises(ValueError, match=message):
            lower(candidates[index])
    with pytest.raises(ValueError, match="occupancy: the kernel sets it itself; give the kernel a parameter of that"):
        elaborate(lambda: product(64, 64, 32, 1, occupancy=2), {}, {"occupancy": 3})
    assert describe(atune.Workload(product, {"occupancy": [0, 2]})).default == 0, "it is an argument there"
    with pytest.raises(SpaceError, match="num_ctas must be a number of blocks, 1 or more, or None; got 0"):
        describe(workload(atune.Space(num_ctas=[0])))


def test_d9_a_hint_is_the_same_in_every_configuration(tuned: Any, unbuilt: Engine) -> None:
    """A hint sets an argument, the flags or the passes to one value for all configurations."""
    kernel = tuned(hints={"factor": 3, "compile_flags": ["-O1"], "pass_configs": {"a": 1}, "occupancy": 2})
    kernel.tune(64)
    [(work, options)] = unbuilt.runs
    assert work.arguments == {"n": 64, "factor": 3, "occupancy": 2}
    assert options["compile"].flags == ("-O1",) and work.pass_configs == {"a": 1}


def test_d10_a_hint_may_depend_on_the_target(tuned: Any, unbuilt: Engine) -> None:
    """A hint may be a function of the target, so its value can differ between architectures."""
    hints = {"factor": lambda target: {"c": 3}[target], "compile_flags": lambda target: [f"-D{target}"]}
    tuned(hints=hints).tune(64)
    [(work, options)] = unbuilt.runs
    assert work.arguments == {"n": 64, "factor": 3} and options["compile"].flags == ("-Dc",)
    with pytest.raises(SpaceError, match="compile_flags"):
        tuned(hints={"compile_flags": lambda target: 1}).tune(64)


def test_d11_a_hint_that_is_an_axis_is_refused_at_the_decorator(tuned: Any) -> None:
    """A hint that is also an axis is refused where the decorator is written."""
    for name in ("block", "occupancy"):
        for space in ({name: [1]}, [{name: 1}], atune.Space({name: [1]})):
            with pytest.raises(SpaceError, match=f"'{name}' is both a hint and an axis"):
                tuned(space=space, hints={name: 2})


def test_d12_a_computed_axis_that_is_a_hint_is_refused_at_the_call(tuned: Any) -> None:
    """If a computed space has an axis with the name of a hint, the call is refused."""
    for name in ("block", "occupancy"):
        with pytest.raises(SpaceError, match=f"'{name}' is both a hint and an axis"):
            tuned(space=lambda n, name=name: {name: [1]}, hints={name: 2}).tune(64)


def test_d13_hints_count_in_the_key(tuned: Any, unbuilt: Engine) -> None:
    """The key includes hints: different hints are tuned separately, and equal hints share a result."""
    for n, key in ((64, None), (128, ["n"]), (256, lambda n: n // 64)):
        hits = [tuned(key=key, hints={"factor": value}).tune(n).cache_hit for value in (2, 3, 2)]
        assert hits == [False, False, True]
    assert tuned(hints={"occupancy": 2}).workload_for({"n": 64}).key == {"n": 64, "factor": 1, "occupancy": 2}


@pytest.mark.parametrize(
    "options",
    [{"key": ["factor"]}, {"key": "factor"}, {"key": lambda n, factor=1: factor}, {"do_not_specialize": "n"}],
    ids=["names", "name", "function", "do_not_specialize"],
)
def test_d14_calls_of_one_key_share_a_tuning(options: dict[str, Any], tuned: Any, unbuilt: Engine) -> None:
    """`key=` decides which calls share a tuning. You give names of arguments, or a function of the call."""
    kernel = tuned(**options)
    hits = [kernel.tune(64).cache_hit, kernel.tune(128).cache_hit, kernel.tune(128, factor=2).cache_hit]
    assert hits == [False, True, False]
    # the same holds in another program, whose memory is empty
    again = tuned(**options)
    assert again.tune(4096).cache_hit and len(unbuilt.runs) == 2


def test_d15_the_cache_is_cleared_of_a_kernel_or_a_key(tuned: Any, unbuilt: Engine) -> None:
    """`clear_cache` forgets the results of all kernels, of one kernel, or of one key."""
    kernel, other, buckets = tuned(), tuned(shift), tuned(key=lambda n: n // 64, hints={"factor": 2})

    def hits() -> list[bool]:
        return [kernel.tune(64).cache_hit, kernel.tune(128).cache_hit, other.tune(torch.zeros(64)).cache_hit]

    assert hits() == [False] * 3
    assert kernel.clear_cache(key={"n": 64}) == 1 and hits() == [False, True, True]
    assert atune.clear_cache(kernel, key={"n": 128, "factor": 1}) == 1 and hits() == [True, False, True]
    assert kernel.clear_cache(key={"n": 65}) == kernel.clear_cache(key={"n": 64, "factor": 2}) == 0
    with pytest.raises(UsageError, match="clear_cache: key must be arguments by name"):
        kernel.clear_cache(key=64)
    buckets.tune(64), buckets.tune(130)
    assert buckets.clear_cache(key=1) == 1 and buckets.tune(140).cache_hit and not buckets.tune(70).cache_hit
    assert kernel.clear_cache() == 4, "buckets is the same function"
    assert hits() == [False, False, True]
    assert atune.clear_cache() >= 3 and hits() == [False] * 3


def test_d16_every_argument_that_is_not_tuned_makes_the_key(tuned: Any, unbuilt: Engine) -> None:
    """A second call with the same arguments finds the first call's winner. A call with other arguments is tuned."""
    kernel = tuned()
    assert [kernel.tune(64).cache_hit, kernel.tune(128).cache_hit, kernel.tune(64, 2).cache_hit] == [False] * 3
    assert [kernel.tune(n=64).cache_hit, kernel.tune(64, factor=1).cache_hit] == [True] * 2
    problems = [work.arguments for work, _ in unbuilt.runs]
    assert problems == [{"n": 64, "factor": 1}, {"n": 128, "factor": 1}, {"n": 64, "factor": 2}]


def test_d17_of_many_that_ask_at_once_one_tunes(tuned: Any, unbuilt: Engine, anyio_backend: str) -> None:
    """If several calls have the same key at the same time, one call tunes, and all other calls get a cache hit."""
    unbuilt.seconds = 0.2
    kernel, results = tuned(), list[atune.TuneResult]()

    async def tune() -> None:
        results.append(await kernel.tune_async(64))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(tune)

    anyio.run(main, backend=anyio_backend)
    assert len(unbuilt.runs) == 1
    assert sorted(result.cache_hit for result in results) == [False] + [True] * 49


def test_d18_presets_and_options() -> None:
    """A preset says how thoroughly to tune, and each of its options can be changed."""
    assert tuning_options(None)["benchmark"] == atune.BenchmarkSettings()
    quick = tuning_options("quick")["benchmark"]
    assert quick.n_repeat == PRESETS["quick"]["n_repeat"] and tuning_options("quick")["budget"] == Budget(auto=True)
    found = tuning_options({"preset": "quick", "n_repeat": 9, "workers": 1, "budget": 4})
    assert (found["benchmark"].n_repeat, found["compile"].workers) == (9, 1)
    assert found["budget"] == Budget(candidates=4)
    assert found["benchmark"].n_warmup == quick.n_warmup
    for name in PRESETS:
        tuning_options(name)


def test_d19_setup_check_and_launch_arguments(tuned: Any) -> None:
    """Functions of yours set up inputs, choose the arguments to tune on, and check outputs."""
    result = tuned(shift, setup=ones, check=all_ones).tune(torch.randn(64))
    assert result.measured == 2
    for wrong in ({"check": all_ones}, {"reference": doubled}):
        with pytest.raises(NoWinner, match="gave wrong outputs"):
            tuned(shift, **wrong).tune(torch.randn(64))
    kernel = tuned(shift, reference=plus, tune_on=lambda A: {"A": A[:64].contiguous()})
    A = torch.randn(256)
    assert torch.equal(kernel(A), A + 1)
    assert kernel.tune(A).header.arguments["n"] == 64
    with pytest.raises(UsageError, match="tune_on must return arguments by name"):
        tuned(shift, tune_on=lambda A: A)(A)


@pytest.fixture(scope="module")
def piped() -> tuple[FakeMachine, Run]:
    """Eight candidates, compiled by eight workers at once. The last candidate is the first to be compiled."""
    machine = FakeMachine(8, Script(library_s=0.0, compile_s=lambda config: 9.0 - config["x"]), workers=8)
    return machine, anyio.run(lambda: finish(machine, compile=atune.CompileSettings(group_size=1)))


def test_d20_the_first_is_timed_while_the_others_compile(piped: tuple[FakeMachine, Run]) -> None:
    """The first configuration is timed as soon as it is compiled, while the others still compile."""
    at = dict(zip(map(id, piped[1].events), piped[1].seconds, strict=True))
    built, started = piped[1].of(ArtifactBuilt), piped[1].of(BenchmarkStarted)
    assert at[id(started[0])] == at[id(built[0])] < at[id(built[-1])] / 2


def test_d21_one_process_times_one_at_a_time(piped: tuple[FakeMachine, Run]) -> None:
    """Each device has a process that times one candidate at a time, however many candidates compile meanwhile."""
    assert piped[0].most_at_once["build"] == 8
    assert piped[0].most_at_once["measure"] == 1 and piped[0].starts == {"fake-0": 1}


def cancelled(machine: FakeMachine, journal: Path, built: int = 0) -> list[int]:
    """Cancel a run after one measured candidate, or `built` built candidates. Return the journal's measured indices."""

    async def main() -> None:
        def listen(event: Event) -> None:
            if sum(map(len, machine.groups)) > built if built else isinstance(event, CandidateMeasured):
                scope.cancel()

        with anyio.CancelScope() as scope:
            await atune.tune(machine=machine, journal=journal, on_event=listen)

    anyio.run(main)
    assert machine.running == 0
    return [event.index for event in read(journal) if isinstance(event, CandidateMeasured)]


def test_d22_cancelling_starts_nothing_more(tmp_path: Path) -> None:
    """A cancelled run compiles and measures nothing more."""
    assert len(cancelled(machine := FakeMachine(500, workers=3), tmp_path / "run.jsonl")) == 1
    assert len(machine.lowered) < 100


def test_d23_full_buffers_hold_no_cancellation_up(tmp_path: Path) -> None:
    """Compile workers that wait for a busy device end when the run is cancelled."""
    machine = FakeMachine(600, Script(hangs={0: "measure"}, compile_s=0.001), workers=3, default=0)
    assert cancelled(machine, tmp_path / "run.jsonl", built=ARTIFACTS_PER_DEVICE) == []
    assert machine.cancelled["measure"] == 1


def test_d24_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    """Ctrl-C ends `run` at once: the workers of `run` end, and then `run` raises KeyboardInterrupt."""
    hanging = Script(hangs=dict.fromkeys(range(20), "measure"))
    patient = atune.BenchmarkSettings(benchmark_timeout_s=1e9)
    machine = FakeMachine(20, hanging, benchmark=patient, clock=FakeClock(pace=1.0))
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        atune.run(machine=machine, journal=tmp_path / "j")
    assert time.monotonic() - started < 1.5
    timer.join()
    assert machine.opened == machine.closed == 1 and machine.running == 0
    assert type(read(tmp_path / "j")[-1]).__name__ == "RunInterrupted"
    assert not [t for t in threading.enumerate() if t.name == "atune-run"]


def test_d25_candidates_are_measured_as_their_compiles_end(piped: tuple[FakeMachine, Run]) -> None:
    """Candidates are measured in the order in which they were compiled, but listed in the order of the space."""
    built = [index for event in piped[1].of(ArtifactBuilt) for index in event.indices]
    assert [event.index for event in piped[1].of(CandidateMeasured)] == built == [*reversed(range(8))]
    assert [one.index for one in piped[1].result.records] == [*range(8)]


def test_d26_what_was_measured_before_a_cancellation_is_kept(tmp_path: Path) -> None:
    """Measurements from before a cancellation stay in the journal, and are not repeated."""
    journal, machine = tmp_path / "run.jsonl", FakeMachine(20)
    kept = cancelled(FakeMachine(20), journal)
    assert atune.run(machine=machine, journal=journal).measured == 20
    assert len(kept) == 1 and sorted(kept + machine.measured["fake-0"]) == [*range(20)]


def test_d27_a_program_imports_tilelang_once() -> None:
    """All runs of a program fork their workers from one process, which imports tilelang once."""
    if parked.server is None or parked.server.imports != ", ".join(PRELOAD):
        atune.shutdown()
    atune.run(f"{WORKLOADS}:SCALE", target="c")
    server, events = parked.server, list[Event]()
    atune.run(f"{WORKLOADS}:SLICED", target="c", on_event=events.append)
    assert parked.server is server is not None and server.preload_s is not None
    built = next(e for e in events if isinstance(e, ArtifactBuilt))
    lowered = [e for e in events if isinstance(e, CandidateLowered) and e.mono < built.mono]
    overhead = built.mono - built.seconds - sum(e.seconds for e in lowered)
    started = next(e for e in events if isinstance(e, RunStarted))
    assert max(overhead, started.mono) < server.preload_s / 2  # half of the import's time on this machine


SLOW = Script(lower_s=0.1, compile_s=2.0)


@pytest.mark.parametrize(("total", "budget"), [(2, None), (15, None), (36, 4)])
def test_d28_compiles_run_beside_each_other(total: int, budget: int | None) -> None:
    """Candidates are compiled at the same time. If candidates are few, each candidate gets its own worker."""
    machine, candidates = FakeMachine(total, SLOW, workers=16), budget or total
    run = anyio.run(lambda: finish(machine, strategy="exhaustive", budget=budget))
    assert sorted(map(len, machine.groups)) == [1] * candidates
    assert len({event.worker for event in run.of(ArtifactBuilt)}) == candidates == machine.most_at_once["build"]
    assert machine.compared == []


def test_d29_calls_that_give_the_tunables_are_plain_calls(tuned: Any, engine: Engine) -> None:
    """A call that gives the tunable arguments tunes nothing, and runs the kernel as if it were not decorated."""
    lazy, eager, plain = tuned(scale_jit), tuned(shift), tuned(scale, target="c", out_idx=-1)
    A = torch.randn(64)
    assert torch.equal(lazy(64, 2, block=32)(A), A * 2) and torch.equal(lazy(64, 2, 32)(A), A * 2)
    assert torch.equal(eager(A, 3, block=8), A + 3) and torch.equal(eager(A, 3, block=8), A + 3)
    assert torch.equal(eager.compile(A, block=8)(A), A + 1)
    assert torch.equal(plain.compile(64, 2, block=8)(A), A * 2) and torch.equal(plain(64, 2, block=8)(A), A * 2)
    for ask in (lazy.tune, lazy.best_config):
        with pytest.raises(UsageError, match="'block' is given, so nothing is tuned"):
            ask(64, block=16)
    assert not engine.runs


def test_d30_compiling_beside_measuring_halves_the_time() -> None:
    """A stored run of 288 products took less than half the time of all its compiles and measurements added up."""
    events = read(STORED / "gemm288" / "atune.jsonl")
    steps = [e.seconds for e in events if isinstance(e, (CandidateLowered, ArtifactBuilt, CandidateMeasured))]
    assert len(steps) > 600 and events[-1].mono < sum(steps) / 2


@pytest.mark.parametrize("workers", [1, 16])
def test_d31_one_configuration_is_compiled_and_measured_once(workers: int) -> None:
    """A single configuration needs no pipeline: it is compiled once, and wins without a final timing."""
    machine = FakeMachine(1, SLOW, workers=workers)
    run = anyio.run(lambda: finish(machine))
    assert (machine.lowered, machine.groups, machine.compared, machine.finals) == ([0], [(0,)], [], [])
    assert run.result.artifact is not None and run.result.artifact.plain

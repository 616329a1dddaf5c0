"""Which winner serves a call: the space is asked with the call's sizes, and one that cannot be used is passed over."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from event_streams import Stream
from stand_in_engine import Engine

import atune
from atune.errors import CacheMiss, CompileFailed, NoWinner, SpaceError
from atune.frontends import autotuned
from atune.journal.result import Record, Result
from atune.model.device import DeviceInfo, Target
from atune.workers.messages import Discovery

BLOCKS = [16, 24, 32]
"""The stand-in's winner is the last that the space has."""


def divides(n: int, block: int) -> bool:
    return n % block == 0


def any_arguments(**values: Any) -> bool:
    return divides(values["n"], values["block"])


def one_key(*args: Any, **kwargs: Any) -> int:
    return 1


AXES = {"block": BLOCKS}
SHARED = {"key function": {"key": one_key}, "key names": {"key": ["factor"]}, "left out": {"do_not_specialize": "n"}}
ASKING: dict[str, dict[str, Any]] = {
    "where": {"space": AXES, "where": divides},
    "any arguments": {"space": AXES, "where": any_arguments},
    "a default of its own": {"space": AXES, "where": lambda block, n=96, other=3: n % block == 0},
    "computed axis": {"space": atune.Space(block=lambda n: [block for block in BLOCKS if n % block == 0])},
    "function of the call": {"space": lambda n, **_: [{"block": b} for b in BLOCKS if n % b == 0]},
}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_a_shared_winner_serves_the_sizes_that_the_space_has_it_for(
    tuned: Any, engine: Engine, shared: dict[str, Any], asking: dict[str, Any]
) -> None:
    kernel = tuned(**asking, **shared)
    found = {n: kernel.best_config(n)["block"] for n in (96, 192, 48, 72, 96)}
    assert found == {96: 32, 192: 32, 48: 24, 72: 24} and len(engine.runs) == 1, "the next best needs no tuning"
    for n in (96, 48):
        assert kernel.best_config(n, factor=1) == {"block": found[n]}
    with pytest.raises(SpaceError, match=r"(?i)space is empty(: no configuration satisfies .* for n=50|$|: axis)"):
        kernel.best_config(50)
    assert len(engine.runs) == 1
    whole = kernel.tune(48)  # a whole tuning is asked for, and that of another size does not have this winner
    assert whole.best_config == {"block": 24} and whole.header.arguments["n"] == 48 and len(engine.runs) == 2
    assert kernel.tune(48).cache_hit and kernel.best_config(96) == {"block": 32} and len(engine.runs) == 2


MISSES: dict[str, Any] = {"tune": {"block": 32}, "default": {"block": 16}, "error": CacheMiss}


@pytest.mark.parametrize("on_miss", MISSES)
def test_where_nothing_that_was_measured_serves_on_miss_decides(tuned: Any, engine: Engine, on_miss: Any) -> None:
    kernel = tuned(space=AXES, where=lambda n, block: block == n or block == 16 > n, key=one_key, default={"block": 16})
    assert kernel.best_config(24) == {"block": 24}
    expected = MISSES[on_miss]
    if on_miss == "error":
        with pytest.raises(CacheMiss, match=r"no result serves n=32, factor=1 for"):
            kernel.best_config(32, on_miss=on_miss)
    elif on_miss == "default":
        with pytest.warns(RuntimeWarning, match="serves n=32.* default configuration, which where= refuses, is used"):
            assert kernel.best_config(32, on_miss=on_miss) == expected
    else:
        assert kernel.best_config(32) == expected and len(engine.runs) == 2
        assert kernel.best_config(32) == expected and kernel.best_config(24) == {"block": 24}
    assert len(engine.runs) == (2 if on_miss == "tune" else 1)


@pytest.mark.parametrize("on_miss", ["tune", "pick", "default", "error"])
def test_where_the_space_is_empty_for_the_call_no_on_miss_helps(tuned: Any, engine: Engine, on_miss: Any) -> None:
    kernel = tuned(space=AXES, where=divides, key=one_key, on_miss=on_miss)
    kernel.tune(96)
    with pytest.raises(SpaceError, match="Space is empty: no configuration satisfies the constraints for n=50"):
        kernel.best_config(50)


def test_a_constraint_that_raises_for_the_call_s_size_says_so(tuned: Any, engine: Engine) -> None:
    kernel = tuned(space=AXES, where=lambda n, block: 96 % (n - 50) == 0 or block > 0, key=one_key)
    assert kernel.best_config(96) == {"block": 32}
    with pytest.raises(SpaceError, match=r"n=50, factor=1: Space: constraint on {'n': 50, 'block': 32} raised Zero"):
        kernel.best_config(50)


def test_what_tune_on_tuned_is_asked_for_with_the_sizes_of_the_call(tuned: Any, engine: Engine) -> None:
    kernel = tuned(space=AXES, where=divides, tune_on=lambda n, factor=1: {"n": 96})
    assert [kernel.best_config(n)["block"] for n in (96, 48, 192)] == [32, 24, 32] and len(engine.runs) == 1
    only = tuned(space=AXES, where=lambda n, block: n == block, tune_on=lambda n, factor=1: {"n": 32})
    for _ in range(2):
        assert only.best_config(24) == {"block": 24}  # tuned for itself, once
        assert [workload.arguments["n"] for workload, _ in engine.runs] == [96, 32, 24]


# Winners that cannot be used


class Compiler:
    """Stands in for the compiler and the loader: configurations of the blocks `bad` go wrong in one way."""

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.error: Callable[[Any], Exception] = RuntimeError
        self.tried: list[int] = []

    def build(self, workload: Any, target: Any, settings: Any, use: Any) -> Any:
        [config] = workload.space.points({}).walk()
        self.tried.append(config["block"])
        if config["block"] in self.bad:
            raise self.error(config)
        return SimpleNamespace(config=config, prim_func=None, get_kernel_source=lambda: "")


def failed(config: Any, kind: str, message: str) -> Record:
    return Record(index=0, key="k", config=config, status="failed", kind=kind, message=message)


def refused(config: Any) -> Exception:
    message = "error: #error this compiler cannot"
    return CompileFailed(f"1 of 1 configurations failed:\n  {message}", [failed(config, "compile", message)])


def not_lowered(config: Any) -> Exception:
    return CompileFailed("1 of 1 failed to lower", [failed(config, "lower", "ValueError: no such size")])


def not_loaded(config: Any) -> Exception:
    return OSError("libgone.so.1: cannot open shared object file")


FAILURES = {"compiler refuses": refused, "lowering raises": not_lowered, "load fails": not_loaded}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(autotuned, "with_library", found.build)
    return found


def cached(tuned: Any, tmp_path: Path, compiler: Compiler) -> Callable[[], Any]:
    tuned(space=AXES).tune(96)
    kernel = tuned(space=AXES)
    return lambda: kernel.compile(96)


def shipped(tuned: Any, tmp_path: Path, compiler: Compiler) -> Callable[[], Any]:
    for block in (24, 32):  # two results for the size, the latter of which is preferred
        tuner = tuned(space=[{"block": block}], default={"block": block}, cache=tmp_path / f"of {block}")
        tuner.tune(96)
        (tmp_path / f"{block}.json").write_bytes(tuner.options.cache.export())
    files = [tmp_path / "32.json", tmp_path / "24.json"]
    kernel = tuned(space=AXES, cache=tmp_path / "empty", shipped=files)
    return lambda: kernel.compile(96)


def bucket(tuned: Any, tmp_path: Path, compiler: Compiler) -> Callable[[], Any]:
    kernel, bad = tuned(space=AXES, key=one_key), compiler.bad
    compiler.bad = set()
    assert kernel.compile(192).config == {"block": 32}
    compiler.bad = bad
    return lambda: kernel.compile(96)


KEPT = {"result cache": cached, "shipped file": shipped, "bucket": bucket}


def keep_winner(tuned: Any, compiler: Compiler, space: Any) -> None:
    tuned(space=space).tune(96)
    compiler.tried.clear()


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_kept_winner_that_cannot_be_used_is_said_once_and_the_next_best_used(
    tuned: Any, engine: Engine, compiler: Compiler, tmp_path: Path, kept: Any, failure: Any
) -> None:
    call = kept(tuned, tmp_path, compiler)
    runs, compiler.bad, compiler.error = len(engine.runs), {32}, failure
    with pytest.warns(RuntimeWarning, match=r"winner block=32 cannot be used for n=96.*: .*(cannot|no such)") as warned:
        assert call().config == {"block": 24}
    assert len(warned) == 1 and len(engine.runs) == runs
    with warnings.catch_warnings(action="error"):
        assert call().config == {"block": 24}
    assert compiler.tried.count(32) <= 2 and len(engine.runs) == runs


@pytest.mark.parametrize("on_miss", ["tune", "default", "error"])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_where_no_kept_one_can_be_used_on_miss_decides_and_nothing_is_tuned_for_ever(
    tuned: Any, engine: Engine, compiler: Compiler, on_miss: Any, failure: Any
) -> None:
    keep_winner(tuned, compiler, AXES)
    kernel = tuned(space=AXES, on_miss=on_miss, default={"block": 8})
    compiler.bad, compiler.error = set(BLOCKS), failure
    raised = CacheMiss if on_miss == "error" else type(failure({"block": 32}))
    for call in range(4):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if on_miss == "default":
                assert kernel.compile(96).config == {"block": 8}
            else:
                with pytest.raises(raised, match="no result for .* can be used" if on_miss == "error" else ""):
                    kernel.compile(96)
        said = [str(one.message) for one in warned if "cannot be used for n=96" in str(one.message)]
        assert len(said) == (3 if call == 0 else 0), "each configuration is named once"
    assert [compiler.tried.count(block) for block in BLOCKS] == [1, 1, 1]
    assert len(engine.runs) == (2 if on_miss == "tune" else 1)
    compiler.bad = set()
    if on_miss == "tune":
        kernel.clear_cache()  # the way out
        assert kernel.compile(96).config == {"block": 32}


def test_a_tuning_that_fails_where_the_winner_cannot_be_used_is_not_repeated(
    tuned: Any, engine: Engine, compiler: Compiler
) -> None:
    keep_winner(tuned, compiler, AXES)
    compiler.bad, compiler.error = set(BLOCKS), refused
    kernel = tuned(space=AXES)
    engine.error = NoWinner("none worked", Result.from_events(Stream().events))
    with pytest.warns(RuntimeWarning), pytest.raises(NoWinner):
        kernel.compile(96)
    for _ in range(2):
        with pytest.raises(CompileFailed):
            kernel.compile(96)
    assert len(engine.runs) == 2


def test_what_a_new_tuning_finds_is_used_and_kept(tuned: Any, engine: Engine, compiler: Compiler) -> None:
    """More fail than are tried. Another program then finds the winner of the new tuning."""
    many = {"block": [*range(1, 7)]}
    keep_winner(tuned, compiler, many)
    compiler.bad, compiler.error = {3, 4, 5, 6}, refused
    engine.refuses = compiler.bad
    kernel = tuned(space=many)
    with pytest.warns(RuntimeWarning) as warned:
        assert kernel.compile(96).config == {"block": 2}
    assert len(warned) == 4 and compiler.tried == [6, 5, 4, 2] and len(engine.runs) == 2
    with warnings.catch_warnings(action="error"):
        assert tuned(space=many).compile(96).config == {"block": 2}
    assert len(engine.runs) == 2


# ---- what the prior chooses without measuring


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Discovery(Target("cuda", "sm_90a"), (DeviceInfo("0", "NVIDIA H100 80GB HBM3", arch="sm_90a"),))
    monkeypatch.setattr("atune.stages.gpu.find_devices", lambda target, names: found)
    monkeypatch.setattr("atune.frontends.tuner._targets", {})


PICKING: list[dict[str, Any]] = [{"tuning": "pick"}, {"tuning": {"preset": "pick", "seed": 1}}, {"on_miss": "pick"}]


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("options", PICKING, ids=str)
def test_a_call_takes_the_prior_s_first_choice_until_something_is_tuned(
    tuned: Any, engine: Engine, compiler: Compiler, options: dict[str, Any]
) -> None:
    kernel = tuned(space=AXES, target="sm_90a", **options)
    choices = [one.config["block"] for one in atune.pick(kernel.workload_for({"n": 96}), 3, "H100").choices]
    assert sorted(choices) == BLOCKS
    assert kernel.compile(96).config == {"block": choices[0]} and compiler.tried == choices[:1] and engine.runs == []
    found = kernel.tune(96)
    assert kernel.compile(96).config == found.best_config and len(engine.runs) == 1
    again = tuned(space=AXES, target="sm_90a", **options)
    assert again.best_config(96) == found.best_config and len(engine.runs) == 1, "what is kept is used"


@pytest.mark.usefixtures("h100")
def test_a_choice_that_cannot_be_used_is_passed_over_for_the_next_and_at_last_for_the_default(
    tuned: Any, engine: Engine, compiler: Compiler
) -> None:
    kernel = tuned(space=AXES, target="sm_90a", tuning="pick", default={"block": 8})
    choices = [one.config["block"] for one in atune.pick(kernel.workload_for({"n": 96}), 3, "H100").choices]
    compiler.bad, compiler.error = {*choices[:1]}, refused
    with pytest.warns(RuntimeWarning, match="cannot be used for n=96"):
        assert kernel.compile(96).config == {"block": choices[1]}
    compiler.bad = {*choices}
    kernel.forget()
    with pytest.warns(RuntimeWarning, match="cannot be used for n=96"):
        assert kernel.compile(96).config == {"block": 8}
    assert engine.runs == []


def test_where_the_prior_knows_nothing_a_call_says_so_once_and_takes_the_default(tuned: Any, engine: Engine) -> None:
    kernel = tuned(space=AXES, tuning="pick", default={"block": 16})
    with pytest.warns(RuntimeWarning, match="knows nothing about this device: the default is chosen") as warned:
        assert [kernel.best_config(96), kernel.best_config(96)] == [{"block": 16}] * 2
    assert len(warned) == 1 and engine.runs == []
    assert tuned(space=AXES, tuning="pick", on_miss="error", default={"block": 16}).options.on_miss == "error"


@pytest.mark.usefixtures("h100", "engine")
def test_the_prior_is_asked_without_the_inputs(tuned: Any) -> None:
    held = threading.Lock()  # which no worker could be sent
    kernel = tuned(space=AXES, target="sm_90a", tuning="pick", cache=False, inputs=lambda: [held])
    assert kernel.best_config(96)["block"] in BLOCKS

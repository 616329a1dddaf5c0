"""Options: each is defined once. A wrong one is refused at once and says what was meant; `help` shows all."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import atune
from atune.engine.strategy import STRATEGIES
from atune.frontends.cli.commands import CommandOptions, help_of
from atune.frontends.decorator_options import AutotuneOptions
from atune.frontends.run_options import RunOptions, StrategyName, TargetName, TuneOptions
from atune.frontends.tuner import RunPlan
from atune.model.device import parse_target
from atune.model.options import MEANT, options_of
from atune.reporting.summary import summary
from atune.testing import FakeMachine
from atune.workload.workload_options import WorkloadOptions


def kernel(N: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


WORK = atune.Workload(kernel, [{"block": 1}], arguments={"N": 1})


async def tuned(**options: Any) -> atune.TuneResult:
    return await atune.tune(WORK, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: atune.run(WORK, targt="c"), "run: there is no option 'targt'; did you mean 'target'?"),
        (lambda: atune.run(WORK, warmup=3), "did you mean benchmark=BenchmarkSettings(n_warmup=…) or "),
        (lambda: atune.run(WORK, ref=kernel), "did you mean atune.Workload(…, reference=…)?"),
        (lambda: atune.run(WORK, early_config_prune=print), "did you mean atune.Space(…, where=…)?"),
        (lambda: atune.run(WORK, quantiles=[0.5]), "there is no option 'quantiles'; known are target, devices,"),
        (lambda: atune.Tuner(WORK, budgte=3), "Tuner: there is no option 'budgte'; did you mean 'budget'?"),
        (lambda: atune.run_set(WORK, [{"N": 1}], budgt=3), "tune_set: there is no option 'budgt'; did you mean"),
        (lambda: atune.run_resume("j", journl="x"), "run_resume: there is no option 'journl'"),
        (lambda: atune.Workload(kernel, [], configs=[{"block": 1}]), "no option 'configs'; did you mean 'space'?"),
        (lambda: atune.Workload(kernel, [{"block": 1}], target="c"), "did you mean atune.tune(…, target=…)?"),
        (lambda: atune.autotune(space=[{"block": 1}], warmup=3),
         'autotune: there is no option \'warmup\'; did you mean tuning={"n_warmup": …} or tuning={"warmup_ms": …}?'),
        (lambda: atune.autotune(space=[{"block": 1}], tuning={"rep": 3}), "no option 'rep'; did you mean 'n_repeat'"),
        (lambda: atune.compile_all(kernel, [{"block": 1}], flags=[]), "did you mean compile=CompileSettings(flags=…)?"),
        (lambda: atune.CompileSettings(worker=3), "CompileSettings: there is no option 'worker'; did you mean"),
        (lambda: atune.BenchmarkSettings(configs=[]), "did you mean @atune.autotune(space=…)?"),
    ],
)  # fmt: skip
def test_a_wrong_keyword_says_what_was_meant(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(atune.errors.UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)  # as whoever checks for Python's own error expects


@pytest.mark.anyio
async def test_a_wrong_keyword_is_refused_where_it_is_awaited_and_before_a_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(atune.errors.UsageError, match="tune: there is no option 'strateggy'; did you mean 'strategy'"):
        await tuned(strateggy="random")
    journal = tmp_path / "run.jsonl"
    await atune.tune(machine=FakeMachine(), journal=journal)
    with pytest.raises(atune.errors.UsageError, match="resume: there is no option 'budgt'; did you mean 'budget'"):
        await atune.resume(journal, budgt=3)  # type: ignore[call-arg]  # also where the run is finished


GROUPS = (
    TuneOptions,
    WorkloadOptions,
    AutotuneOptions,
    atune.CompileSettings,
    atune.BenchmarkSettings,
)


def test_every_other_name_that_is_understood_leads_to_an_option() -> None:
    """A hint that is out of date would lead nowhere."""
    names = {name for group in GROUPS for name in group.__annotations__}
    names |= {"space", *CommandOptions.__annotations__, *inspect.signature(atune.compile_all).parameters}
    assert {option for options in MEANT.values() for option in options} <= names


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_every_option_says_what_it_is(group: Any) -> None:
    """In sentences, the first of which is the help at the command line; and in words what its value must be."""
    options = options_of(group)
    assert options.keys() == group.__annotations__.keys()
    for name, option in options.items():
        assert re.fullmatch(r"[A-Z`].*\.", option.doc, re.DOTALL), name
        assert not option.flag or len(help_of(option)) < 250
        option.checked("", option.default)
        plain = option.must or option.kind in (bool, int, float, bool | None, int | None, float | None)
        if plain and option.check is None:
            with pytest.raises(atune.errors.UsageError, match=rf"^here: {name} must"):
                option.checked(f"here: {name}", object())


def test_all_ways_to_tune_take_the_same_options() -> None:
    assert TuneOptions.__annotations__.keys() - RunOptions.__annotations__.keys() == {
        "journal",
        "cached",
        "on_miss",
        "warm",
    }
    for function in (atune.Tuner, atune.tune, atune.run):
        assert list(inspect.signature(function).parameters) == ["workload", *TuneOptions.__annotations__]
    for function in (atune.resume, atune.run_resume):
        assert list(inspect.signature(function).parameters) == ["journal", "workload", *RunOptions.__annotations__]


def test_help_of_a_function_shows_its_options() -> None:
    """With their defaults, and what each is."""
    for function, group in (
        (atune.tune, TuneOptions), (atune.run, TuneOptions), (atune.resume, RunOptions),
        (atune.autotune, AutotuneOptions), (atune.Workload, WorkloadOptions),
    ):  # fmt: skip
        shown = " ".join(pydoc.plain(pydoc.render_doc(function)).replace("|", " ").split())
        for name, option in options_of(group).items():
            assert f"{name} {' '.join(option.doc.split())}" in shown
    assert inspect.signature(atune.run).parameters["seed"].default == 0
    assert atune.Workload.__init__.__doc__ == atune.Workload.__doc__
    assert "`workers`: Number of compile processes." in (atune.CompileSettings.__doc__ or "")


def test_an_editor_completes_the_strategies_that_there_are() -> None:
    assert get_args(StrategyName) == STRATEGIES
    assert [parse_target(name) is None for name in get_args(TargetName)] == [True, False, False]


@pytest.mark.anyio
async def test_a_run_goes_on_by_a_blocking_call(tmp_path: Path) -> None:
    """Also inside a running event loop, as `run` does."""
    journal = tmp_path / "run.jsonl"
    first = await atune.tune(machine=FakeMachine(8), journal=journal, budget=3)
    assert first.remaining == 5
    seen: list[atune.events.Event] = []
    result = atune.run_resume(journal, machine=FakeMachine(8), budget=8, on_event=seen.append)
    assert result.measured == 8 and not result.remaining
    assert [type(event) for event in seen].count(atune.events.RunStarted) == 1
    assert any(isinstance(event, atune.events.RunResumed) for event in seen)
    assert summary(atune.run_resume(journal, budget=8)) == summary(result)  # finished: needs no workload


def test_a_target_of_none_is_the_machines_own() -> None:
    assert RunPlan.of("tune", {"target": None}).target == "auto"

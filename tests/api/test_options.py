"""Options by name: a wrong one is refused at once and says what was meant; every way to tune has the same ones."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import atune
from atune.api.options import RunOptions, TuneOptions
from atune.decorator.options import AutotuneOptions
from atune.model.options import MEANT
from atune.reporting.summary import summary
from atune.testing import FakeMachine
from atune.workload.workload import _OF_TUNE


def kernel(N: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


WORK = atune.Workload(kernel, [{"block": 1}], arguments={"N": 1})


async def tuned(**options: Any) -> atune.TuneResult:
    return await atune.tune(WORK, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: atune.run(WORK, targt="c"), "run: there is no option 'targt'; did you mean 'target'?"),
        (lambda: atune.run(WORK, device=[0]), "did you mean 'devices'?"),
        (lambda: atune.run(WORK, warmup=3), "did you mean benchmark=BenchmarkSettings(n_warmup=…) or "),
        (lambda: atune.run(WORK, workers=3), "did you mean compile=CompileSettings(workers=…)?"),
        (lambda: atune.run(WORK, ref=kernel), "did you mean atune.Workload(…, reference=…)?"),
        (lambda: atune.run(WORK, trials=9), "run: there is no option 'trials'; did you mean 'budget'?"),
        (lambda: atune.run(WORK, key="M"), "did you mean @atune.autotune(key=…)?"),
        (lambda: atune.run(WORK, early_config_prune=print), "did you mean atune.Space(…, where=…)?"),
        (lambda: atune.run(WORK, quantiles=[0.5]), "there is no option 'quantiles'; there is target, devices,"),
        (lambda: atune.run(WORK, zzz=1), "there is no option 'zzz'; there is target, devices, strategy,"),
        (lambda: atune.Tuner(WORK, budgte=3), "Tuner: there is no option 'budgte'; did you mean 'budget'?"),
        (lambda: atune.run_resume("j", journl="x"), "run_resume: there is no option 'journl'"),
        (lambda: atune.Workload(kernel, configs=[{"block": 1}]), "no option 'configs'; did you mean 'space'?"),
        (lambda: atune.Workload(kernel, [{"block": 1}], ref=kernel), "did you mean 'reference'?"),
        (lambda: atune.Workload(kernel, [{"block": 1}], verify=kernel), "did you mean 'check'?"),
        (lambda: atune.Workload(kernel, [{"block": 1}], target="c"), "did you mean atune.tune(…, target=…)?"),
        (lambda: atune.autotune(kernel, configs=[{"block": 1}]), "no option 'configs'; did you mean 'space'?"),
        (lambda: atune.autotune(space=[{"block": 1}], ref=kernel), "did you mean 'reference'?"),
        (lambda: atune.autotune(space=[{"block": 1}], warmup=3),
         'autotune: there is no option \'warmup\'; did you mean tuning={"n_warmup": …} or tuning={"warmup_ms": …}?'),
        (lambda: atune.autotune(space=[{"block": 1}], tuning={"rep": 3}), "no option 'rep'; did you mean 'n_repeat'"),
        (lambda: atune.compile_all(kernel, space=[{"block": 1}]), "no option 'space'; did you mean 'configs'?"),
        (lambda: atune.CompileSettings(worker=3), "CompileSettings: there is no option 'worker'; did you mean"),
        (lambda: atune.BenchmarkSettings(timeout=3), "did you mean 'benchmark_timeout_s'?"),
        (lambda: atune.CompileSettings(n_warmup=3), "did you mean BenchmarkSettings(n_warmup=…)?"),
        (lambda: atune.BenchmarkSettings(configs=[]), "there is no option 'configs'; there is n_warmup, n_repeat,"),
        (lambda: atune.Budget(candidate=3), "Budget: there is no option 'candidate'; did you mean 'candidates'?"),
    ],
)  # fmt: skip
def test_a_wrong_keyword_says_what_was_meant(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(atune.UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)  # as whoever checks for Python's own error expects


@pytest.mark.anyio
async def test_a_wrong_keyword_is_refused_where_it_is_awaited_and_before_a_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(atune.UsageError, match="tune: there is no option 'strateggy'; did you mean 'strategy'"):
        await tuned(strateggy="random")
    journal = tmp_path / "run.jsonl"
    await atune.tune(machine=FakeMachine(), journal=journal)
    with pytest.raises(atune.UsageError, match="resume: there is no option 'budgt'; did you mean 'budget'"):
        await atune.resume(journal, budgt=3)  # type: ignore[call-arg]  # also where the run is finished


def test_every_other_name_that_is_understood_leads_to_an_option() -> None:
    """A hint that is out of date would lead nowhere."""
    names = {
        *TuneOptions.__annotations__,
        *AutotuneOptions.__annotations__,
        *inspect.signature(atune.Workload).parameters,
    }
    names |= {*atune.CompileSettings.__struct_fields__, *atune.BenchmarkSettings.__struct_fields__}
    names |= {*inspect.signature(atune.compile_all).parameters}
    assert {option for options in MEANT.values() for option in options} <= names
    assert sorted(_OF_TUNE) == sorted(TuneOptions.__annotations__)


def test_all_ways_to_tune_take_the_same_options() -> None:
    """`Tuner` spells its options out; those of the others are typed once."""
    hints = get_type_hints(atune.Tuner.__init__)
    assert {**get_type_hints(TuneOptions)} == {n: t for n, t in hints.items() if n not in ("workload", "return")}
    assert TuneOptions.__annotations__.keys() - RunOptions.__annotations__.keys() == {"journal", "warm"}
    for function in (atune.tune, atune.run):
        assert inspect.signature(function).parameters["options"].annotation == "Unpack[TuneOptions]"
    for function in (atune.resume, atune.run_resume):
        assert inspect.signature(function).parameters["options"].annotation == "Unpack[RunOptions]"


def test_help_of_a_function_shows_its_options() -> None:
    """Refusing wrong names takes nothing from the signatures that editors and `help` show."""
    assert "reference" in inspect.signature(atune.Workload).parameters
    assert list(inspect.signature(atune.Tuner).parameters)[:3] == ["workload", "target", "devices"]
    assert all(name in (atune.autotune.__doc__ or "") for name in AutotuneOptions.__annotations__)
    assert all(name in (atune.tune.__doc__ or "") for name in TuneOptions.__annotations__)


def test_settings_are_copied_and_decoded_as_any_struct() -> None:
    settings = atune.CompileSettings(workers=2, flags=("-O1",))
    assert copy.copy(settings) == pickle.loads(pickle.dumps(settings)) == settings
    assert msgspec.convert(msgspec.to_builtins(settings), atune.CompileSettings) == settings
    assert msgspec.json.decode(msgspec.json.encode(settings), type=atune.CompileSettings) == settings


@pytest.mark.anyio
async def test_a_run_goes_on_by_a_blocking_call(tmp_path: Path) -> None:
    """Also inside a running event loop, as `run` does."""
    journal = tmp_path / "run.jsonl"
    first = await atune.tune(machine=FakeMachine(8), journal=journal, budget=3)
    assert first.remaining == 5
    seen: list[atune.Event] = []
    result = atune.run_resume(journal, machine=FakeMachine(8), budget=8, on_event=seen.append)
    assert result.measured == 8 and not result.remaining
    assert [type(event) for event in seen].count(atune.RunStarted) == 1
    assert any(isinstance(event, atune.RunResumed) for event in seen)
    assert summary(atune.run_resume(journal, budget=8)) == summary(result)  # finished: needs no workload

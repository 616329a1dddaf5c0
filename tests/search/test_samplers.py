"""Optuna's samplers as strategies: each candidate once, the same asks for the same tells, and clear refusals."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from atune import TuneResult, UsageError, resume, tune
from atune.cli.main import main
from atune.journal.events import CandidateProposed
from atune.journal.reader import read
from atune.model.candidate import Config
from atune.search import choosing, samplers
from atune.search.choosing import check_given, make_strategy
from atune.search.interface import DUPLICATE, Searched
from atune.search.samplers import Optuna
from atune.testing import FakeMachine, Script

pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'atune[optuna]'")

CONFIGS: dict[int, Config] = {
    10 * n: {"tile": 16 << t, "stages": s, "order": order}
    for n, (t, s, order) in enumerate(
        (t, s, order) for t in range(6) for s in range(5) for order in ("row", "column", None) if t * s < 18
    )
}


def latency(config: Config) -> float | None:
    if config["tile"] == 512:
        return None
    far = abs(config["tile"].bit_length() - 8) + abs(config["stages"] - 3)
    return 1.0 + 0.3 * far + 0.2 * (config["order"] != "column")


def told(index: int) -> tuple[int, float | None, str]:
    found = latency(CONFIGS[index])
    return index, found, "" if found is not None else "timeout"


def play(strategy: Any, tries: int, behind: int = 3) -> list[tuple[str, Any]]:
    """Ask and tell with `behind` candidates outstanding, and return each call."""
    calls: list[tuple[str, Any]] = []
    outstanding: list[int] = []
    for _ in range(tries):
        if (index := strategy.ask()) is None:
            break
        calls.append(("ask", index))
        outstanding.append(index)
        if len(outstanding) > behind:
            calls.append(("tell", told(outstanding.pop(0))))
            strategy.tell(*calls[-1][1])
    return calls


def asked(calls: list[tuple[str, Any]]) -> list[int]:
    return [what for call, what in calls if call == "ask"]


@pytest.mark.parametrize("name", ["optuna", "optuna:RandomSampler", "optuna:NSGAIISampler"])
def test_every_candidate_is_asked_for_once(name: str) -> None:
    assert sorted(asked(play(make_strategy(name, Searched(CONFIGS)), 10_000))) == sorted(CONFIGS)


def test_same_seed_and_same_tells_ask_the_same_also_told_the_past_first() -> None:
    whole = play(make_strategy("optuna", Searched(CONFIGS, 5, 40)), 40)
    assert whole != play(make_strategy("optuna", Searched(CONFIGS, 6, 40)), 40)
    again = make_strategy("optuna", Searched(CONFIGS, 5, 40))
    for call, what in whole:
        if call == "ask":
            assert again.ask() == what
        else:
            again.tell(*what)


def test_a_sampler_finds_the_best_of_a_smooth_space_in_half_of_it() -> None:
    best = min((n for n in CONFIGS if latency(CONFIGS[n])), key=lambda n: latency(CONFIGS[n]) or 0)
    tries = [asked(play(make_strategy("optuna", Searched(CONFIGS, seed)), 40)) for seed in range(6)]
    assert sum(best in each for each in tries) >= 5


def test_the_nearest_candidate_that_is_left_is_taken() -> None:
    strategy = Optuna(Searched({0: {"x": 1, "y": "a"}, 7: {"x": 2, "y": "a"}, 8: {"x": 8, "y": "b"}}))
    assert strategy._nearest([2, 1]) == 2 and strategy._nearest([1, 0]) == 1
    strategy.asked[2] = None
    assert strategy._nearest([2, 0]) == 1


def test_the_sampler_is_told_where_a_candidate_stands_and_failures_as_the_slowest() -> None:
    strategy = Optuna(Searched(CONFIGS))
    first, second, third, fourth = (strategy.ask() for _ in range(4))
    assert None not in (first, second, third, fourth)
    strategy.tell(first or 0, None, "mismatch")
    assert not strategy._study.get_trials(states=(strategy._optuna.trial.TrialState.COMPLETE,))
    strategy.tell(second or 0, 4.0)
    strategy.tell(third or 0, 2.0)
    strategy.tell(fourth or 0, None, DUPLICATE)
    complete = strategy._study.get_trials(states=(strategy._optuna.trial.TrialState.COMPLETE,))
    assert [round(2.718281828**trial.value, 3) for trial in complete] == [4.0, 4.0, 2.0]
    places = [tuple(trial.params.values()) for trial in complete]
    positions = [list(CONFIGS).index(index or 0) for index in (second, first, third)]
    assert places == [strategy.encoding.places[position] for position in positions]


def test_a_prior_and_advice_come_before_the_sampler() -> None:
    prior = {index: float(n) for n, index in enumerate(CONFIGS)}
    strategy = make_strategy("optuna", Searched(CONFIGS, prior=prior, elsewhere={300: 1.0}))
    assert [strategy.ask() for _ in range(3)] == [300, 0, 10]


@pytest.mark.parametrize("configs", [{}, {7: {}}, {7: {"x": 1}}, {0: {"x": 1}, 1: {"x": None}, 2: {"y": (1, 2)}}])
def test_spaces_with_next_to_nothing_to_choose_from(configs: dict[int, Config]) -> None:
    strategy = make_strategy("optuna", Searched(configs))
    found = []
    while (index := strategy.ask()) is not None:
        found.append(index)
        strategy.tell(index, None, "compile")
    assert sorted(found) == sorted(configs)


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_every_seed_that_other_strategies_take_is_taken(seed: int) -> None:
    configs = {index: CONFIGS[index] for index in list(CONFIGS)[:20]}
    first, again = (Optuna(Searched(configs=configs, seed=seed)).ask() for _ in range(2))
    assert first in configs and first == again


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("optuna:BestSampler", "Optuna has no sampler 'BestSampler'; there is BruteForceSampler, CmaEsSampler"),
        ("optuna:GridSampler", "cannot be made with a seed alone .*TypeError"),
    ],
)
def test_a_sampler_that_cannot_be_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=words):
        check_given(name, pipeline=True)
    assert main(["simulate", "none", "--strategy", name]) == 2
    assert name in capsys.readouterr().err


def test_a_sampler_that_lacks_a_library_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's samplers import what they need when they first propose."""

    def lacking(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'cmaes'")

    monkeypatch.setattr("optuna.samplers.NSGAIISampler.sample_relative", lacking)
    with pytest.raises(UsageError, match="needs a library that is not installed: No module named 'cmaes'"):
        check_given("optuna:NSGAIISampler", pipeline=True)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs Optuna, which is not installed: pip install 'atune\[optuna\]'"):
        check_given("optuna:TPESampler", pipeline=True)


def test_a_strategy_of_the_users_own_has_another_name() -> None:
    own = type("Own", (), {"name": "optuna:mine", "ask": lambda self: None, "tell": lambda self, *_: None})()
    with pytest.raises(UsageError, match="atune has a strategy of that name"):
        check_given(own, pipeline=True)


def test_optuna_logs_nothing_and_keeps_its_verbosity(capsys: pytest.CaptureFixture[str]) -> None:
    logging = import_module("optuna.logging")
    before = logging.get_verbosity()
    play(make_strategy("optuna", Searched(CONFIGS)), 12)
    assert logging.get_verbosity() == before and "study" not in "".join(capsys.readouterr())
    assert "optuna" in choosing.SHOWN


@pytest.mark.anyio
async def test_a_run_goes_on_with_the_sampler_of_its_journal(tmp_path: Path) -> None:
    journal, configs = tmp_path / "j", list(CONFIGS.values())
    script = Script(latency_ms=lambda c: latency(c) or 9.0, fails={3: "timeout"})
    await tune(machine=FakeMachine(configs, script), strategy="optuna:TPESampler", budget=16, seed=2, journal=journal)
    result: TuneResult = await resume(journal, machine=FakeMachine(configs, script), budget=24)
    asked = [e.index for e in read(journal) if isinstance(e, CandidateProposed)]
    assert len(set(asked)) == 24 == len(result.records)
    assert result.header is not None and result.header.strategy == "optuna:TPESampler"

"""Former public names still work, and warn at the line that uses them; what was written under them stays readable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import atune
import atune.testing
from atune.api.options import TuneOptions
from atune.cli.main import main
from atune.decorator.options import AutotuneOptions
from atune.model import former_names
from atune.testing import FakeMachine


@contextmanager
def called(old: str, new: str) -> Iterator[None]:
    """Expect one warning, that `old` is called `new` now, at a line of this file."""
    with pytest.warns(DeprecationWarning, match=f"{old}'? is called '?{new}'? now") as caught:
        yield
    assert [warning.filename for warning in caught] == [__file__]


def narrower(tmp_path: Path) -> tuple[Path, Callable[[], FakeMachine]]:
    """Return the journal of a run, and what makes a machine of the same work with a narrower space."""
    journal = tmp_path / "run.jsonl"
    atune.run(machine=FakeMachine(8), budget=4, strategy="exhaustive", journal=journal)
    return journal, lambda: FakeMachine(2)


@pytest.mark.anyio
async def test_awaiting_ways_to_tune_take_the_former_name_of_accept(tmp_path: Path) -> None:
    journal, machine = narrower(tmp_path)
    former: dict[str, Any] = {"force_parts": ["space"]}
    with pytest.raises(atune.JournalError, match=r"--accept space \(from Python: accept=\[…\]\)"):
        await atune.tune(machine=machine(), journal=journal)
    with called("force_parts", "accept"):
        result = await atune.resume(journal, machine=machine(), budget=5, **former)
    assert result.finished
    with called("force_parts", "accept"):
        await atune.tune(machine=machine(), journal=journal, budget=6, **former)
    with called("force_parts", "accept"):
        atune.Tuner(machine=machine(), **former)


def test_blocking_ways_to_tune_take_the_former_name_of_accept(tmp_path: Path) -> None:
    journal, machine = narrower(tmp_path)
    former: dict[str, Any] = {"force_parts": ["space"]}
    with called("force_parts", "accept"):
        atune.run(machine=machine(), journal=journal, budget=5, **former)
    with called("force_parts", "accept"):
        assert atune.run_resume(journal, machine=machine(), budget=6, **former).finished


def test_a_name_beside_its_former_one_is_refused() -> None:
    both: dict[str, Any] = {"accept": (), "force_parts": ()}
    with pytest.raises(atune.UsageError, match="'force_parts' is the former name of 'accept'; give 'accept' alone"):
        atune.run(machine=FakeMachine(), **both)


def test_blocking_and_awaiting_ways_to_tune_take_the_former_name_of_machine(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    former: dict[str, Any] = {"backend": FakeMachine(4)}
    with called("backend", "machine"):
        assert atune.run(journal=journal, budget=2, **former).measured == 2
    with called("backend", "machine"):
        assert atune.run_resume(journal, budget=4, **former).measured == 4


def test_the_fake_machine_has_its_former_name() -> None:
    with called("FakeBackend", "FakeMachine"):
        former = atune.testing.FakeBackend
    assert former is FakeMachine


def test_the_fake_machines_workers_have_their_former_name() -> None:
    former: dict[str, Any] = {"lanes": 3}
    with pytest.warns(DeprecationWarning, match="FakeMachine's lanes are called workers now") as caught:
        machine = FakeMachine(4, **former)
    assert [warning.filename for warning in caught] == [__file__]
    assert len(machine.compile_workers()) == 3


def test_an_events_worker_has_its_former_name(tmp_path: Path) -> None:
    seen: list[atune.Event] = []
    atune.run(machine=FakeMachine(1), on_event=seen.append)
    with pytest.warns(DeprecationWarning, match="an event's lane is called worker now") as caught:
        assert seen[0].lane == seen[0].worker
    assert [warning.filename for warning in caught] == [__file__]


def judge(outputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    return True


def kernel(N: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


WORK = atune.Workload(kernel, [{"block": 1}], arguments={"N": 1})


def test_autotune_takes_the_former_name_of_check() -> None:
    former: dict[str, Any] = {"verify": judge}
    with called("verify", "check"):
        old = atune.autotune(kernel, space=[{"block": 1}], **former)
    with called("verify", "check"):
        decorate = atune.autotune(space=[{"block": 1}], **former)
    new = atune.autotune(kernel, space=[{"block": 1}], check=judge)
    found = [each.options.workload["check"].func for each in (old, decorate(kernel), new)]
    assert found == [judge, judge, judge]


def test_benchmark_settings_take_and_have_the_former_name_of_input_seed() -> None:
    former: dict[str, Any] = {"seed": 3}
    with called("seed", "input_seed"):
        settings = atune.BenchmarkSettings(**former)
    assert settings == atune.BenchmarkSettings(input_seed=3)
    with called("seed", "input_seed"):
        assert settings.seed == 3


def test_settings_are_written_as_before() -> None:
    """So that journals of before go on, keys of results stay, and an older atune reads what is written now."""
    data = msgspec.to_builtins(atune.BenchmarkSettings(input_seed=3))
    assert data["seed"] == 3 and "input_seed" not in data
    assert msgspec.convert({"seed": 4}, atune.BenchmarkSettings).input_seed == 4


def test_a_difference_of_the_inputs_seed_has_its_present_name(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    atune.run(machine=FakeMachine(4), budget=2, strategy="exhaustive", journal=journal)
    other = FakeMachine(4, benchmark=atune.BenchmarkSettings(input_seed=5))
    with pytest.raises(atune.JournalError, match="settings: input_seed was 0 and is 5"):
        atune.run(machine=other, benchmark=other.benchmark, strategy="exhaustive", journal=journal)


def test_the_command_line_takes_a_former_option_and_says_so_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "run.jsonl"
    atune.run(machine=FakeMachine(4), journal=journal)
    assert main(["resume", str(journal), "--force-part", "kernel", "--accept", "space", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["measured"] == 4
    assert "atune: warning: --force-part is called --accept now: use the new name\n" in err
    assert main(["resume", str(journal), "--accept", "space", "--force-part", "everything"]) == 2
    assert "accept: give some of kernel, space" in capsys.readouterr().err  # it counts as the present one does
    assert main(["resume", "--help"]) == 0
    assert "--force-part" not in capsys.readouterr().out


def test_present_names_of_former_ones_are_options() -> None:
    assert set(former_names.RUN.values()) <= TuneOptions.__annotations__.keys()
    assert set(former_names.AUTOTUNE.values()) <= AutotuneOptions.__annotations__.keys()
    assert set(former_names.BENCHMARK.values()) <= set(atune.BenchmarkSettings.__struct_fields__)

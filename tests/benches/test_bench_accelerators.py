"""`bench/accelerators.py` over scripted runs: order, ratios, failures, resuming."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import accelerators
import pytest
import rounds
from counted import Finished

from atune.journal.events import FinalOrdered, RunFinished, RunStarted
from atune.journal.writer import Journal
from atune.model.device import Target

ROOT = Path(__file__).resolve().parents[2]
ON, CICC, OTHER = "--cicc", "--no-cicc", "--no-other"


def write_journal(path: str, started: float, begun_s: float, ordered_s: float, finished_s: float) -> None:
    """Write a run's journal; its header comes half a second after the run has begun."""

    def at(seq: int, seconds: float) -> dict[str, Any]:
        return {"seq": seq, "time": started + seconds, "mono": seconds - begun_s}

    events = [
        RunStarted(
            **at(0, begun_s + 0.5), schema=1, workload="w", origin="", fingerprint="", space="", total=2, arguments={},
            target=Target("c", ""), devices=(), strategy="exhaustive", settings={}, versions={},
        ),
        FinalOrdered(**at(1, ordered_s), device="cpu", entries=()),
        RunFinished(**at(2, finished_s), wall_s=finished_s - begun_s, reason="exhausted"),
    ]  # fmt: skip
    with Journal.create(path) as journal:
        for event in events:
            journal.append(event)


@dataclass
class Scripted:
    """Answers for `run_counted`: wall seconds by the option that differs, or what else became of a run."""

    wall_s: dict[str, float | Callable[[int], float]] = field(default_factory=dict)
    winners: dict[str, dict[str, int]] = field(default_factory=dict)
    ends: dict[tuple[str, int], Any] = field(default_factory=dict)
    """By the variant and its how-manieth run, from 0: an exit status, ``hangs``, ``silent`` or an exception."""
    now: float = 1000.0
    asked: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def __call__(self, command: Sequence[str], *, env: dict[str, str], cwd: Path, timeout_s: float) -> Finished:
        arguments = list(command)
        assert not list(Path(env["XDG_CACHE_HOME"]).iterdir()), "the cache is not empty"
        Path(env["XDG_CACHE_HOME"], "used").touch()
        asked = next(option for option in arguments if option in (ON, CICC, OTHER))
        warm = "--budget" in arguments
        n = self.asked.count(asked)
        if not warm:
            self.asked.append(asked)
            self.commands.append(arguments)
            self.environments.append(env)
        wall_s = self.wall_s.get(asked, 10.0)
        wall_s = wall_s(n) if callable(wall_s) else wall_s
        end = None if warm else self.ends.get((asked, n))
        if isinstance(end, BaseException):
            raise end
        if end == "hangs" or wall_s > timeout_s:
            self.now += timeout_s
            return Finished(0, timeout_s, 1.0, 0.0, True, '{"half of it": ')
        self.now += wall_s
        if isinstance(end, int):
            return Finished(end, wall_s, 1.0, 0.0, False, "reading\natune: error: it broke\n")
        write_journal(arguments[arguments.index("--journal") + 1], 50.0, 1.0, wall_s / 2, wall_s / 2 + 0.25)
        winner = self.winners.get(asked, {"block": 64})
        answer = {"best_config": winner, "latency_ms": winner["block"] / 64, "measured": 2, "failed": 0}
        return Finished(
            0, wall_s, 2 * wall_s, 50.0, False, "" if end == "silent" else f"a note\n{json.dumps(answer)}\n"
        )


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Have no process started."""
    script = Scripted()
    monkeypatch.setattr(rounds, "run_counted", script)
    monkeypatch.setattr(accelerators, "OFF", {"other": OTHER, "cicc": CICC})
    return script


def run(script: Scripted, *arguments: str) -> int:
    return accelerators.main(["--spaces", "roller20", *arguments], clock=script.clock)


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    return found


def row(text: str, label: str) -> list[str]:
    """Return the cells of the last table's row that begins with `label`."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {label} |")
    ][-1]


def test_each_round_begins_with_another_and_every_run_is_its_own(scripted: Scripted, tmp_path: Path) -> None:
    assert run(scripted, "--rounds", "4", "--out", str(tmp_path), "--tune-options=--no-store") == 0
    rounds = [scripted.asked[i : i + 3] for i in range(0, 12, 3)]
    assert rounds == [[ON, OTHER, CICC], [OTHER, CICC, ON], [CICC, ON, OTHER], rounds[0]]
    places = [(one["round"], one["place"], one["variant"]) for one in written(tmp_path)["runs"]]
    assert places[3:6] == [(1, 0, "other"), (1, 1, "cicc"), (1, 2, "auto")]
    text = " ".join(scripted.commands[0])
    assert text.startswith(f"{sys.executable} -m atune tune {ROOT}/examples/gemm_roller.py:WORKLOAD --target cuda")
    assert text.endswith("--cicc --no-store --quiet --json")
    assert len({env["XDG_CACHE_HOME"] for env in scripted.environments}) == 12


def test_ratios_are_those_of_a_round(scripted: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The machine gets slower from round to round; what is off costs the same share in each."""
    shares = [1.2, 1.3, 1.1, 1.5, 1.4]
    scripted.wall_s = {ON: lambda n: 10.0 + n, CICC: lambda n: (10.0 + n) * shares[n], OTHER: lambda n: 10.0 + n}
    scripted.winners = {CICC: {"block": 128}}
    assert run(scripted, "--out", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "table.md").read_text()
    cicc, swizzle = row(text, "cicc"), row(text, "other")
    assert cicc[:4] == ["cicc", "12.0 14.3 13.2 19.5 19.6", "5", "1.300 (1.100–1.500)"]
    assert cicc[5:] == ["1.300 (1.100–1.500)", "2.000 (2.000–2.000)", "0 of 5", "0 of 5"]
    assert swizzle[2:4] == ["5", "1.000 (1.000–1.000)"] and swizzle[7] == "5 of 5"
    assert row(text, "nothing")[1] == "10.0 11.0 12.0 13.0 14.0"
    assert "- of 5 pairs: 93.8 %, the least and the largest ratio: too few pairs for 95 %" in text
    assert "| cicc | 1.300 (1.100–1.500) | yes: roller20 |" in text
    assert "| other | 1.000 (1.000–1.000) | no |" in text
    assert "- cicc: block=128: 2.0000, 2.0000, 2.0000, 2.0000, 2.0000 ms" in text


def test_runs_that_fail_are_named_and_make_no_pair(
    scripted: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.ends = {(CICC, 0): 2, (OTHER, 1): "hangs", (ON, 2): "silent"}
    assert run(scripted, "--rounds", "4", "--timeout", "40", "--out", str(tmp_path)) == 1
    text = capsys.readouterr().out
    assert row(text, "cicc")[1:4] == ["failed 10.0 10.0 10.0", "2", "1.000 (1.000–1.000)"]
    assert [row(text, label)[-1] for label in ("nothing", "other", "cicc")] == ["1 of 4"] * 3
    assert "- roller20, round 1, cicc: exit status 2: reading | atune: error: it broke" in text
    assert "- roller20, round 2, other: killed after 40 s" in text
    assert "- roller20, round 3, auto: no winner: " in text
    assert [bool(one["error"]) for one in written(tmp_path)["runs"]].count(True) == 3


def test_an_interruption_keeps_what_is_done_and_resuming_runs_the_rest(scripted: Scripted, tmp_path: Path) -> None:
    """The round that it broke off is run anew as a whole."""
    scripted.ends = {(ON, 1): KeyboardInterrupt()}
    run(scripted, "--rounds", "2", "--out", str(tmp_path))
    assert len(written(tmp_path)["runs"]) == 5 and written(tmp_path)["stopped"] == "interrupted"
    scripted.ends, before = {}, len(scripted.asked)
    assert run(scripted, "--rounds", "2", "--out", str(tmp_path), "--resume") == 0
    assert scripted.asked[before:] == [OTHER, CICC, ON]
    assert not written(tmp_path)["stopped"]
    with pytest.raises(SystemExit, match="was run with"):
        run(scripted, "--out", str(tmp_path), "--resume", "--rep", "7")

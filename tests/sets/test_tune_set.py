"""Runs of sets of problems, on the CPU target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bundle_kernels import EVEN
from processes import environment, wait_until
from set_kernels import ANY, FREE, MOODY, SCALE

import atune
from atune import Problems
from atune.errors import JournalError, UsageError, WorkloadError
from atune.frontends.cli.main import main
from atune.frontends.tune_set import SetResult, read_set
from atune.journal.events import CandidateMeasured, Event, RunFinished, RunStarted
from atune.journal.reader import JournalReader
from atune.workers.pool import ForkServer, Worker

pytestmark = pytest.mark.timeout(170)
KERNELS = str(Path(__file__).parents[1] / "set_kernels.py")
FAST: dict[str, Any] = {
    "target": "c",
    "benchmark": atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3),
}


def measured(folder: Path) -> Counter[str]:
    """Return how often each journal has each candidate measured."""
    return Counter(
        f"{path.name} {event.index}"
        for path in folder.glob("*.jsonl")
        if path.stat().st_size
        for event in JournalReader(path)
        if isinstance(event, CandidateMeasured)
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[SetResult, list[Event]]:
    events: list[Event] = []
    folder = tmp_path_factory.mktemp("sets") / "set"
    result = atune.run_set(
        f"{KERNELS}:SCALE", Problems(n=[256, 512, 1024]), journal=folder, on_event=events.append, **FAST,
    )  # fmt: skip
    return result, events


def test_each_problem_has_its_own_run_with_its_own_winner(tuned: Any) -> None:
    result, _ = tuned
    assert [row.problem.arguments for row in result] == [{"n": 256}, {"n": 512}, {"n": 1024}]
    assert all(row.won for row in result)
    for row in result:
        assert row.result.header.arguments == row.problem.arguments
        assert row.result.header.flops == row.problem.arguments["n"]
        assert row.result.measured == 2 and row.result.default_ms is not None
    assert result[{"n": 512}] is result[1].result
    with pytest.raises(KeyError):
        result[{"n": 7}]


def test_two_problems_at_a_time_are_under_way(tuned: Any) -> None:
    under_way = most = 0
    for event in tuned[1]:
        under_way += isinstance(event, RunStarted) - isinstance(event, RunFinished)
        most = max(most, under_way)
    assert most == 2


def test_no_process_outlives_its_set_and_the_compile_workers_are_as_many_as_the_cores_bear(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's process is handed on to the next problem."""
    forked, roles, most = list[Worker](), Counter[str](), 0
    spawn = ForkServer.spawn

    async def counting(server: ForkServer, role: str, **how: Any) -> Worker:
        nonlocal most
        worker = await spawn(server, role, **how)
        forked.append(worker)
        roles[role] += 1
        most = max(most, sum(one.alive for one in forked))
        return worker

    monkeypatch.setattr(ForkServer, "spawn", counting)
    atune.run_set(f"{KERNELS}:SCALE", Problems(n=[300, 600, 1200, 2400, 4800]), journal=f"{tmp_path}/s/", **FAST)
    each = max(1, int(1.5 * (len(os.sched_getaffinity(0)) - 1)) // 2)
    assert 1 <= roles["device-cpu"] <= 2  # two problems at a time
    assert len(forked) >= 10 and most <= 2 * (each + 3)  # and a device's process, and one that answers a question
    assert not any(worker.alive for worker in forked)


def test_a_later_problem_begins_with_what_an_earlier_one_found(tuned: Any) -> None:
    headers = [event for event in tuned[1] if isinstance(event, RunStarted)]
    advice = [one for header in headers for one in header.advice if not one.source.startswith("cache ")]
    assert advice and all(len(one.first) == 1 for one in advice)
    assert all(one.source.startswith("cache ") for one in headers[0].advice)


def test_a_folder_is_read_and_continued_and_nothing_is_measured_twice(tuned: Any) -> None:
    folder = tuned[0].folder
    assert str(read_set(folder)) == str(tuned[0])
    before = measured(folder)
    assert set(before.values()) == {1} and len(before) == 6
    more = atune.run_set(f"{KERNELS}:SCALE", [{"n": 1024}, {"n": 2048}], journal=folder, **FAST)
    assert [row.problem.arguments["n"] for row in more] == [1024, 2048]
    after = measured(folder)
    assert set(after.values()) == {1} and len(after) == 8 and before.keys() < after.keys()


def test_problems_with_the_same_code_are_compiled_once(tmp_path: Path) -> None:
    sizes = Problems(rows=[100, 200, 300, 400])
    found = atune.run_set(ANY, sizes, journal=tmp_path / "s", **FAST)
    last = found[-1].result  # the last to begin; the first one's proof may end after it
    assert last is not None and last.stored == last.built == 2
    assert {record.code_key for row in found for record in row.result.records} == {  # type: ignore[union-attr]
        record.code_key for record in last.records
    }


def test_a_problem_without_a_winner_does_not_end_the_others(tmp_path: Path) -> None:
    result = atune.run_set(FREE, [{"n": 256}, {"n": 0.5}, {"n": 512}], journal=tmp_path / "s", **FAST)
    assert [row.won for row in result] == [True, False, True]
    assert "failed     n=0.5: no candidate worked: 2 failed to lower: " in str(result)


@pytest.mark.parametrize(("after_s", "shown"), [(60.0, False), (1e-9, True)])
def test_where_nobody_asks_a_set_says_a_line_a_minute(
    after_s: float, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("atune.frontends.tune_set.SELDOM_S", after_s)
    monkeypatch.setattr("atune.frontends.tune_set.INTERVAL_S", 60.0)  # the first line, however busy the machine is
    atune.run_set(SCALE, [{"n": 256}], journal=tmp_path / "s", **FAST)
    told = capsys.readouterr().err
    assert ("[0/1] n=256 is being tuned\n" in told) == shown == bool(told)


def test_a_value_that_cannot_be_is_named_with_file_and_entry(tmp_path: Path, capsys: Any) -> None:
    """Also where only the processes know: they load the workload, and make its inputs."""
    file = tmp_path / "sizes.json"
    file.write_text('[{"n": 256}, {"n": null}, {"n": -256}]')
    assert main(["tune", f"{KERNELS}:FREE", "--target", "c", "--problems", str(file), "--budget", "1", "--quiet"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed ")]
    assert failed == [
        f"failed     n=None: problems {file}, entry 2: Workload free: argument 'n' must be a number, got None",
        f"failed     n=-256: problems {file}, entry 3: Workload free: for n=-256, parameter 0 has the shape [-256]: "
        "no size may be negative",
    ]
    file.write_text('[{"n": 256, "wieght": 2}]')
    assert main(["tune", f"{KERNELS}:FREE", "--target", "c", "--problems", str(file), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert f"problems {file}, entry 1: Workload free: the kernel takes no argument 'wieght'" in told


@pytest.mark.parametrize(
    ("name", "sizes", "told"),
    [
        ("SCALE", "m=1,2,3,4", "Workload scale: the kernel takes no argument 'm'; it takes n, block"),
        ("BARE", "n=256,512,1024,2048", "lacks 'mode', which the kernel needs; add it to the config or to arguments"),
        ("SCAEL", "n=256,512", "has no 'SCAEL'; it has SCALE"),
    ],
)
def test_a_mistake_of_all_problems_is_told_once(name: str, sizes: str, told: str, tmp_path: Path, capsys: Any) -> None:
    command = ["tune", f"{KERNELS}:{name}", "--target", "c", "--arg", sizes, "--journal", str(tmp_path / "s")]
    assert main(command) == 2
    first, error, *places = capsys.readouterr().err.splitlines()
    assert told in error and not any(told in line for line in (first, *places)) and len(places) <= 1


def test_a_kernel_that_lost_an_argument_costs_nothing_that_was_measured(tmp_path: Path) -> None:
    file, folder = tmp_path / "kernels.py", tmp_path / "s"
    file.write_text(Path(KERNELS).read_text())
    atune.run_set(f"{file}:FREE", Problems(n=[256]), journal=folder, **FAST)
    before = measured(folder)
    file.write_text(file.read_text().replace("def scale(n:", "def scale(m:"))
    with pytest.raises(WorkloadError, match="takes no argument 'n'"):
        atune.run_set(f"{file}:FREE", Problems(n=[256, 512]), journal=folder, **FAST)
    assert measured(folder) == before and len(read_set(folder).winners) == 1


@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_the_middle_a_set_is_continued(how: signal.Signals, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "s"
    command = [sys.executable, "-m", "atune", "tune", f"{KERNELS}:SCALE", "--target", "c", "--rep", "3"]
    command += ["--arg", "n=256,512,1024,2048", "--journal", str(folder)]
    with (tmp_path / "out").open("w+") as out:
        process = subprocess.Popen(command, env=environment(), stdout=out, stderr=out)
        wait_until(lambda: len(measured(folder)) >= 3 or process.poll() is not None, 100, "three measurements")
        process.send_signal(how)
        process.wait(30)
    said = (tmp_path / "out").read_text()
    assert process.returncode == (130 if how == signal.SIGINT else -9), said
    assert how == signal.SIGKILL or f"continue with atune resume {folder}" in said
    before = measured(folder)
    assert 3 <= len(before) < 8
    assert main(["resume", str(folder), "--json"]) == 0
    done = capsys.readouterr()
    found = json.loads(done.out.splitlines()[-1])
    assert found["winners"] == len(found["problems"]) == 4
    assert f"resuming the problems of {folder}\natune: running {KERNELS}, which the journal names" in done.err
    assert measured(folder) == Counter(dict.fromkeys(measured(folder), 1)) and len(measured(folder)) == 8


def test_the_command_line_tunes_one_problem_or_a_set(tmp_path: Path, capsys: Any) -> None:
    one, several, shapes = (str(tmp_path / name) for name in ("one", "set", "shapes.csv"))
    tune = ["tune", f"{KERNELS}:SCALE", "--target", "c", "--rep", "3", "--quiet"]
    assert main([*tune, "--arg", "n=512", "--journal", one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 2
    assert atune.replay(one).header.arguments == {"n": 512}  # type: ignore[union-attr]
    assert main(["resume", one, "--quiet"]) == 0
    Path(shapes).write_text("n\n256\n1024\n")
    capsys.readouterr()
    assert main([*tune, "--problems", shapes, "--journal", several]) == 0
    assert "2 of 2 have a winner" in capsys.readouterr().out
    assert main([*tune, "--arg", "n=1,2", "--dry-run"]) == 2
    assert "--dry-run takes a single problem" in capsys.readouterr().err


def test_a_folder_of_other_work_is_refused(tuned: Any, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="the folder has problems of scale, but this is other work"):
        atune.run_set(f"{KERNELS}:FREE", [{"n": 128}], journal=tuned[0].folder, **FAST)
    assert {row.result and row.result.header and row.result.header.workload for row in read_set(tuned[0].folder)} == {
        "scale"
    }, "and the other problem is not listed"
    with pytest.raises(UsageError, match="cannot be written"):
        atune.run_set(SCALE, [{"n": 256}], journal=tmp_path / "new" / "deep", **FAST)


def test_a_kernel_that_is_edited_meanwhile_ends_the_set_which_can_be_continued(tmp_path: Path) -> None:
    file, text, folder = tmp_path / "edited.py", Path(KERNELS).read_text(), tmp_path / "s"
    file.write_text(text)

    def edit(event: Event) -> None:
        if isinstance(event, RunFinished) and file.read_text() == text:
            file.write_text(text.replace("scale(n, 2, block)", "scale(n, 2.0, block)"))

    problems = Problems(n=[256, 512, 1024, 2048, 4096, 8192])
    with pytest.raises(JournalError, match="another version of the kernel: undo the change"):
        atune.run_set(f"{file}:SCALE", problems, journal=folder, on_event=edit, **FAST)
    file.write_text(text)
    found = atune.run_set(f"{file}:SCALE", problems, journal=folder, **FAST)
    assert len(found.winners) == 6
    assert len({row.result.header.kernel for row in found.winners}) == 1  # type: ignore[union-attr]


def test_where_a_constraint_takes_a_size_rule_and_bundle_know_that_it_is_to_be_asked(tmp_path: Path) -> None:
    result = atune.run_set(EVEN, Problems(n=[64, 256, 1024]), journal=tmp_path / "s", **FAST)
    again = read_set(tmp_path / "s")
    with pytest.raises(UsageError, match="n=80 was never tuned, and where= takes n"):
        again.rule().pick({"n": 80})
    assert again.rule(EVEN.space).pick({"n": 80}) == result.rule().pick({"n": 80})
    result.save_bundle(tmp_path / "b")
    assert atune.bundle.load(tmp_path / "b").manifest["asks"] == ["n"]


def test_what_the_workload_fixes_may_be_given_or_left_out(tmp_path: Path, capsys: Any) -> None:
    """In a look-up, in a rule, and in the object of ``--json``, which has it."""
    result = atune.run_set(MOODY, [{"n": 256}, {"n": 512}], journal=tmp_path / "s", **FAST)
    assert result[{"n": 256}] is result[{"n": 256, "mode": "calm"}] and result.rule().pick({"n": 300}) is not None
    for other in ({"n": 256, "mode": "wild"}, {"mode": "calm"}):
        with pytest.raises(KeyError, match="the set has no problem"):
            result[other]
    assert main(["replay", str(tmp_path / "s"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["problems"]
    assert result._repr_html_().startswith("<pre>problem ")
    assert [one["problem"] for one in found] == [{"mode": "calm", "n": 256}, {"mode": "calm", "n": 512}]

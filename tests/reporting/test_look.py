"""Merge, export, report and watch: what is made of journals, none of which runs anything of them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from event_streams import Stream, write
from fake_runs import copying, cut, of_kind, proposed
from processes import environment
from synthetic import stream_of

from atune.engine.strategy import FixedOrder
from atune.errors import JournalError, UsageError
from atune.frontends.cli.main import main
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import RunFinished, RunInterrupted, SpaceSurveyed
from atune.journal.merge import merge
from atune.journal.reader import follow, read, replay
from atune.reporting.export import export
from atune.reporting.summary import summary
from atune.testing import FakeMachine, Script

DATA = Path(__file__).parents[1] / "data" / "schema-1.jsonl"


def run(path: Path, indices: list[int], factor: float = 1.0, **script: Any) -> Path:
    """Write the journal of a run that tries these candidates of a space of ten."""
    machine = FakeMachine(10, Script(latency_ms=lambda c: factor * (1.0 + abs(c["x"] - 6)), **script))
    anyio.run(lambda: tune(machine=machine, strategy=FixedOrder("given", indices), journal=path))
    return path


def test_disjoint_journals_merge_into_the_result_of_one(tmp_path: Path) -> None:
    one, two = run(tmp_path / "1", [0, 1, 2, 3]), run(tmp_path / "2", [4, 5, 6, 7, 8, 9])
    merged = merge([one, two], tmp_path / "m")
    assert (merged.best_config, merged.measured, merged.total, merged.remaining) == ({"x": 6}, 10, 10, 0)
    assert [r.config["x"] for r in merged.records] == list(range(10))
    assert merged.wall_s == pytest.approx(replay(one).wall_s + replay(two).wall_s, abs=1e-4)
    again = replay(tmp_path / "m")
    assert summary(again) == summary(merged) and again.records == merged.records
    assert merged.finished and any("merged from 2 journals" in text for text in merged.warnings)


def test_conflicts_are_decided_and_explained(tmp_path: Path) -> None:
    """A measurement overrides a failure, in any order; otherwise the later outcome counts. One warning covers all."""
    one = run(tmp_path / "1", [5, 6, 7], fails={5: "mismatch"})
    two = run(tmp_path / "2", [7, 6, 5], factor=2.0, fails={6: "compile"})
    merged = merge([one, two])
    found = {r.config["x"]: (r.status, r.latency_ms) for r in merged.records}
    assert found == {5: ("measured", 4.0), 6: ("measured", 1.0), 7: ("measured", 4.0)}
    notes = [text for text in merged.warnings if "several outcomes" in text]
    assert (
        len(notes) == 1
        and "3 candidates have several outcomes in the 2 journals; a measurement overrides a failure" in notes[0]
    )


def test_what_failed_in_one_journal_is_a_duplicate_where_another_measured_its_code(tmp_path: Path) -> None:
    one = run(tmp_path / "1", [3, 5], code_key=lambda c: "same")
    two = run(tmp_path / "2", [5, 6], fails={5: "mismatch"})
    for journals in ([one, two], [two, one]):
        found = [(r.config["x"], r.status) for r in merge(journals).records]
        assert found == [(3, "measured"), (5, "duplicate"), (6, "measured")]


def test_other_work_is_not_merged(tmp_path: Path) -> None:
    one, two = run(tmp_path / "1", [1]), tmp_path / "2"
    machine = FakeMachine(2, fingerprint="g" * 64)
    anyio.run(lambda: tune(machine=machine, journal=two))
    with pytest.raises(JournalError, match=r"it records other work: another kernel"):
        merge([one, two])
    anyio.run(lambda: tune(machine=FakeMachine(11), journal=tmp_path / "3"))
    with pytest.raises(JournalError, match="another space"):
        merge([one, tmp_path / "3"])
    sizes = [write(tmp_path / n, stream_of({"n": n}, {0: [1.0]}, fingerprint=n).events) for n in ("5", "6")]
    with pytest.raises(JournalError, match=r"other work: another problem$"):  # the fingerprint covers the problem
        merge(sizes)
    with pytest.raises(UsageError, match="give a list of paths of journals"):
        merge(str(one))  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_journals_that_agree_keep_their_survey_and_their_numbers(tmp_path: Path) -> None:
    """So the merged one is resumed as a run that knows the space, and the past."""

    def machine() -> FakeMachine:
        script = Script(facts=lambda c: copying(abs(c["x"] - 40)), latency_ms=lambda c: 1.0 + abs(c["x"] - 20) / 7)
        return FakeMachine(60, script, target="sm_90a", workers=1)

    first, second, third, merged = (tmp_path / name for name in ("first", "second", "third", "merged"))
    await tune(machine=machine(), strategy="bayesian", budget=30, journal=first)
    await tune(machine=machine(), strategy="bayesian", budget=30, journal=second, seed=5)
    await tune(machine=machine(), strategy="random", budget=30, journal=third, prior=False)
    cut(first, len(read(first)) - 20)  # as if its program had died
    result = merge([first, second, third], merged)
    [survey] = of_kind(merged, SpaceSurveyed)
    assert survey.prior == of_kind(first, SpaceSurveyed)[0].prior
    assert not any("surveys" in warning for warning in result.warnings)
    tried = {*proposed(merged)}
    assert tried == {*proposed(first), *proposed(second), *proposed(third)}
    assert all(record.config == {"x": record.index} for record in result.records)
    resumed = machine()
    await resume(merged, machine=resumed, budget=len(tried) + 4)
    assert not resumed.elaborated and len(of_kind(merged, SpaceSurveyed)) == 1


def test_a_journal_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl", [0, 1, 2])
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    for again in ("a.jsonl", "./a.jsonl", "link.jsonl"):
        with pytest.raises(UsageError, match=r"merge: .*a\.jsonl is given twice"):
            merge([tmp_path / "a.jsonl", f"{tmp_path}/{again}"], tmp_path / "m.jsonl")
    assert not (tmp_path / "m.jsonl").exists()


def test_csv_and_json_have_a_row_for_each_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.DictReader(io.StringIO(export(DATA, "csv").decode())))
    records = replay(DATA).records
    assert len(table) == len(records)
    for row, record in zip(table, records, strict=True):
        assert row["status"] == record.status and int(row["config.block_M"]) == record.config["block_M"]
        assert row["latency_ms"] == ("" if record.latency_ms is None else repr(record.latency_ms))
        assert json.loads(row["config.tile"]) == list(record.config["tile"])
    assert main(["export", str(DATA), "--to", "csv"]) == 0
    assert capsys.readouterr().out.encode() == export(DATA, "csv")
    rows = json.loads(export(DATA, "json"))
    assert [str(row["index"]) for row in rows] == [row["index"] for row in table]
    formula = write(tmp_path / "j", Stream(total=1).candidate(0, 1.0, mode="=HYPERLINK(1)").finished().events)
    assert "'=HYPERLINK(1)" in export(formula, "csv").decode()
    with pytest.raises(UsageError, match="unknown format; give csv or json"):
        export(DATA, "xlsx")


def test_the_report_goes_next_to_the_journal_or_names_why_not(tmp_path: Path, capsys: Any) -> None:
    journal = tmp_path / "run.jsonl"
    shutil.copy(DATA, journal)
    assert main(["report", str(journal)]) == 0 and (tmp_path / "run.html").exists()
    assert main(["report", str(journal), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "create it first" in capsys.readouterr().err


def test_following_a_journal_that_grows_line_by_line_and_is_torn_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line is not taken for a line, and a torn end that a further part cuts off is never seen."""
    monkeypatch.setattr("atune.journal.reader.POLL_S", 0.001)
    events, path = read(DATA), tmp_path / "j"
    lines = DATA.read_bytes().splitlines(keepends=True)
    whole = next(e.seq for e in events if isinstance(e, RunInterrupted)) + 2
    path.write_bytes(b"".join(lines[:whole]) + b'{"crc":"torn')

    def grow() -> None:
        done = b"".join(lines[:whole])
        for line in lines[whole:]:
            time.sleep(0.002)
            path.write_bytes(done + line[: len(line) // 2])
            time.sleep(0.002)
            done += line
            path.write_bytes(done)

    async def watch() -> list[Any]:
        with anyio.fail_after(20):
            return [event async for event in follow(path)]

    writer = threading.Thread(target=grow)
    writer.start()
    seen = [event for event in anyio.run(watch) if event is not None]
    writer.join()
    assert seen == events and isinstance(seen[-1], RunFinished)


def test_watch_shows_a_run_of_another_process_to_its_end(tmp_path: Path) -> None:
    path, lines = tmp_path / "j", DATA.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:30]))
    command = [sys.executable, "-m", "atune", "watch", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as watcher:
        time.sleep(0.5)
        assert watcher.poll() is None
        with path.open("ab") as file:
            file.write(b"".join(lines[30:]))
        out, err = watcher.communicate(timeout=20)
    assert watcher.returncode == 0, err
    assert (
        json.loads(out.splitlines()[-1])["best_config"]
        == json.loads(DATA.with_suffix(".json").read_text())["summary"]["best_config"]
    )
    assert b"measured" in err

"""Other tuners' files as journals. The samples in tests/data were written by Kernel Tuner 1.5.0's own functions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from atune import JournalError, UsageError, replay
from atune.cli.main import main
from atune.journal.export import export
from atune.journal.imports import import_journal
from atune.journal.reader import read
from atune.search.recording import Recording, read_recording

DATA = Path(__file__).parent.parent / "data"
CACHE, T4 = DATA / "kernel_tuner_cache.json", DATA / "t4.json"


def imported(file: Path, folder: Path) -> Recording:
    import_journal(file, folder / f"{file.name}.jsonl")
    return read_recording(folder / f"{file.name}.jsonl")


@pytest.mark.parametrize("file", [CACHE, T4], ids=["cache", "t4"])
def test_a_file_becomes_a_recording_with_its_costs(tmp_path: Path, file: Path) -> None:
    found = imported(file, tmp_path)
    assert found.total == len(found.configs) == 12
    assert found.configs[2] == {"block_size_x": 32, "tile": 2, "order": "row"}
    assert {i: t.reason for i, t in found.tried.items() if t.reason} == {3: "compile", 5: "launch", 7: "pruned"}
    assert found.tried[2].latency_ms == pytest.approx(1.24) and found.best_ms == pytest.approx(1.04)
    tried = found.tried
    assert (tried[2].lower_s, tried[2].compile_s, tried[2].device_s) == (0.0, 0.22, pytest.approx(0.047))
    assert tried[3].lower_s + tried[3].compile_s == 0.23 and tried[3].device_s == 0.0
    assert tried[5].compile_s == 0.25 and tried[5].device_s == pytest.approx(0.05)
    assert tried[7].lower_s + tried[7].compile_s + tried[7].device_s == 0.0


def test_a_public_cache_file_is_imported_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten clock rates on an RTX A4000, with energy beside the time: the fastest is the second highest."""
    journal = tmp_path / "a4000.jsonl"
    assert main(["import", str(DATA / "kernel_tuner_a4000.json"), "-o", str(journal)]) == 0
    found = read_recording(journal)
    best = min(found.tried, key=lambda index: found.tried[index].latency_ms or float("inf"))
    assert len(found.configs) == found.total == 10 and all(tried.latency_ms for tried in found.tried.values())
    assert found.best_ms == pytest.approx(76.96, abs=0.005)
    capsys.readouterr()
    assert main(["simulate", str(journal), "--strategy", "random", "--budget", "100%", "--seeds", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["evaluations"], said["within_1pct"]) == (10, 1.0) and found.configs[best]["nvml_gr_clock"] == 1905


def test_a_journal_keeps_where_results_came_from(tmp_path: Path) -> None:
    result = import_journal(CACHE, tmp_path / "j")
    assert result.best_config == {"block_size_x": 32, "tile": 1, "order": "row"} and result.finished
    assert result.header is not None and result.header.workload == "add"
    assert result.header.arguments == {"problem_size": (4096, 2)}
    assert [device.name for device in result.devices] == ["NVIDIA RTX A4000"]
    assert replay(tmp_path / "j").table() == result.table()
    assert read(tmp_path / "j")[-1].time == 1772359211.5


def test_a_cache_file_of_a_tuning_that_did_not_end_is_read(tmp_path: Path) -> None:
    lines = CACHE.read_text().splitlines()
    cut = tmp_path / "cut.json"
    cut.write_text("\n".join(lines[: next(n for n, line in enumerate(lines) if '"64,1,row"' in line)]))
    assert cut.read_text().endswith(",") and imported(cut, tmp_path).total == 4


def test_errors_in_place_of_times_are_failures(tmp_path: Path) -> None:
    """Older versions of Kernel Tuner wrote them so, and before that a time that no kernel takes."""
    old = {
        "device_name": "A100", "kernel_name": "k", "tune_params_keys": ["x"],
        "cache": {"0": {"x": 0, "time": "CompilationFailedConfig"}, "1": {"x": 1, "time": 1e20},
                  "2": {"x": 2, "time": 0.5, "times": [0.5]}, "3": {"x": 3, "time": None}},
    }  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(old))
    found = imported(tmp_path / "old.json", tmp_path)
    assert [found.tried[i].reason for i in range(4)] == ["compile", "launch", "", "launch"]
    assert found.tried[2].device_s == pytest.approx(0.0005)


def test_what_atune_exports_as_t4_comes_back(tmp_path: Path) -> None:
    import_journal(CACHE, tmp_path / "j")
    (tmp_path / "again.json").write_bytes(export(tmp_path / "j", "t4"))
    found, before = imported(tmp_path / "again.json", tmp_path), read_recording(tmp_path / "j")
    assert found.configs == before.configs
    assert [t.reason for t in found.tried.values()] == [t.reason for t in before.tried.values()]
    assert [t.latency_ms for t in found.tried.values()] == [t.latency_ms for t in before.tried.values()]


def test_times_in_other_units_and_a_wrong_result(tmp_path: Path) -> None:
    entry: dict[str, Any] = {
        "configuration": {"x": 0}, "times": {"compilation_time": 2, "benchmark": 1, "runtimes": [0.5, 0.7]},
        "invalidity": "correct", "correctness": 1,
    }  # fmt: skip
    wrong = {**entry, "configuration": {"x": 1}, "correctness": 0}
    document = {"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": [entry, wrong, wrong]}
    (tmp_path / "t4.json").write_text(json.dumps(document))
    found = imported(tmp_path / "t4.json", tmp_path)
    assert found.tried[0].latency_ms == pytest.approx(600) and found.tried[0].compile_s == 2.0
    assert found.tried[1].reason == "mismatch" and found.total == 2


def test_the_commands_import_and_simulate_a_compressed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, journal = tmp_path / "cache.json.gz", str(tmp_path / "j")
    packed.write_bytes(gzip.compress(CACHE.read_bytes()))
    assert main(["import", str(packed), "-o", journal, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["measured"], told["failed"], told["pruned"], told["journal"]) == (9, 2, 1, journal)
    assert main(["simulate", journal, "--strategy", "local", "--budget", "12", "--seeds", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["within_1pct"] == 1.0 and told["wall_s_median"] > 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not JSON", "neither T4 results .* nor a cache file of Kernel Tuner"),
        ('{"a": 1}', "neither T4 results"),
        ('{"results": [{"configuration": {}}]}', "not as their format has it .KeyError: 'times'"),
        ('{"results": [], "metadata": {"timeunit": "days"}}', "timeunit 'days' is none of milliseconds"),
        ('{"cache": {"1": {"x": 1}}, "kernel_name": "k", "device_name": "d"}', "KeyError: 'tune_params_keys'"),
        ('{"cache": {"1": 3}, "kernel_name": "k", "device_name": "d", "tune_params_keys": []}', "not as their format"),
        ('{"results": []}', "no configuration in it was measured"),
    ],
)
def test_other_files_are_refused_in_one_message(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UsageError, match=f"file.json: .*{words}"):
        import_journal(tmp_path / "file.json", tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_nothing_is_overwritten_and_a_missing_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("mine")
    with pytest.raises(JournalError, match="exists and is not empty"):
        import_journal(CACHE, tmp_path / "j")
    assert (tmp_path / "j").read_text() == "mine"
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file"):
        import_journal(tmp_path / "none.json", tmp_path / "k")

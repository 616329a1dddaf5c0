"""The benchmarks' own code: what they start, what they count, and what they use of tilelang."""

from __future__ import annotations

import inspect
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import first
import first_programs
import pytest
import sets
import vs_tilelang

from atune.journal.reader import JournalReader
from atune.workload.pickling import load, parse_file_ref

ROOT = Path(__file__).resolve().parents[2]
SM_90A = {"kind": "cuda", "arch": "sm_90a"}


def python(code: str, timeout_s: float = 60) -> str:
    """Run `code` in a process of its own: counting has the process adopt orphans, and wait for all its children."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench")])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cpu_seconds_of_a_daemon_that_outlives_its_parent_count(tmp_path: Path) -> None:
    burner = "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.7: pass\n"
    code = f"""
import os, pathlib, sys, counted
done = counted.run_counted(
    [sys.executable, "-S", "-c", {burner!r}], env=dict(os.environ), cwd=pathlib.Path({str(tmp_path)!r}), timeout_s=30
)
print(done.status, done.cpu_s)
"""
    status, cpu_s = python(code).split()
    assert status == "0" and 0.7 <= float(cpu_s) < 2


def test_a_tuner_past_its_time_ends_with_all_that_it_started(tmp_path: Path) -> None:
    sleeper = "import subprocess, sys\nprint('begun', flush=True)\nsubprocess.run(['sleep', '300'])\n"
    code = f"""
import os, pathlib, sys, time, counted
begun = time.monotonic()
done = counted.run_counted(
    [sys.executable, "-S", "-c", {sleeper!r}], env=dict(os.environ), cwd=pathlib.Path({str(tmp_path)!r}), timeout_s=1
)
print(done.timed_out, done.output.strip(), counted._children(), time.monotonic() - begun < 5)
"""
    assert python(code).split() == ["True", "begun", "[]", "True"]


@pytest.mark.parametrize(("space", "total"), [("gemm288", 288), ("roller20", 20), ("attention", 27)])
def test_tilelangs_tuner_takes_the_same_space(space: str, total: int) -> None:
    work = load(parse_file_ref(vs_tilelang.space_of(space)))
    tuner = vs_tilelang.make_tuner(work, check=True, rtol=0.02, target=SM_90A)
    assert len(tuner.configs) == total and tuner.profile_args.ref_prog is work.reference
    assert set(tuner.configs[0]) <= set(inspect.signature(tuner.fn).parameters)
    assert type(tuner.fn(**tuner.configs[0])).__name__ == "PrimFunc"
    assert not vs_tilelang.make_tuner(work, check=False, rtol=0.02, target=SM_90A).profile_args.ref_prog


def test_a_whole_comparison_on_the_cpu(tmp_path: Path) -> None:
    """atune alone: run, journal read, winner checked and timed in the common harness, table and JSON written."""
    command = [sys.executable, str(ROOT / "bench" / "vs_tilelang.py"), "--tuners", "atune", "--target", "c"]
    command += ["--space", f"{ROOT}/examples/gemm_cpu.py:WORKLOAD", "--rounds", "3", "--rep", "3"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=150, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "table.md").read_text() and "| atune | on |" in done.stdout
    found = json.loads((tmp_path / "result.json").read_text())
    [atune] = found["tuners"]
    assert atune["measured"] == atune["total"] == 36 and not atune["error"]
    assert sum(int(size) * count for size, count in atune["groups"].items()) == 36
    assert {"start", "lowering", "building", "measuring"} == set(atune["stages_s"])
    assert 0 < atune["first_artifact_s"] < atune["result_s"] < atune["wall_s"]
    assert atune["cpu_s"] > atune["stages_s"]["building"] / 4
    assert atune["retimed_correct"] is True and atune["retimed_ms"] > 0
    [timed] = found["common_harness"]
    assert len(timed["timing"]["samples_us"]) == 3
    assert (tmp_path / "atune.jsonl").stat().st_size > 1000


def test_a_whole_run_s_seconds_and_what_the_time_limit_leaves_out(tmp_path: Path) -> None:
    """bench/first.py on the CPU: a row under both states, stored with its breakdown, and continued by a second call."""
    command = [sys.executable, str(ROOT / "bench" / "first.py"), "--target", "c", "--out", str(tmp_path), "--rows"]
    done = [
        subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=150, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for more in (("one", "--rounds", "1"), ("one,drop-in-1", "--rounds", "2", "--time-limit", "0.01"))
    ]  # fmt: skip
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    assert "repeat the command for the rest" not in done[0].stderr and "--time-limit: 0.01 s" in done[1].stderr
    found = json.loads((tmp_path / "first-c.json").read_text())["rows"]["one"]
    assert [sorted(taken) for taken in found] == [["known", "unknown"]]
    for figures in found[0].values():
        stages = figures["stages"]
        assert figures["measured"] == 1 and 0 < stages["first_s"]["RunStarted"] < stages["end_s"] < figures["wall_s"]
        assert stages["devices"]["cpu"]["measuring"] > 0
    [known, unknown] = [line.split() for line in done[1].stdout.splitlines() if line.startswith("one")]
    assert known[:2] == ["one", "known"] and unknown[:2] == ["one", "unknown"]
    assert f"| one | unknown | {unknown[2]} | {unknown[3]} | {unknown[4]} |" in (tmp_path / "first-c.md").read_text()
    assert float(unknown[-1]) == round(found[0]["unknown"]["wall_s"] / found[0]["known"]["wall_s"], 2)


def test_a_known_state_is_kept_wherever_the_drop_in_keeps_its_files(tmp_path: Path) -> None:
    folder = first.Folder(tmp_path / "f", ROOT)
    assert not folder.kept("states")
    for path in (folder.cache, folder.tilelang / "atune", folder.tilelang):
        for name in ("states", "0.1.15"):
            (path / name / "of").mkdir(parents=True)
    folder.empty("states")
    kept = {path.relative_to(folder.work.parent) for path in folder.work.parent.rglob("of")}
    assert {str(path.parent) for path in kept} == {"cache/atune/states", "tilelang/atune/states"}
    folder.empty()
    assert not [*folder.cache.iterdir(), *folder.tilelang.iterdir()]


def test_a_library_is_written_for_both_tuners() -> None:
    ours, theirs = (first_programs.library("cuda", first_programs.LIBRARY["cuda"], head) for head in ("import x", ""))
    assert ours == f"import x{theirs}" and theirs.count("class Operator") == 3
    compile(theirs, "library.py", "exec")


def test_where_the_seconds_of_a_set_went(tmp_path: Path) -> None:
    """Four stored journals of a set: their runs overlap, and one device measures and decides all of them."""
    journals = [tmp_path / f"{number:04}.jsonl" for number in range(4)]
    for journal in journals:
        stored = ROOT / "bench" / "results" / "sets" / "whole" / f"{journal.name}.xz"
        journal.write_bytes(lzma.decompress(stored.read_bytes()))
    began = min(next(iter(JournalReader(str(journal)))).time for journal in journals) - 1.0
    found = sets.breakdown(journals, began)
    first, [device] = found["first_s"], found["devices"].values()
    assert first["RunStarted"] == 1.0 < first["CandidateLowered"] < first["ArtifactBuilt"] < first["FinalOrdered"]
    assert 1 < found["runs"] <= 4 and found["workers"] > 1 and found["last_s"]["RunFinished"] < found["end_s"]
    assert sum(device.values()) < found["end_s"] - 1.0 and min(device.values()) > 0

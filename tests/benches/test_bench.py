"""The benchmarks' own code: what they start, what they count, and what they use of tilelang."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vs_tilelang

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

"""Killing and resuming the command line with the real stages, on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from processes import wait_until

from atune.journal.events import BuildFailed, CandidateMeasured
from atune.journal.reader import read

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = """
import atune, tilelang.language as T

def scale(n: int, block: int = 64, factor: int = 2):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * factor
    return main

SPACE = atune.Space(block=[8, 16, 32, 64, 128, 256], factor=[2, 3])
WORKLOAD = atune.Workload(scale, SPACE, arguments={"n": 4096}, reference=lambda A: A * 2)
"""


def command(*arguments: str, tmp_path: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = [sys.executable, "-m", "atune", *arguments]
    return subprocess.Popen(line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["sigkill", "ctrl-c"])
def test_a_killed_run_goes_on_to_its_end(tmp_path: Path, how: signal.Signals) -> None:
    file, journal = tmp_path / "work.py", tmp_path / "j.jsonl"
    file.write_text(WORKLOAD)
    options = ("--target", "c", "--quiet", "--journal", str(journal), "--workers", "1")
    run = command("tune", f"{file}:WORKLOAD", *options, tmp_path=tmp_path)
    wait_until(lambda: journal.exists() and b'"candidate_measured"' in journal.read_bytes(), 60, "a measurement")
    run.send_signal(how)
    _, err = run.communicate(timeout=20)
    if how is signal.SIGINT:
        assert run.returncode == 130 and f"continue with atune resume {journal}" in err
    before = {e.index: e for e in read(journal) if isinstance(e, CandidateMeasured)}

    run = command("resume", str(journal), "--quiet", "--json", tmp_path=tmp_path)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert f"atune: resuming {file}:WORKLOAD, " in err
    report = json.loads(out.splitlines()[-1])
    assert (report["total"], report["measured"], report["failed"], report["remaining"]) == (12, 6, 6, 0)
    assert report["best_config"]["factor"] == 2
    events = read(journal)
    counts = Counter(e.index for e in events if isinstance(e, CandidateMeasured))
    assert set(counts.values()) == {1} and all(before[i] in events for i in before)
    assert not [e for e in events if isinstance(e, BuildFailed)]

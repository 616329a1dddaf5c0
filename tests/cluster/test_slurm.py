"""The Slurm script on this machine: stand-ins for Slurm's commands start real Ray nodes; slow, as Ray takes seconds."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import MARK, environment, marked, new_mark, wait_until
from slurm import allocation, job, stand_ins

from atune import replay

pytestmark = [pytest.mark.asked, pytest.mark.timeout(400)]
CANDIDATES = 24
WORKLOAD = f"""
import atune
from contract_kernels import inputs, scaled

WORKLOAD = atune.Workload(scaled, atune.Space(scale=[float(n) for n in range(1, {CANDIDATES + 1})]), inputs=inputs)
"""
OPTIONS = "--target c --no-store --workers 1"
ALL_GONE_S = 10.0
RAY = f"""
# Two nodes on one machine: two cores each, and ports of their own.
exec {sys.executable} -m ray.scripts.scripts "$@" --num-cpus 2 --dashboard-agent-listen-port 0 --disable-usage-stats
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return the folder that all nodes share. Its path is short, because Ray's sockets are in it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed here: pip install ray")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def job_environment(shared: Path) -> Iterator[dict[str, str]]:
    stand_ins(
        shared / "bin",
        ray=RAY,
        python=f'exec {sys.executable} "$@"',
        atune=f'exec {sys.executable} -m atune "$@"',
    )
    (shared / "work.py").write_text(WORKLOAD)
    mark = new_mark()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "PYTHONPATH": environment()["PYTHONPATH"],
        "WORKLOAD": f"{shared}/work.py:WORKLOAD",
        "JOURNAL": str(shared / "run.jsonl"),
        "OPTIONS": OPTIONS,
        "PORT": str(port),
        "RAY_TMPDIR": str(shared),
        MARK: mark,
    }
    yield allocation(shared / "bin", 2, **own)
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


def events(journal: Path, kind: str) -> list[dict[str, Any]]:
    lines = journal.read_text().splitlines() if journal.exists() else []
    found = [json.loads(line)["event"] for line in lines if f'"{kind}"' in line and line.endswith("}")]
    return [event for event in found if event["event"] == kind]


def test_a_job_that_slurm_ends_is_gone_on_with_by_the_next(shared: Path, job_environment: dict[str, str]) -> None:
    journal, mark = shared / "run.jsonl", job_environment[MARK]
    with job(job_environment) as first:
        wait_until(
            lambda: first.poll() is not None or len(events(journal, "candidate_measured")) >= 3, 150, "three measured"
        )
        os.kill(first.pid, signal.SIGTERM)
        output, _ = first.communicate(timeout=60)
    assert first.returncode == 130, output
    wait_until(lambda: not marked(mark), ALL_GONE_S, "Ray and the nodes' workers are gone")
    assert len(events(journal, "run_interrupted")) == 1
    before = len(events(journal, "candidate_measured"))
    assert 3 <= before < CANDIDATES

    with job(job_environment) as second:
        output, _ = second.communicate(timeout=180)
    assert second.returncode == 0, output
    wait_until(lambda: not marked(mark), ALL_GONE_S, "Ray and the nodes' workers are gone")
    [resumed] = events(journal, "run_resumed")
    ready = {event["device"]["id"] for event in events(journal, "device_ready") if event["seq"] > resumed["seq"]}
    assert len(ready) == 2, output  # one on each node
    measured = Counter(event["index"] for event in events(journal, "candidate_measured"))
    assert len(measured) == CANDIDATES and set(measured.values()) == {1}
    assert replay(journal).measured == CANDIDATES

"""What the Slurm script runs, in which order, with stand-ins for Slurm, Ray and atune."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import MARK, marked, new_mark, wait_until

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "tune.sbatch"

SCONTROL = """
echo "scontrol $*" >>"$CALLS"
tr ',' '\\n' <<<"$3"
"""
HOSTNAME = "echo 127.0.0.1 10.0.0.1"
SRUN = """
# Starts the command once for each of --nodes, and passes SIGTERM on to all processes of a task, as Slurm does.
echo "srun $*" >>"$CALLS"
set -m
tasks=() nodes=1
while [[ $1 == --* ]]; do
    [[ $1 == --nodes=* ]] && nodes=${1#*=}
    shift
done
trap 'for group in "${tasks[@]}"; do kill -TERM -- "-$group"; done' TERM
for ((node = 0; node < nodes; node++)); do
    "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do
    while wait "$task"; kill -0 "$task" 2>/dev/null; do :; done
done
"""
"""`while wait`: a signal ends a wait before its task is over."""


def stand_ins(folder: Path, **programs: str) -> None:
    """Write bash programs for Slurm's commands and for `programs` to `folder`, which goes first in the PATH."""
    folder.mkdir()
    for name, text in {"scontrol": SCONTROL, "hostname": HOSTNAME, "srun": SRUN, **programs}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


def allocation(folder: Path, nodes: int, **more: str) -> dict[str, str]:
    """Return the environment of a job with `nodes` nodes, whose commands are in `folder`, and which notes its calls."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    return {
        **own,
        "PATH": f"{folder}:{own['PATH']}",
        "CALLS": str(folder / "calls"),
        "SLURM_JOB_NODELIST": ",".join(f"node{number}" for number in range(1, nodes + 1)),
        "SLURM_JOB_NUM_NODES": str(nodes),
        **more,
    }


@contextmanager
def job(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the script as a batch job, with Slurm's signal to the script alone. What is left of it is killed."""
    process = subprocess.Popen(
        ["bash", str(SCRIPT)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()  # its steps may hold the other end for long
        process.wait()


RAY = """
trap 'echo "ended ray $2" >>"$CALLS"; exit' TERM
echo "ray $* as $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN} $(sha256sum <<<"$RAY_AUTH_TOKEN" | cut -c 1-8)" >>"$CALLS"
while :; do sleep 0.02; done
"""
PYTHON = """
# Ends once all nodes have joined, as the script's own Python program does.
cat >/dev/null
until (($(grep -c '^ray start' "$CALLS") == $2)); do sleep 0.02; done
echo "joined $2 at $RAY_ADDRESS" >>"$CALLS"
"""
ATUNE = """
echo "atune $*" >>"$CALLS"
exit "${STATUS:-0}"
"""
ATUNE_UNTIL_SIGHUP = """
trap 'echo "atune got SIGHUP" >>"$CALLS"; exit 130' HUP
trap 'echo "atune got SIGTERM" >>"$CALLS"; exit 1' TERM
echo "atune $*" >>"$CALLS"
while :; do sleep 0.02; done
"""
WITHIN_S = 20.0


class Allocation:
    """The environment of a job, and what its script did."""

    def __init__(self, folder: Path, jobs: ExitStack) -> None:
        self.folder, self._jobs = folder, jobs
        self.mark = new_mark()
        self.commands = folder / "commands"
        self.journal = folder / "gemm.jsonl"

    def start(self, *, nodes: int = 2, atune: str = ATUNE, python: str = PYTHON, **more: str) -> Any:
        stand_ins(self.commands, ray=RAY, python=python, atune=atune)
        given = {"WORKLOAD": "gemm.py:GEMM", "JOURNAL": str(self.journal), MARK: self.mark, **more}
        environment = allocation(self.commands, nodes, **given)
        return self._jobs.enter_context(job({name: value for name, value in environment.items() if value}))

    def calls(self) -> list[str]:
        return (self.commands / "calls").read_text().splitlines()

    def called(self, beginning: str) -> bool:
        return (self.commands / "calls").exists() and any(call.startswith(beginning) for call in self.calls())

    def call(self, pattern: str) -> int:
        """Return the place of the only call that `pattern` matches."""
        [place] = [number for number, call in enumerate(self.calls()) if re.match(pattern, call)]
        return place


@pytest.fixture
def allocated(tmp_path: Path, with_a_terminal: None) -> Iterator[Allocation]:
    with ExitStack() as jobs:
        allocated = Allocation(tmp_path, jobs)
        yield allocated
    try:
        wait_until(lambda: not marked(allocated.mark), WITHIN_S, "all steps of the job have ended")
    finally:
        for pid in marked(allocated.mark):
            os.kill(pid, signal.SIGKILL)


def ended(process: Any, status: int) -> str:
    output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == status, output
    return str(output)


def test_a_first_job_starts_ray_on_all_nodes_and_then_tunes(allocated: Allocation) -> None:
    ended(allocated.start(nodes=3, OPTIONS="--budget 10% --seed 4"), 0)
    names, own = allocated.call("scontrol show hostnames node1,node2,node3"), "--overlap --nodelist=node1"
    address = allocated.call(f"srun --nodes=1 --ntasks=1 {own} hostname --ip-address")
    head = allocated.call(f"srun --nodes=1 --ntasks=1 {own} ray start --head --node-ip-address=127.0.0.1 --port=6379 ")
    others = allocated.call("srun --nodes=2 --ntasks=2 --overlap --exclude=node1 ")
    joined = allocated.call("joined 3 at 127.0.0.1:6379")
    tuned = allocated.call(
        f"atune tune gemm.py:GEMM --journal {allocated.journal} --cluster auto --budget 10% --seed 4$"
    )
    assert names < address < min(head, others) and max(head, others) < joined < tuned
    assert allocated.calls()[tuned + 1 :] == ["ended ray --address=127.0.0.1:6379"] * 2 + ["ended ray --head"]


def test_nodes_share_a_token_that_no_command_line_shows(allocated: Allocation) -> None:
    ended(allocated.start(nodes=3), 0)
    tokens = [call.partition(" as ")[2] for call in allocated.calls() if call.startswith("ray ")]
    assert len(tokens) == 3 and len(set(tokens)) == 1 and tokens[0].startswith("token 64 ")
    assert not any(re.search("[0-9a-f]{64}", call) for call in allocated.calls())


def test_a_later_job_goes_on_with_the_journal(allocated: Allocation) -> None:
    allocated.journal.write_text("{}\n")
    ended(allocated.start(OPTIONS="--budget 10%"), 0)
    assert allocated.call(f"atune resume {allocated.journal} --workload gemm.py:GEMM --cluster auto$")


def test_a_job_ends_with_the_status_of_its_run(allocated: Allocation) -> None:
    ended(allocated.start(STATUS="3"), 3)


def test_slurms_signal_ends_the_run_in_order_before_ray(allocated: Allocation) -> None:
    """SIGTERM reaches the script, SIGHUP the run, and Ray lives until the run has ended."""
    process = allocated.start(atune=ATUNE_UNTIL_SIGHUP)
    wait_until(lambda: allocated.called("atune tune"), WITHIN_S, "the run has started")
    os.kill(process.pid, signal.SIGTERM)
    ended(process, 130)
    assert allocated.calls()[-3:] == ["atune got SIGHUP", "ended ray --address=127.0.0.1:6379", "ended ray --head"]
    wait_until(lambda: not marked(allocated.mark), WITHIN_S, "Ray has ended on all nodes")


@pytest.mark.parametrize("name", ["WORKLOAD", "JOURNAL"])
def test_what_the_script_needs_is_named(allocated: Allocation, name: str) -> None:
    assert f"{name}: give " in ended(allocated.start(**{name: ""}), 1)
    assert not allocated.called("")

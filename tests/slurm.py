"""`examples/slurm/tune.sbatch` on this machine: stand-ins for Slurm's commands, and an allocation's environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "examples" / "slurm" / "tune.sbatch"

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

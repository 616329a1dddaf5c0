"""Wall time of `atune tune … --budget 1` with a resident server and without one, in turn.

    python bench/resident_server.py [FILE.py:NAME] [--pairs 5]

Each run begins with an empty cache folder, so that both compile. Prints each pair, and the medians with their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKLOAD = f"{ROOT / 'examples' / 'gemm_cpu.py'}:WORKLOAD"


def atune(*arguments: str, env: dict[str, str]) -> float:
    """Run the command line; return its seconds. Raises where it fails."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "atune", *arguments], env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def tuned(workload: str, env: dict[str, str], server: str) -> float:
    """Tune one candidate with nothing kept from before; return the seconds."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**env, "ATUNE_CACHE_DIR": cache, "ATUNE_SERVER": server}
        return atune("tune", workload, "--budget", "1", "--quiet", env=env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default=WORKLOAD)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as runtime:  # mode 700, for a server of this script's own
        env = {**os.environ, "XDG_RUNTIME_DIR": runtime, "PYTHONPATH": str(ROOT)}
        atune("server", "start", env=env)
        try:
            for _ in range(arguments.pairs):
                pairs.append((tuned(arguments.workload, env, "off"), tuned(arguments.workload, env, "auto")))
                print("without {:.2f} s, with {:.2f} s".format(*pairs[-1]), flush=True)
        finally:
            atune("server", "stop", env=env)
    without, with_one = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"medians: without {without:.2f} s, with {with_one:.2f} s; median of the pairs' ratios {ratio:.2f}")


if __name__ == "__main__":
    main()

"""Kill a run's whole process tree at random instants, go on, and compare with the uninterrupted run.

    python bench/crash.py [ROUNDS [FIRST_SEED]]

The device is scripted (`atune.testing`), the journal is real, and each line is written in two pieces, so that kills
hit in mid-append too. Ends with an error at the first measurement that is lost or repeated, or result that differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import anyio
from crashing import Crash, finish, one_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=200, metavar="ROUNDS", help="(200)")
    parser.add_argument("first", type=int, nargs="?", default=0, metavar="FIRST_SEED", help="(0)")
    options = parser.parse_args()
    rounds, first = options.rounds, options.first
    started, found = time.monotonic(), Crash()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        anyio.run(finish, whole := folder / "whole.jsonl")
        for seed in range(first, first + rounds):
            one_round(folder, seed, whole, found)
            if sys.stderr.isatty():
                print(f"\r{found.rounds} rounds, {found.kills} kills", end="", file=sys.stderr)
    print(json.dumps({**asdict(found), "lost": 0, "repeated": 0, "seconds": round(time.monotonic() - started, 1)}))


if __name__ == "__main__":
    main()

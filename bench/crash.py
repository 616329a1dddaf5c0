"""Kill a run's whole process tree at random instants, go on, and compare with the uninterrupted run.

    python bench/crash.py [ROUNDS [FIRST_SEED]]

The device is scripted (`atune.testing`), the journal is real, and each line is written in two pieces, so that kills
hit in mid-append too. Ends with an error at the first measurement that is lost or repeated, or result that differs.
"""

from __future__ import annotations

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
    rounds, first = int(sys.argv[1]) if len(sys.argv) > 1 else 200, int(sys.argv[2]) if len(sys.argv) > 2 else 0
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

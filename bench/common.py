"""Common parts of the benchmarks: a hard time limit, a table printed at the end, and results as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def option_parser(description: str, limit_s: float, **more: Any) -> argparse.ArgumentParser:
    """Return a parser of the common options and of `more`: names with default values."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="folder for the results as JSON, and for journals")
    parser.add_argument("--limit", type=float, default=limit_s, metavar="S", help=f"hard time limit ({limit_s:g} s)")
    for name, default in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"({default})")
    return parser


def options(description: str, limit_s: float, **more: Any) -> argparse.Namespace:
    """Read the command line, and end the program after its time limit without any clean-up.

    Its workers end, too, because Linux kills them when this process is gone.
    """
    arguments = option_parser(description, limit_s, **more).parse_args()
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)

    def end() -> None:
        print(f"{Path(sys.argv[0]).name}: not done within {arguments.limit:g} s", flush=True)
        os._exit(124)

    watchdog = threading.Timer(arguments.limit, end)
    watchdog.daemon = True
    watchdog.start()
    return arguments


def report(arguments: argparse.Namespace, name: str, rows: Sequence[Sequence[Any]], results: Any) -> None:
    """Write `results` as JSON, and print `rows` as a table, whose first row is the head."""
    if arguments.out is not None:
        (arguments.out / f"{name}.json").write_text(json.dumps(results, indent=1, default=str) + "\n")
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    print()
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()


def journal(arguments: argparse.Namespace, name: str) -> str | None:
    """Return a path for a run's journal in --out, and remove an older journal there; None without --out."""
    if arguments.out is None:
        return None
    path = Path(arguments.out) / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    return str(path)

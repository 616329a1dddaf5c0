"""``atune runs`` and ``atune cache``: earlier runs and their results. Runs no code of a workload.

Also the words that stand for a journal.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import AtuneError, UsageError
from atune.frontends.cli.commands import SHOWN
from atune.frontends.cli.output import print_lines, print_out, write
from atune.journal.set_folder import LOCK, is_begun, is_set, listed
from atune.journal.writer import is_written
from atune.model.candidate import describe_config, printable
from atune.reporting.export import aligned
from atune.reporting.text import Line
from atune.workers.result_cache import ResultCache, run_name, stored_run
from atune.workers.result_key import open_sizes, plain_dtypes
from atune.workers.terminal import Interrupts

LATEST, FINISHED = "latest", "finished"


def find_journal(text: str) -> str:
    """Return the path of the journal that `text` means: a path, ``latest``, a number of the list, or a name's start.

    A name's start that several have means the newest of them. Raises `UsageError` if there is no such run.
    """
    if os.path.exists(text) or os.sep in text:
        return text
    runs = [*_listed()]
    if text == LATEST:
        found = runs
    elif text.isdecimal():
        found = runs[int(text) - 1 :] if int(text) else []
    else:  # first whole names, such as gemm of gemm-1, and not of gemm_fp8-2
        found = [path for start in (f"{text}-", text or "?") for path in runs if run_name(path).startswith(start)]
    if not found:
        raise UsageError(f"there is no file {text!r}, and no such run: atune runs lists {len(runs)}")
    return str(found[0])


def _listed() -> dict[Path, list[tuple[Path, float]]]:
    """Return the runs that the result cache has, the newest first: each one's journal, or a set's folder.

    With each are its journals, and when they were written.
    """
    found: dict[Path, list[tuple[Path, float]]] = {}
    for path, written in ResultCache().runs():
        found.setdefault(path.parent if is_set(path.parent) else path, []).append((path, written))
    return found


def runs_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    found = _listed()
    chosen = [*found.items()][: None if arguments.all or arguments.json else SHOWN]
    runs = [
        {"number": number, "journal": str(path), "written": journals[0][1], **_data(path)}
        for number, (path, journals) in enumerate(chosen, 1)
    ]
    if arguments.json:
        print_out(json.dumps({"runs": runs}))
    elif not runs:
        print_out("no runs yet: atune tune FILE.py")
    else:
        print_lines(map(Line, aligned([_HEADS, *map(_row, runs)], numbers=1).splitlines()))
        if len(chosen) < len(found):
            print_out(f"and {len(found) - len(chosen)} older: atune runs --all")
    return 0


def _data(path: Path) -> dict[str, Any]:
    """Return a run or a set as ``--json`` prints it."""
    try:
        if path.is_dir():
            return _data_of_set(path)
        run = stored_run(str(path), whole=True)
    except (AtuneError, OSError) as error:
        return {"state": "unreadable", "error": str(error)}
    if run is None:
        return {"state": "starting" if is_written(path) else "unreadable", "error": f"{path} holds no whole line"}
    return {
        "kernel": run.header.workload,
        "problem": msgspec.to_builtins(plain_dtypes(run.header.arguments)),
        "target": str(run.header.target),
        "best_config": msgspec.to_builtins(run.config),
        "latency_ms": run.found.latency_ms,
        "tried": run.found.tried,
        "total": run.header.total,
        "state": FINISHED if run.end else _unfinished(is_written(path)),
    }


def _data_of_set(folder: Path) -> dict[str, Any]:
    journals = listed(folder)
    runs = [run for path in journals if is_begun(path) and (run := stored_run(str(path))) is not None]
    ended = sum(run.end is not None for run in runs)
    state = FINISHED if ended == len(journals) else _unfinished(is_written(folder / LOCK))
    kernel = max(runs, key=lambda run: run.time).header.workload if runs else ""
    return {"kernel": kernel, "problems": len(journals), "ended": ended, "state": state}


_HEADS = ("#", "kernel", "problem", "best", "tried", "journal")


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    """Return a run as the texts of the table's columns."""
    number, name = str(run["number"]), printable(run_name(Path(run["journal"])).removesuffix(".jsonl"))
    if "error" in run:
        return number, run["state"], "", "", "", name
    if "problems" in run:
        done, total, best = run["ended"], run["problems"], ""
        problem = f"{total} problem{'s' * (total != 1)}"
    else:
        problem = describe_config(run["problem"] or {})
        best = "none" if run["latency_ms"] is None else f"{run['latency_ms']:.4g} ms"
        done, total = run["tried"], run["total"]
    tried = str(done) if done == total else f"{done}/{total}"
    tried += "" if run["state"] == FINISHED else f" {run['state']}"
    return number, printable(run["kernel"]), problem, best, tried, name


def _unfinished(written: bool) -> str:
    """Return what became of a run that has not finished: it goes on, or it was interrupted or killed."""
    return "running" if written else "interrupted"


# The results


def _chosen(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the choice of results. Raises `UsageError` for an empty one: a variable that is not set means not all."""
    given = {"kernel": arguments.kernel, "key": arguments.key}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if not value:
            raise UsageError(f"--{name} is empty: give a {name}, or leave the option out to take all results")
    return chosen


def ls_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    entries = ResultCache().entries(**_chosen(arguments))
    if arguments.json:
        print_out(json.dumps({"results": [{"key": entry.key, **msgspec.to_builtins(entry)} for entry in entries]}))
        return 0
    rows: list[tuple[str, ...]] = [("key", "kernel", "problem", "device", "latency ms", "config")]
    for entry in entries:
        latency = "-" if entry.latency_ms is None else f"{entry.latency_ms:.4g}"
        problem = describe_config(entry.parts.problem) or "no arguments"
        if tuned := open_sizes(entry.parts.problem, entry.parts.tuned_for):
            problem += f" (tuned for {describe_config(tuned)})"
        named = printable(entry.parts.kernel), problem, printable(entry.parts.device)
        rows.append((entry.key[:12], *named, latency, describe_config(entry.config)))
    print_out(aligned(rows) if entries else "no results")
    return 0


def clear_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    cache, chosen = ResultCache(), _chosen(arguments)
    removed = cache.clear(cache.answers(**chosen) if chosen else None)
    print_out(json.dumps({"removed": removed}) if arguments.json else f"removed    {removed}")
    return 0


def export_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    chosen = _chosen(arguments)
    if chosen and not ResultCache().answers(**chosen):
        raise UsageError("the result cache has no such result: atune cache ls lists what it has")
    data = ResultCache().export(**chosen)
    return write(data + b"\n", arguments.output or "-", "exported", arguments)

"""``atune runs``: the journals and sets of the cache folder, newest first; and words that stand for one of them."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atune.errors import UsageError
from atune.frontends.cli.help import Parser
from atune.frontends.cli.parsing import add_command

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts

LATEST, FINISHED = "latest", "finished"
PROBLEM = 24
"""Characters of a problem that the list shows."""
SHOWN = 20
"""Runs that are listed without ``--all``."""
JOURNAL = "the journal: a path, latest, or a number or the start of a name in atune runs"


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``runs``. `shown` holds the options that all commands share."""
    runs = add_command(commands, shown, "runs", _runs, "List earlier runs; their journals are in the cache folder")
    runs.add_argument("--all", action="store_true", help=f"list all, and not only the newest {SHOWN}")
    runs.add_argument("--names", action="store_true", help="print only the words that J takes, for a shell")


def add_journal(parser: Parser, **how: Any) -> None:
    """Add the argument for a journal, `J`. `how`: what else argparse is told."""
    parser.add_argument("journal", **{"metavar": "J", "help": JOURNAL, "type": find_journal, **how})


def find_journal(text: str) -> str:
    """Return the path of the journal that `text` means: a path, ``latest``, a number of the list, or a name's start.

    A name's start that several have means the newest of them. Raises `UsageError` if there is no such run.
    """
    if os.path.exists(text) or os.sep in text:
        return text
    from atune.frontends.api.default_journal import kept_journals

    found = kept_journals()
    if not found:
        raise UsageError(f"there is no file {text!r}, and the cache folder has no journals")
    if text == LATEST:
        return str(found[0])
    if text.isdecimal():
        if not 0 < int(text) <= len(found):
            raise UsageError(f"there is no file {text!r}, and no run of that number: atune runs lists {len(found)}")
        return str(found[int(text) - 1])
    named = [path for path in found if text and path.name.startswith(text)]
    named = [path for path in named if path.name.startswith(f"{text}-")] or named  # not gemm_fp8, where there is a gemm
    if not named:
        raise UsageError(f"there is no file {text!r}, and no run whose journal's name begins so: atune runs lists them")
    if len(named) > 1:
        from atune.frontends.cli.output import print_message

        print_message(f"{_name(named[0])} is the newest of {len(named)} runs of that name", kind="")
    return str(named[0])


def _runs(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.api.default_journal import kept_journals
    from atune.frontends.cli.output import print_out
    from atune.reporting.export import aligned

    found = kept_journals()
    chosen = found if arguments.all or arguments.json else found[:SHOWN]
    if arguments.names:
        print_out("\n".join([LATEST] * bool(found) + [*map(_name, chosen)]))
        return 0
    runs = []
    for number, path in enumerate(chosen, 1):
        with suppress(FileNotFoundError):  # another run removes the oldest
            runs.append({"number": number, **(_set_data(path) if path.is_dir() else _data(path))})
    if arguments.json:
        print_out(json.dumps({"runs": runs}))
    elif not runs:
        print_out("no runs yet: atune tune FILE.py")
    else:
        print_out("\n".join(map(_cut, aligned([_HEADS, *map(_row, runs)], numbers=1).splitlines())))
        if len(chosen) < len(found):
            print_out(f"and {len(found) - len(chosen)} older: atune runs --all")
    return 0


def _data(path: Path) -> dict[str, Any]:
    """Return a run as ``--json`` prints it."""
    import msgspec

    from atune.errors import JournalError
    from atune.journal.replay import replay
    from atune.journal.writer import is_written

    data: dict[str, Any] = {"journal": str(path), "written": path.stat().st_mtime}
    try:
        result = replay(path)
    except JournalError as error:
        return {**data, "state": "starting" if is_written(path) else "unreadable", "error": str(error)}
    header = result.header
    assert header is not None, "a reader refuses a journal without a header"
    return {
        **data,
        "kernel": header.workload,
        "problem": msgspec.to_builtins(header.arguments),
        "target": str(header.target),
        "best_config": msgspec.to_builtins(result.best_config),
        "latency_ms": result.latency_ms,
        "tried": result.total - result.remaining,
        "total": result.total,
        "state": FINISHED if result.finished else _unfinished(is_written(path)),
    }


def _set_data(folder: Path) -> dict[str, Any]:
    """Return a set as ``--json`` prints it. Of its journals only the ends are read: it may have many."""
    from atune.errors import AtuneError
    from atune.journal.set_folder import header_of_set, is_ended, is_set_written, listed, written_at

    data = {"journal": str(folder), "written": written_at(folder)}
    try:
        problems, header = listed(folder), header_of_set(folder)
    except AtuneError as error:
        return {**data, "state": "unreadable", "error": str(error)}
    ended = sum(map(is_ended, problems))
    return {
        **data,
        "kernel": getattr(header, "workload", ""),
        "problems": len(problems),
        "ended": ended,
        "state": FINISHED if ended == len(problems) else _unfinished(is_set_written(folder)),
    }


_HEADS = ("#", "kernel", "problem", "best", "tried", "when", "journal")


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    """Return a run as the texts of the table's columns."""
    from atune.model.candidate import describe_config, printable

    number, when, name = str(run["number"]), _ago(run["written"]), _name(Path(run["journal"]))
    if "error" in run:
        return number, run["state"], "", "", "", when, name
    if "problems" in run:
        done, total, best = run["ended"], run["problems"], ""
        problem = f"{total} problem{'s' * (total != 1)}"
    else:
        problem = _short(describe_config(run["problem"]).replace(", ", " "), PROBLEM)
        best = "none" if run["latency_ms"] is None else f"{run['latency_ms']:.4g} ms"
        done, total = run["tried"], run["total"]
    tried = str(done) if done == total else f"{done}/{total}"
    tried += "" if run["state"] == FINISHED else f" {run['state']}"
    return number, printable(run["kernel"]), problem, best, tried, when, name


def _unfinished(written: bool) -> str:
    """Return what became of a run that has not finished: it goes on, or it was interrupted or killed."""
    return "running" if written else "interrupted"


def _name(path: Path) -> str:
    """Return the name that stands for a run."""
    return path.name.removesuffix(".jsonl")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(line: str) -> str:
    """Return `line`, cut to the width of stdout's terminal; elsewhere as it is."""
    import shutil
    import sys

    return _short(line, shutil.get_terminal_size().columns) if sys.stdout.isatty() else line


def _ago(moment: float) -> str:
    """Return how long ago `moment` was; of one before yesterday, its day."""
    seconds = max(0.0, time.time() - moment)
    if seconds < 60:
        return "now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h ago"
    return time.strftime("%Y-%m-%d", time.localtime(moment))

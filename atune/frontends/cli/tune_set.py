"""``atune tune`` for several problems: a set's options, its progress, and its table."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from atune.errors import NoWinner, UsageError
from atune.frontends.api.problems import Problems
from atune.frontends.api.tune_set import SetResult, read_set, resume_set, tune_set
from atune.frontends.cli.main import INTERRUPTED, OK
from atune.frontends.cli.output import NO_WINNER, print_lines, print_message, print_out, report_error
from atune.frontends.cli.tune import interruptible
from atune.journal.reader import POLL_S
from atune.journal.set_folder import header_of_set, is_ended, is_set, is_set_written, journals_in, listed, tuned_problem
from atune.model.candidate import printable
from atune.reporting.set_table import row_line, set_data, set_lines
from atune.workers.storage.result_cache import ResultCache

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts
    from atune.workload.pickling import FileRef


def tune_set_command(
    workload: FileRef,
    problems: Problems,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    interrupts: Interrupts,
) -> int:
    """Tune each of `problems` and print the table. Returns 0 if each has a winner. Raises `UsageError`."""
    for option in ("dry_run", "compile_only"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} takes one problem: give each argument one value")
    folder = arguments.journal or str(ResultCache().new_path(Path(workload.path).stem).with_suffix(""))
    if is_set(Path(folder)):
        print_message(f"{folder} exists: its problems are continued if the work is the same", kind="")
    options["journal"] = folder
    return drive_set(partial(tune_set, workload, problems), options, folder, arguments, interrupts)


def resume_set_command(arguments: argparse.Namespace, options: dict[str, Any], interrupts: Interrupts) -> int:
    """Continue the set of a folder, and print the table as `tune_set_command` does. Raises `UsageError`."""
    folder = arguments.journal
    # Printed before it begins, because resuming runs that file.
    named = arguments.workload or getattr(header_of_set(Path(folder)), "origin", "")
    print_message(f"resuming the problems of {folder}{f' with {printable(named)}' if named else ''}", kind="")
    return drive_set(partial(resume_set, folder, arguments.workload), options, folder, arguments, interrupts)


def watch_set_command(arguments: argparse.Namespace) -> int:
    """Print a line for each problem as its run ends, and the table when no run writes the set any more."""
    folder = Path(arguments.journal)
    ended = {journal for journal in listed(folder) if is_ended(journal)}
    if is_set_written(folder):
        print_message(f"{len(ended)} of {len(listed(folder))} problems have ended", kind="")
    while is_set_written(folder):
        time.sleep(POLL_S)
        problems = listed(folder)
        for journal in problems:
            if journal not in ended and is_ended(journal):
                ended.add(journal)
                row = tuned_problem(problems[journal], journal)
                print_message(f"[{len(ended)}/{len(problems)}] {row_line(row)}", kind="")
    return show_set(read_set(folder), arguments)


def drive_set(
    call: Callable[..., Awaitable[SetResult]],
    options: dict[str, Any],
    folder: str,
    arguments: argparse.Namespace,
    interrupts: Interrupts,
) -> int:
    """Await `call` with `options` and what the screen needs. Returns the exit status."""
    options["progress"] = not (arguments.quiet or arguments.verbose)
    if arguments.verbose:
        from atune.reporting.log import event_logger

        options["on_event"] = event_logger()
    with interrupts.counted():
        ended = anyio.run(interruptible, partial(call, **options), interrupts, lambda: None, backend="asyncio")
    if (ended is None or isinstance(ended, NoWinner)) and (arguments.table or arguments.json):
        with suppress(UsageError):  # nothing was begun
            show_set(read_set(folder), arguments)
    if ended is None:
        kept = "nothing has begun"
        if journals_in(Path(folder)):
            kept = f"what was measured is kept; continue with atune resume {shlex.quote(folder)}"
        print_message(f"interrupted; {kept}", kind="")
        return INTERRUPTED
    if isinstance(ended, NoWinner):
        print_message(str(ended))
        return NO_WINNER
    if isinstance(ended, BaseException):
        return report_error(ended, debug=arguments.debug, json=arguments.json)
    return show_set(ended, arguments)


def show_set(found: SetResult, arguments: argparse.Namespace) -> int:
    """Print a set's result in the requested form. Returns 0 if each problem has a winner, else 1."""
    if arguments.table:
        from atune.reporting.export import table

        for row in found:
            if row.result is not None:
                print_out(f"{row.problem}\n{table(row.result)}\n")
    if arguments.json:
        print_out(json.dumps(set_data(found, found.folder)))
    else:
        print_lines(set_lines(found, found.folder))
    return OK if len(found.winners) == len(found) else NO_WINNER

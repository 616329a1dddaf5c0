"""The command line. Exit status: 0 (winner found), 1 (nothing worked), 2 (the caller's mistake), 130 (interrupted)."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atune.errors import UsageError
from atune.frontends.cli.output import (
    NO_WINNER,
    USAGE,
    OutputLost,
    answer,
    print_lines,
    print_message,
    print_out,
    report_error,
)
from atune.frontends.cli.parsing import Parser
from atune.version import __version__
from atune.workers.terminal import Interrupts, discard, prepare

if TYPE_CHECKING:
    from atune.frontends.tune_set import SetResult
    from atune.journal.result import Result

OK, INTERRUPTED = 0, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status. Nothing else in atune installs signal handlers.

    If `argv` is None, use the process's own arguments, and leave the handlers installed until the process ends, so that
    a late Ctrl-C shows no traceback. If `argv` is given, restore the former handlers at the end.
    """
    if argv is not None:
        return _run(argv, keep=False)
    prepare()
    warnings.showwarning = lambda message, *_: print_message(str(message), kind="warning: ")
    try:
        if (status := _run(sys.argv[1:], keep=True)) == INTERRUPTED:
            os._exit(status)  # does not wait for threads, which may be waiting for a slow disk or a program
        return status
    finally:
        gc.freeze()  # spares Python a search for garbage in all imported modules at exit


def _run(argv: Sequence[str], *, keep: bool) -> int:
    """Run a command and return the exit status. `keep`: leave the signal handlers installed."""
    arguments: argparse.Namespace | None = None
    with Interrupts(keep=keep) as interrupts:
        try:
            arguments = make_parser(bare=argv[:1] == ["--version"]).parse_args(argv)
            if getattr(arguments, "quiet", False) and arguments.verbose:
                raise UsageError("--quiet and --verbose exclude each other: leave one of them out")
            from atune.frontends.cli.commands import run_command  # here, because packages that it needs may be missing

            return run_command(arguments, interrupts)
        except SystemExit as error:  # --help and --version
            try:
                sys.stdout.flush()
            except OSError:
                discard(sys.stdout, 1)
            return error.code if isinstance(error.code, int) else USAGE
        except BrokenPipeError:
            return OK  # the reader of the output left (`… | head`)
        except (Exception, KeyboardInterrupt) as error:
            # Python 3.11 wraps an exception that __set_name__ raises, even KeyboardInterrupt.
            if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
                print_message("interrupted", kind="")
                return INTERRUPTED
            wanted = "--json" in argv if arguments is None else arguments.json
            return report_error(error, debug=arguments is not None and arguments.debug, json=wanted)


def show(result: Result, arguments: argparse.Namespace) -> int:
    """Print `result` in the requested form and return the exit status. With --json, the last line is a JSON object."""
    # Imported here and below, so that `atune --help` stays fast: it shows no result.
    from atune.reporting.export import table
    from atune.reporting.summary import result_lines, summary
    from atune.reporting.text import Line

    if getattr(arguments, "table", False):
        print_lines([*map(Line, table(result).splitlines()), Line("")])
    answer(arguments, lambda: summary(result), lambda: result_lines(result))
    return OK if result.best is not None else NO_WINNER


def show_set(result: SetResult, arguments: argparse.Namespace) -> int:
    """Print a set's result in the requested form. Returns 0 if each problem has a winner, else 1."""
    # Imported here for the same reason as in `show`.
    from atune.reporting.export import table
    from atune.reporting.set_table import set_data, set_lines

    if getattr(arguments, "table", False):
        for row in result:
            if row.result is not None:
                print_out(f"{row.problem}\n{table(row.result)}\n")
    answer(arguments, lambda: set_data(result, result.folder), lambda: set_lines(result, result.folder))
    return OK if len(result.winners) == len(result) else NO_WINNER


def show_kept(result: Result, arguments: argparse.Namespace) -> int:
    """Print the result of a run as `show` does. Even if writing to stdout fails, return the exit status of the run."""
    try:
        return show(result, arguments)
    except (BrokenPipeError, OutputLost) as error:
        if isinstance(error, OutputLost):
            kept = "" if result.journal is None else f"; to see the result: atune replay {shlex.quote(result.journal)}"
            print_message(f"{error}{kept}", kind="")
        return OK if result.best is not None else NO_WINNER


def make_parser(*, bare: bool = False) -> Parser:
    """Return the parser of the command line. `bare`: leave out the commands and everything that they import."""
    parser = Parser(prog="atune", description="Tune TileLang kernels.", epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"atune {__version__}")
    if not bare:
        from atune.frontends.cli.commands import add_commands

        add_commands(parser)
    return parser


_EXAMPLES = """\
examples:
  atune tune gemm.py --budget 10%    # tune the workload in a file
  atune runs                         # list earlier runs
  atune report latest                # write a page about the last run

Each command has its own help: atune tune --help, for example."""

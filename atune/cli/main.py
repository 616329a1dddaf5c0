"""The command line. Exit status: 0 winner found, 1 no candidate worked, 2 the caller's mistake, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from atune.cli.cache import add_cache_commands
from atune.cli.completion import add_completion
from atune.cli.explain import add_explain_command
from atune.cli.journal import add_journal_commands
from atune.cli.mistakes import NO_WINNER, USAGE, report_error
from atune.cli.parsing import add_command
from atune.cli.printing import OutputLost, complain, fitted, fitted_rows, say
from atune.cli.server import add_server_commands
from atune.cli.show import add_show_command
from atune.cli.suggest import add_suggest_command
from atune.cli.tune_options import add_tune_options
from atune.errors import UsageError
from atune.system.signals import Interrupts
from atune.system.streams import discard, prepare
from atune.version import __version__

if TYPE_CHECKING:
    from atune.journal.result import TuneResult

OK, INTERRUPTED = 0, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Nothing else in atune installs signal handlers.

    `argv` defaults to the process's own arguments. The handlers then stay until the process ends, so that a late
    Ctrl-C shows no traceback. With `argv` given, the former handlers are restored.
    """
    arguments: argparse.Namespace | None = None
    if argv is None:
        prepare()
    with Interrupts(keep=argv is None) as interrupts:
        try:
            arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
            status: int = arguments.command(arguments, interrupts)
            return status
        except SystemExit as error:  # --help and --version
            try:
                sys.stdout.flush()
            except OSError:
                discard(sys.stdout, 1)
            return error.code if isinstance(error.code, int) else USAGE
        except KeyboardInterrupt:
            complain("interrupted", kind="")
            return INTERRUPTED
        except BrokenPipeError:
            return OK  # the reader of the output left (`… | head`)
        except Exception as error:
            wanted = "--json" in (sys.argv if argv is None else argv) if arguments is None else arguments.json
            return report_error(error, debug=arguments is not None and arguments.debug, json=wanted)


def show(result: TuneResult, arguments: argparse.Namespace) -> int:
    """Print `result` in the requested form and return the exit status. A JSON object is the last line."""
    from atune.cli.summary import summary_text

    if arguments.table:
        say(fitted_rows(result.table()))
    say(json.dumps(result.summary()) if arguments.json else fitted(summary_text(result)))
    return OK if result.best is not None else NO_WINNER


def show_kept(result: TuneResult, arguments: argparse.Namespace) -> int:
    """Print the result of a run as `show` does. The exit status is the run's, even if stdout fails."""
    try:
        return show(result, arguments)
    except (BrokenPipeError, OutputLost) as error:
        if isinstance(error, OutputLost):
            kept = "" if result.journal is None else f"; atune replay {result.journal} shows the result"
            complain(f"{error}{kept}", kind="")
        return OK if result.best is not None else NO_WINNER


def _tune(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if not arguments.dry_run:
        from atune.local.fork_servers import warm_early

        warm_early()  # answers 0.1 s sooner than the imports below allow
    from atune.cli.tune import tune_command

    return tune_command(arguments, interrupts)


def _doctor(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import msgspec

    from atune.cli.doctor import can_tune, examine, render

    checks = examine()
    if arguments.calibrate:
        from atune.cli.calibrate import calibrate

        checks += calibrate()
    ready = can_tune(checks)
    if arguments.json:
        say(json.dumps({"ok": ready, "checks": msgspec.to_builtins(checks)}))
    else:
        say(render(checks))
    return OK if ready else NO_WINNER


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="atune", description="Tune TileLang kernels.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"atune {__version__}")
    add_completion(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    shown = _Parser(add_help=False)
    shown.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    shown.add_argument("--debug", action="store_true", help="show tracebacks")

    add_tune_options(add_command(commands, shown, "tune", _tune, "Tune a workload"))

    add_suggest_command(commands, shown)
    add_journal_commands(commands, shown)
    add_show_command(commands, shown)
    add_explain_command(commands, shown)
    add_cache_commands(commands, shown)
    add_server_commands(commands, shown)

    doctor = add_command(commands, shown, "doctor", _doctor, "Show what this machine can tune and what is missing")
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure each GPU's peaks, about 1 s each, and keep them for the rooflines of later runs",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The command line. Exit status: 0 winner found, 1 no candidate worked, 2 the caller's mistake, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from atune.cli.cache import add_cache_commands
from atune.cli.completion import add_completion
from atune.cli.explain import add_explain_command
from atune.cli.journal import PLAIN, add_journal_commands, strategy_name
from atune.cli.mistakes import NO_WINNER, USAGE, report_error
from atune.cli.printing import OutputLost, complain, fitted, fitted_rows, say
from atune.cli.server import add_server_commands
from atune.cli.show import add_show_command
from atune.cli.suggest import add_suggest_command
from atune.cluster.address import HELP as CLUSTER_HELP
from atune.errors import UsageError
from atune.model.settings import ACCELERATORS, BACKENDS
from atune.search.choosing import SHOWN
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


def summary_text(result: TuneResult) -> str:
    """Return the result's summary as text."""
    from atune.journal.failures import first_failure_lines
    from atune.journal.result import failure_lines, printable
    from atune.reporting.checked import unchecked_lines
    from atune.reporting.efficiency import inert_lines, roofline_lines
    from atune.reporting.headline import headline_lines
    from atune.reporting.progress import duration

    lines = []
    if result.header is not None and result.header.shard is not None:
        lines.append(f"shard      {result.header.shard.shard} of {result.header.shard.total} candidates")
    if result.best is None or result.latency_ms is None:
        lines.append("no winner: no candidate worked" if result.finished else "no candidate has been measured")
    else:
        lines += headline_lines(result)
        lines += unchecked_lines(result)
        lines += roofline_lines(result)
    counts = (
        f"{result.measured} measured, {result.failed} failed, {result.pruned} pruned, {result.duplicates} duplicates"
    )
    left = f", {result.remaining} remaining" if result.remaining else ""
    points = "points    " if result.remaining and result.header is not None and result.header.large else "candidates"
    lines.append(f"{points} {result.total}: {counts}{left}; {duration(result.wall_s)}")
    lines += [f"           {line}" for line in failure_lines(result)]
    lines += [f"             {line}" for line in first_failure_lines(result)]
    if result.axis_importance is not None:
        lines.append(f"axes that mattered: {printable(result.axis_importance.describe())}")
    if result.stored:
        lines.append(f"reused     {result.stored} of {result.built} libraries of kernels, from the artifact store")
    lines += inert_lines(result)
    if not result.finished:
        lines.append(f"ended      {_unfinished(result)}")
    if result.reason == "until":
        lines.append("ended      the chance of a further gain is below one in ten")
    if result.audited is not None:
        a = result.audited
        told = (
            f"none of them tried: {a.missing}" if a.missing else f"{a.tried} of them tried: {a.wrong} were the fastest"
        )
        lines.append(f"audit      {a.skipped} skipped as likely to lose, {told}")
    lines += [f"noise      {printable(text)}" for text in result.noise]
    if result.journal is not None:
        lines.append(f"journal    {printable(result.journal)}")
    if result.wins_by is not None:
        lines.append(f"wins by    {printable(result.wins_by)}")
    return "\n".join(lines)


def _unfinished(result: TuneResult) -> str:
    on = "" if result.journal is None else f"; atune resume {shlex.quote(result.journal)} goes on"
    return f"interrupted{on}" if result.interrupted else f"not yet: the run is under way, or was killed{on}"


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


def _number(unit: str, *, whole: bool = True, zero: bool = False) -> Callable[[str], float]:
    """Return an argparse type for a number of `unit`. `whole`: only integers; `zero`: zero is allowed."""

    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            kind = "whole number" if whole else "number"
            least = "zero or more" if zero else "above zero"
            raise argparse.ArgumentTypeError(f"must be a {kind} of {unit}, {least}, got {text!r}")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="atune", description="Tune TileLang kernels.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"atune {__version__}")
    add_completion(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    shown = _Parser(add_help=False)
    shown.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    shown.add_argument("--debug", action="store_true", help="show tracebacks")

    tune = commands.add_parser(
        "tune", parents=[shown], allow_abbrev=False, help="tune a workload", description="Tune a workload."
    )
    tune.set_defaults(command=_tune)
    tune.add_argument("workload", metavar="FILE.py:NAME", help="an atune.Workload by file and name (WORKLOAD)")
    _add_search(tune.add_argument_group("search"))
    _add_where(tune.add_argument_group("where"))
    _add_compiling(tune.add_argument_group("compiling"))
    _add_measuring(tune.add_argument_group("measuring"))
    _add_output(tune.add_argument_group("output"))

    add_suggest_command(commands, shown)
    add_journal_commands(commands, shown)
    add_show_command(commands, shown)
    add_explain_command(commands, shown)
    add_cache_commands(commands, shown)
    add_server_commands(commands, shown)

    doctor = commands.add_parser(
        "doctor",
        parents=[shown],
        help="show what this machine can tune",
        description="Show what this machine can tune and what is missing.",
    )
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure each GPU's peaks, about 1 s each, and keep them for the rooflines of later runs",
    )
    doctor.set_defaults(command=_doctor)
    return parser


_SWITCH = argparse.BooleanOptionalAction


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dry-run", action="store_true", help="print what would be done; compile and measure nothing")
    group.add_argument(
        "--compile-only",
        action="store_true",
        help="compile every candidate and measure none; with a target such as sm_90a no GPU is needed",
    )
    group.add_argument(
        "--strategy",
        type=strategy_name,
        metavar="NAME",
        help=f"{', '.join(SHOWN)} (exhaustive; auto under a budget, or what the journal began with)",
    )
    group.add_argument(
        "--prior",
        action=_SWITCH,
        default=True,
        help="begin a search with the candidates that the machine model prefers (on)",
    )
    group.add_argument(
        "--seed", type=_number("seed", zero=True), default=0, metavar="N", help="seed of the strategy (0)"
    )
    group.add_argument(
        "--budget",
        metavar="N|10%|90s|20ds",
        help="stop after N candidates, a share of them, a time (s, m or h), or device seconds (ds)",
    )
    group.add_argument(
        "--until", metavar="2%", help="end when the chance of a gain above this share falls below one in ten"
    )
    group.add_argument(
        "--keep", metavar="N|10%", help="try only the N candidates (or the share) that the prior ranks best"
    )
    group.add_argument(
        "--audit",
        nargs="?",
        const=True,
        metavar="10%",
        help="measure a share of the candidates skipped as likely to lose, and count wrong skips (10 %%)",
    )
    group.add_argument(
        "--warm",
        action="append",
        default=[],
        metavar="J",
        help="begin with the best of this journal of the same kernel, or of the result cache (cache); repeatable",
    )
    group.add_argument("--shard", metavar="2/4", help="try only this shard; atune merge joins the journals of all")
    group.add_argument(
        "--topk", type=_number("candidates"), metavar="N", help="try only the first N candidates; sets the budget"
    )


def _add_where(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--target", default="auto", help="auto, cuda (or an arch such as sm_90a), or c (auto)")
    group.add_argument("--devices", metavar="all|cpu|0,1", help="devices to measure on (all)")
    group.add_argument(
        "--device", action="append", metavar="cpu|0", help="one device to measure on; repeatable, instead of --devices"
    )
    group.add_argument("--cluster", metavar="ADDRESS", help=CLUSTER_HELP)


def _add_compiling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--pipeline", action=_SWITCH, default=True, help="measure candidates while others compile (on)")
    group.add_argument(
        "--group-size", type=_number("candidates"), metavar="N", help="candidates per library; 1 turns grouping off"
    )
    group.add_argument(
        "--workers", type=_number("processes"), metavar="N", help="compile processes (from the number of cores)"
    )
    group.add_argument("--backend", default="auto", help=f"{BACKENDS} (auto)")
    group.add_argument(
        "--layouts", type=_number("layouts"), metavar="N", help="measure the N best layouts of a configuration (all)"
    )
    group.add_argument("--store", action=_SWITCH, default=True, help="use and keep compiled libraries (on)")
    group.add_argument(
        "--accelerate",
        default="auto",
        metavar="HOW",
        help=f"compile faster: auto, off, some of {','.join(ACCELERATORS)}, or auto without some (auto,-cicc) (auto)",
    )
    group.add_argument(
        "--proof",
        action=_SWITCH,
        default=True,
        help="compile the winner again without accelerators, and compare (on)",
    )
    group.add_argument(
        "--compile-timeout",
        type=_number("seconds", whole=False),
        default=120.0,
        metavar="S",
        help="time limit for one lowering, or for one group's compile, in seconds (120)",
    )
    group.add_argument(
        "--end-hopeless", action=_SWITCH, default=True, help="end compiles that take far longer than the others' (on)"
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    milliseconds = _number("milliseconds", whole=False)
    group.add_argument(
        "--timeout",
        type=_number("seconds", whole=False),
        default=60.0,
        metavar="S",
        help="time limit for measuring one candidate, in seconds (60)",
    )
    group.add_argument(
        "--warmup", type=_number("calls", zero=True), default=3, metavar="N", help="calls before timing (3)"
    )
    group.add_argument("--rep", type=_number("samples"), default=20, metavar="N", help="samples per timing (20)")
    group.add_argument("--warmup-ms", type=milliseconds, metavar="MS", help="warm up for this time instead of --warmup")
    group.add_argument("--rep-ms", type=milliseconds, metavar="MS", help="time for this long instead of --rep")
    group.add_argument(
        "--method",
        default="auto",
        help="auto, events (or event), cuda_graph (or cudagraph) or cupti on GPUs, perf_counter (or wall) on the CPU "
        "(auto)",
    )
    group.add_argument(
        "--adaptive", action=_SWITCH, default=True, help="take few samples of plainly slow candidates (on)"
    )
    group.add_argument(
        "--n-final", type=_number("candidates", zero=True), default=5, metavar="N", help="finalists to re-benchmark (5)"
    )
    group.add_argument(
        "--n-final-limit",
        type=_number("rounds"),
        default=200,
        metavar="N",
        help="most rounds of the final benchmark (200)",
    )
    group.add_argument("--skip-check", action="store_true", help="do not compare outputs with the reference")
    group.add_argument("--cache-inputs", action=_SWITCH, default=True, help="make the inputs once per device (on)")
    group.add_argument(
        "--input-seed", type=_number("seed", zero=True), default=0, metavar="N", help="seed of the inputs (0)"
    )
    group.add_argument(
        "--standby", action=_SWITCH, default=None, help="keep a second process on each GPU (if memory allows)"
    )
    group.add_argument(
        "--energy", action="store_true", help="measure the finalists' power and energy, where the GPU counts it"
    )
    group.add_argument("--mixed-devices", action="store_true", help="allow GPUs of different models in one run")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--journal", metavar="J", help="write the events here (a new file in the user's cache folder)")
    group.add_argument("--table", action="store_true", help="print every candidate")
    group.add_argument("--quiet", action="store_true", help="show no progress on stderr")
    group.add_argument("--plain", action="store_true", help=PLAIN)
    group.add_argument("--verbose", action="store_true", help="log every event on stderr instead of the progress")
    group.add_argument("--log-json", action="store_true", help="like --verbose, with one JSON object per event")


if __name__ == "__main__":
    sys.exit(main())

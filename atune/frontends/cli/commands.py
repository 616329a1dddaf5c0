"""The commands, their arguments and their functions. A command's module is imported only if the command runs."""

import argparse
import importlib
import re
from functools import partial
from typing import Annotated, Any, TypedDict

from atune.frontends.cli.parsing import SHARED, Parser, name_of
from atune.frontends.run_options import EngineOptions, MeasureOptions, RunOptions, TuneOptions
from atune.model.options import SWITCH, Option, option, options_of
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.terminal import Interrupts

SHOWN = 20
"""Number of runs to list without ``--all``."""
_JOURNAL = "a journal's path, or a run in the list of atune runs: latest, its number, or the start of its name"
_WORKLOAD = "a file or package.module; add the name if there are several workloads or decorated kernels"
_EXAMPLES = """\
examples:
  atune tune gemm.py                      # tune the workload in a file
  atune tune gemm.py:GEMM --budget 10%    # try a tenth, the likeliest first
  atune tune gemm.py --dry-run            # count the candidates, and stop"""


class CommandOptions(TypedDict):
    """Options that exist only on the command line."""

    # fmt: off
    arg: Annotated[list[str], option(
        "Set an argument of the problem, which replaces the value in the file; if arguments have several values, tune "
        "every combination as a set.",
        flag="--arg", metavar="NAME=V[,V]", repeat=True, group="where", page="how/shapes.md",
    )]
    problems: Annotated[str | None, option(
        "Tune all problems that a .json, .jsonl or .csv file lists, as a set.",
        flag="--problems", metavar="FILE", group="where", page="how/shapes.md",
    )]
    dry_run: Annotated[bool, option(
        "Measure nothing: --dry-run counts the candidates, and --compile-only compiles them; if the target is an "
        "architecture such as sm_90a, no GPU is needed.",
        default=False, flag="--dry-run|--compile-only", group="preview", page="concepts.md#dry-run",
    )]
    quiet: Annotated[bool, option(
        "Show no progress on stderr (--quiet), or log every event to stderr instead (--verbose). Unless stderr is a "
        "terminal, each event is a JSON object.",
        default=False, flag="--quiet|--verbose", group="output",
    )]
    # fmt: on


def run_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Carry out the parsed command. Returns the exit status."""
    module, _, function = arguments.command.partition(":")
    if function in ("tune_command", "pick_command", "measure_command") and not getattr(arguments, "dry_run", False):
        from atune.workers.server import warm_early  # the other commands start no processes

        warm_early()
    command = getattr(importlib.import_module(f"atune.frontends.cli.{module}"), function)
    interrupts.loaded()
    status: int = command(arguments, interrupts)
    return status


def add_commands(parser: Parser) -> None:
    """Add the commands to the command line's parser, in the order of its help."""
    add = partial(_add, parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    workload = _taking("workload", metavar="FILE.py[:NAME]", help=_WORKLOAD)
    another = _taking("--workload", metavar="FILE.py:NAME", help="the workload [default: the journal's]")
    journal, table = _journal(), _taking("--table", action="store_true", help="print every candidate")
    accept = partial(_taking, "--accept", action="append", default=[], metavar="PART")
    settings = accept(help="settings: trust the journal's settings for compilers; may be repeated")
    output = partial(_taking, "-o", "--output", metavar="FILE")

    add("tune", "tune:tune_command", "Tune a workload", workload, _of_tune(), epilog=_EXAMPLES)

    listed = _taking("--all", action="store_true", help=f"list all runs instead of the newest {SHOWN}")
    add("runs", "runs:runs_command", "List earlier runs", listed)

    cache = add("cache", "", "List, clear or export cached results")
    add_kept = partial(_add, cache.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    kernel = _taking("--kernel", metavar="NAME", help="only results for kernels with this name")
    key = _taking("--key", metavar="KEY", help="only results whose key starts with KEY")
    add_kept("ls", "runs:ls_results_command", "List the results, newest first", kernel, key)
    text = "Remove results and their journals from the cache; without --kernel or --key, remove all results"
    add_kept("clear", "runs:clear_results_command", text, kernel, key)
    text = "Write results as JSON, to ship with a program"
    add_kept("export", "runs:export_results_command", text, kernel, key, output(help="the file [default: stdout]"))

    parts = accept(help="continue if this part differs: kernel, target, device, versions or settings; may be repeated")
    told = _of(RunOptions, "budget", "devices", "cluster", unset="the journal's")
    shown = _of(CommandOptions, "quiet")
    add("resume", "runs:resume_command", "Continue an interrupted run", journal, another, parts, told, shown)
    add("replay", "runs:replay_command", "Show a journal's result; runs no code", journal, table)
    add("watch", "runs:watch_command", "Follow a run that another process carries out; runs no code", journal, table)
    page = output(help="the path of the page, or - for stdout [default: the journal's path, ending in .html]")
    add("report", "runs:report_command", "Write a journal's report as an HTML page; runs no code", journal, page)
    to = _taking("--to", required=True, metavar="csv|json", help="the format")
    text = "Write a journal's records for other tools; runs no code"
    add("export", "runs:export_command", text, journal, to, output(help="the file [default: stdout]"))
    text = "Merge several journals of the same work into one; runs no code"
    merged = output(help="the file for the new journal; without -o, the command only prints the result")
    add("merge", "runs:merge_command", text, _journal(nargs="+"), merged, table)
    text = "Compare the winners of two journals or two folders; exits with 1 if a winner got slower; runs no code"
    two = [_journal(name, help=f"journal or folder of journals from {name} the change") for name in ("before", "after")]
    limit = "exit with 1 if the low end of a winner's slowdown interval is above X%% [default: 2%%]"
    over = _taking("--fail-over", metavar="X%", type=_percentage, default=0.02, help=limit)
    add("compare", "runs:compare_command", text, *two, over)
    text = "Write winners and their libraries as a bundle; a bundle runs without tilelang"
    journals, folder = (
        _journal(nargs="+", help=f"{_JOURNAL}, or the folder of a set"),
        output(metavar="DIR", required=True, help="the new folder"),
    )
    add("bundle", "runs:bundle_command", text, journals, folder, settings)

    which = "the candidate's number [default: the winner, or without a winner, the first failure; for a set, its table]"
    index = _taking("index", type=int, nargs="?", metavar="INDEX", help=which)
    add("show", "runs:show_command", "Show all that a journal has about a candidate; runs no code", journal, index)
    text = "Compile a configuration, and show its layouts, registers and occupancy; or compare two configurations"
    what = _taking("what", metavar="FILE.py[:NAME]|J", help="a workload, or a journal")
    which = "the number of a candidate of the journal, or two numbers to compare [default: the winner]"
    indices = _taking("index", type=int, nargs="*", metavar="INDEX", help=which)
    which = "the configuration; give the option twice to compare two configurations [default: the kernel's defaults]"
    config = _taking("--config", action="append", default=[], metavar="a=1,b=2", help=which)
    sizes, target = _of(CommandOptions, "arg"), _of(EngineOptions, "target", unset="auto, or the journal's")
    source = _taking("--source", action="store_true", help="also print the generated device source")
    limit_s = _of(CompileSettings, "compile_timeout_s")
    taken = (what, indices, config, sizes, target, source, another, settings, limit_s)
    add("explain", "preview:explain_command", text, *taken)

    text = "Name the configurations that are probably the fastest; compiles and measures nothing"
    number = _taking("-n", type=int, default=3, metavar="N", help="number of configurations [default: 3]")
    which = "choose for this GPU model, such as H100 or RTX4090 [default: this machine's GPU]"
    add("pick", "preview:pick_command", text, workload, number, _taking("--gpu", metavar="NAME", help=which), sizes)
    text = "Check and time kernels that nobody trusts; exits with 0 if all pass"
    which = "a file with a kernel function, or - to read file names from standard input"
    files = _taking("candidates", nargs="+", metavar="FILE.py[:NAME]", help=which)
    task = _taking("--task", required=True, metavar="FILE.py[:NAME]", help=f"the trusted workload: {_WORKLOAD}")
    told = _of(MeasureOptions, "problems", "allow", "target", "devices", "journal")
    within_s = _of(BenchmarkSettings, "benchmark_timeout_s")
    add("measure", "tune:measure_command", text, files, task, told, limit_s, within_s)
    add("doctor", "doctor:doctor_command", "Show what this machine can tune, and what is missing")


def _add(commands: Any, name: str, command: str, text: str, *taken: Parser, **options: Any) -> Parser:
    """Add the command `name`. `text`: the description; the list of commands shows the part before a semicolon.

    `command`: the module and the function in this folder that carry out the command, or ``""`` for a command group.
    """
    help = f"{text[0].lower()}{text[1:]}".partition(";")[0]
    shared = [_taking(flag, action="store_true", help=what) for flag, what in SHARED.items()] if command else []
    parser: Parser = commands.add_parser(name, parents=[*shared, *taken], help=help, description=f"{text}.", **options)
    parser.set_defaults(**({"command": command} if command else {}))
    return parser


def _taking(*names: str, **how: Any) -> Parser:
    """Return a parent parser that adds an argument to commands."""
    parser = Parser(add_help=False)
    parser.add_argument(*names, **how)
    return parser


def _journal(name: str = "journal", **how: Any) -> Parser:
    """Return a parent parser with an argument for a journal. The help shows the argument as J."""
    return _taking(name, **{"metavar": "J", "help": _JOURNAL, "type": _journal_path, **how})


def _journal_path(text: str) -> str:
    from atune.frontends.cli.runs import find_journal  # imports the result cache, which --help does not need

    return find_journal(text)


def _percentage(text: str) -> float:
    """Read a percentage such as ``2%``. Refuse a number without %, which could be a fraction."""
    if not re.fullmatch(r"\d+(\.\d*)?%", text):
        raise argparse.ArgumentTypeError(f"must be a percentage of zero or more, such as 2%, got {text!r}")
    return float(text[:-1]) / 100


def _of(group: type[Any], *names: str, unset: str = "") -> Parser:
    """Return a parent parser with the named options of a group. `unset`: how the help describes the default."""
    parser = Parser(add_help=False)
    for name in names:
        add_option(parser, parser, options_of(group)[name], unset)
    return parser


def _of_tune() -> Parser:
    """Return a parent parser with the options of ``tune`` under their headings."""
    parser = Parser(add_help=False)
    for heading, options in groups().items():
        group = parser.add_argument_group(heading)
        for each in options:
            add_option(parser, group, each)
    return parser


def groups() -> dict[str, list[Option]]:
    """Return the options of ``tune``, grouped by the headings of the help."""
    by_heading = {name: list[Option]() for name in ("search", "where", "preview", "output", "compiling", "measuring")}
    for each in (*with_flags(TuneOptions), *with_flags(CommandOptions)):
        by_heading[each.group].append(each)
    by_heading["compiling"] += with_flags(CompileSettings)
    by_heading["measuring"] += with_flags(BenchmarkSettings)
    return by_heading


def with_flags(group: type[Any]) -> list[Option]:
    """Return the options of a group that have a flag on the command line."""
    return [each for each in options_of(group).values() if each.flag]


def add_option(parser: Parser, heading: Any, option: Option, unset: str = "") -> None:
    """Add an option under a heading of a parser's help. `unset`: how the help describes the default."""
    flags, how = option.flag.split("|"), dict[str, Any](default=None if unset else option.default)
    if option.repeat:
        how = {"action": "append", "default": [], "metavar": option.metavar}
    elif len(flags) > 1:
        how |= {"action": _Each, "nargs": 0}
        parser.set_defaults(**{name_of(flag): False for flag in flags})
    elif skips(option):
        how["action"] = "store_false"
    elif option.kind in SWITCH:
        how["action"] = argparse.BooleanOptionalAction if option.default is not False else "store_true"
    else:
        how |= {"metavar": option.metavar or None, "type": partial(option.checked, f"{flags[0]}:", strict=False)}
    heading.add_argument(*flags, dest=option.name, help=help_of(option, unset).replace("%", "%%"), **how)


class _Each(argparse.Action):
    """The action of mutually exclusive flags. Each flag sets the attribute that is named after the flag."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        setattr(namespace, name_of(flag or ""), True)


def skips(option: Option) -> bool:
    """Tell whether an option is on by default, and has a flag that switches the option off."""
    return option.flag.startswith("--skip-")


def help_of(option: Option, unset: str = "") -> str:
    """Return the first sentence of an option's text, and the option's default. `unset`: how to describe the default."""
    sentence = re.split(r"\.(?: |$)", option.doc)[0].replace("`", "")
    if not sentence[1:2].isupper():
        sentence = sentence[0].lower() + sentence[1:]
    default, value = unset or option.unset, option.default
    if not default and value is not None and value is not False and not skips(option):
        default = "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    return (f"do not {sentence}" if skips(option) else sentence) + (f" [default: {default}]" if default else "")

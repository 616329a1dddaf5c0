"""The options of ``atune tune``, which has most of them. The command itself imports more: `tune`."""

from __future__ import annotations

import argparse
from typing import Annotated, Any, TypedDict

from atune.frontends.api.options import TuneOptions
from atune.frontends.cli.parsing import Parser, add_command, add_options, with_flags
from atune.model.options import Field, Option
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.system.terminal import Interrupts


class ScreenOptions(TypedDict):
    """Options of the command line alone."""

    # fmt: off
    quiet: Annotated[bool, Option(
        "Show no progress on stderr, or log every event there instead. Elsewhere than on a terminal each is a JSON "
        "object.",
        default=False, flag="--quiet|--verbose", group="output",
    )]
    # fmt: on


class ProblemOptions(TypedDict):
    """Options that choose the problem, or several."""

    # fmt: off
    arg: Annotated[list[str], Option(
        "Take these values of an argument of the problem, in place of the file's own. With several, every "
        "combination is tuned, as a set.",
        default=None, flag="--arg", metavar="NAME=V[,V]", action="repeat", group="where", page="how/shapes.md",
    )]
    problems: Annotated[str | None, Option(
        "Tune the set of problems in this file: a JSON list, .jsonl or .csv, of arguments.",
        flag="--problems", metavar="FILE", group="where", page="how/shapes.md",
    )]
    # fmt: on


class PreviewOptions(TypedDict):
    """Options that leave parts of a run out."""

    # fmt: off
    dry_run: Annotated[bool, Option(
        "Measure nothing: say what would be done, or compile every candidate; with a target such as sm_90a neither "
        "needs a GPU.",
        default=False, flag="--dry-run|--compile-only", group="preview", page="concepts.md#dry-run",
    )]
    # fmt: on


def groups() -> dict[str, list[Field]]:
    """Return the options of ``tune`` by the headings of the help."""
    found: dict[str, list[Field]] = {
        name: [] for name in ("search", "where", "preview", "output", "compiling", "measuring")
    }
    for kind in (TuneOptions, ProblemOptions, PreviewOptions, ScreenOptions):
        for field in with_flags(kind):
            found[field.option.group].append(field)
    found["compiling"] += with_flags(CompileSettings)
    found["measuring"] += with_flags(BenchmarkSettings)
    return found


_EXAMPLES = """\
examples:
  atune tune gemm.py                      # tune the workload of a file
  atune tune gemm.py:GEMM --budget 10%    # try a tenth, the likeliest first
  atune tune gemm.py --dry-run            # count the candidates, and stop"""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``tune``. `shown` holds the options that all commands share."""
    tune = add_command(commands, shown, "tune", _tune, "Tune a workload", epilog=_EXAMPLES)
    tune.add_argument("workload", metavar="FILE.py[:NAME]", help=WORKLOAD)
    for heading, fields in groups().items():
        add_options(tune, fields, tune.add_argument_group(heading))


WORKLOAD = "the file, or package.module, and the name of its atune.Workload or decorated kernel if it has several"


def _tune(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if not arguments.dry_run:
        from atune.workers.processes.server import warm_early

        warm_early()
    from atune.frontends.cli.tune import tune_command

    return tune_command(arguments, interrupts)

"""``atune compare``: the winners of two journals or folders of journals, problem by problem. Runs no code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from atune.frontends.cli.help import Parser
from atune.frontends.cli.output import print_lines, print_out
from atune.frontends.cli.parsing import add_command
from atune.frontends.cli.runs import find_journal

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts

_EXAMPLES = """\
examples:
  atune compare old.jsonl latest          # compare the last run with an older one
  atune compare before/ after/            # compare all problems of two folders of journals

The exit status is 1 where a winner is gone, or its ratio's whole interval is above --fail-over. It is 0 where the
interval leaves that open. Lines that begin with doubtful do not change it."""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``compare``. `shown` holds the options that all commands share."""
    text = "Compare the winners of two journals or folders of them; runs no code"
    compare = add_command(commands, shown, "compare", _compare, text, epilog=_EXAMPLES)
    word = "a path, a folder, latest, or a number or the start of a name in atune runs"
    compare.add_argument("before", metavar="J", type=find_journal, help=f"the older journal: {word}")
    compare.add_argument("after", metavar="J", type=find_journal, help="the newer one")
    limit = "by how much a winner may be slower [default: 2%%]"
    compare.add_argument("--fail-over", metavar="X%", type=_percentage, default=0.02, help=limit)


def _percentage(text: str) -> float:
    """Read ``2%``. A number alone is refused: it may be meant as a share."""
    try:
        value = float(text.removesuffix("%")) if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a percentage, zero or more, such as 2%, got {text!r}")
    return value / 100


def _compare(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import msgspec

    from atune.reporting.screen import fitted_table
    from atune.reporting.sets.compare import compare
    from atune.reporting.sets.comparison_text import WINNER, comparison_lines, comparison_table

    found = compare(arguments.before, arguments.after, fail_over=arguments.fail_over)
    if arguments.json:
        print_out(json.dumps({"slower": len(found.slower), **msgspec.to_builtins(found)}))
    else:
        print_lines(comparison_lines(found))
        print_out(f"\n{fitted_table(comparison_table(found), WINNER, sys.stdout)}")
    return 1 if found.slower else 0

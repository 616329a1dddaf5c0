"""``atune bundle``: write the winners of journals as a folder that serves them without tilelang or a compiler."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from atune.frontends.cli.parsing import Parser, add_command
from atune.frontends.cli.runs import JOURNAL, add_journal

if TYPE_CHECKING:
    from atune.journal.result import Result
    from atune.workers.system.terminal import Interrupts


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``bundle``. `shown` holds the options that all commands share."""
    text = "Write winners and their libraries as a bundle; it runs without tilelang"
    bundle = add_command(commands, shown, "bundle", _bundle, text)
    add_journal(bundle, nargs="+", help=f"{JOURNAL}, or the folder of a set")
    bundle.add_argument("-o", "--output", metavar="DIR", required=True, help="the new folder")


def _bundle(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.api.save_bundle import save_bundle
    from atune.frontends.cli.output import print_out

    results = [result for journal in arguments.journal for result in _results(journal)]
    folder, n = arguments.output, len(results)
    digest = save_bundle(folder, results)
    if arguments.json:
        print_out(json.dumps({"output": folder, "problems": n, "digest": digest}))
    else:
        print_out(f"bundle     {folder}, {n} problem{'s' * (n > 1)}\ndigest     {digest}")
    return 0


def _results(journal: str) -> list[Result]:
    """Return the result of a journal, or those of a set's problems that have a winner."""
    from atune.frontends.cli.output import print_message
    from atune.journal.reader import replay

    if not os.path.isdir(journal):
        return [replay(journal)]
    from atune.frontends.api.tune_set import read_set

    found = read_set(journal)
    if left := len(found) - len(found.winners):
        print_message(f"{left} of {len(found)} problems in {journal} have no winner, and are left out", kind="")
    return found.results

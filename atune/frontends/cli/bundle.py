"""``atune bundle``: write the winners of journals as a folder that serves them without tilelang or a compiler."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from atune.frontends.cli.help import Parser
from atune.frontends.cli.parsing import add_command
from atune.frontends.cli.runs import add_journal

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``bundle``. `shown` holds the options that all commands share."""
    text = "Write winners and their libraries as a bundle; it runs without tilelang"
    bundle = add_command(commands, shown, "bundle", _bundle, text)
    add_journal(bundle, nargs="+")
    bundle.add_argument("-o", "--output", metavar="DIR", required=True, help="the new folder")


def _bundle(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.api.save_bundle import save_bundle
    from atune.frontends.cli.output import print_out
    from atune.journal.replay import replay

    digest = save_bundle(arguments.output, [replay(journal) for journal in arguments.journal])
    n = len(arguments.journal)
    if arguments.json:
        print_out(json.dumps({"output": arguments.output, "problems": n, "digest": digest}))
    else:
        print_out(f"bundle     {arguments.output}, {n} problem{'s' * (n > 1)}\ndigest     {digest}")
    return 0

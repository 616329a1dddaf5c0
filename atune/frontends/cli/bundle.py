"""``atune bundle``: write the winners of journals as a folder that serves them without tilelang or a compiler."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atune.frontends.cli.help import Parser
from atune.frontends.cli.parsing import add_command
from atune.frontends.cli.runs import JOURNAL, add_journal

if TYPE_CHECKING:
    from atune.journal.result import Result
    from atune.reporting.screen import Line
    from atune.workers.system.terminal import Interrupts


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``bundle``. `shown` holds the options that all commands share."""
    text = "Write winners and their libraries as a bundle; it runs without tilelang"
    bundle = add_command(commands, shown, "bundle", _bundle, text)
    add_journal(bundle, nargs="+", help=f"{JOURNAL}, or the folder of a set")
    where = bundle.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", metavar="DIR", help="the new folder")
    where.add_argument("--into", metavar="DIR", help="the bundle that gets the winners, in place of the same problems'")


def _bundle(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.api.save_bundle import save_bundle
    from atune.frontends.cli.output import print_lines, print_out

    found = [each for journal in arguments.journal for each in _results(journal)]
    folder = arguments.into or arguments.output
    results, weights = [result for result, _ in found], [weight for _, weight in found]
    digest = save_bundle(folder, results, weights=weights, add=arguments.into is not None)
    if arguments.json:
        print_out(json.dumps({"output": folder, "problems": len(found), "digest": digest}))
    else:
        print_lines(bundle_lines(folder))
    return 0


def bundle_lines(folder: str) -> list[Line]:
    """Return what a bundle is, for a screen: problems, rule and digest."""
    from atune.bundle.manifest import read_manifest
    from atune.reporting.screen import Line

    manifest = read_manifest(Path(folder)).plain
    n, rules = len(manifest["problems"]), manifest["rule"] or ()
    alone = len({json.dumps([one["params"], one["outputs"]]) for one in manifest["problems"]}) == n
    why = "each kernel takes one problem alone (T.dynamic: all sizes)" if alone else "none could be tested"
    if asks := manifest.get("asks"):
        why = f"where= takes {', '.join(asks)}, and a bundle holds no functions"
    lines = [Line(f"bundle     {folder}, {n} problem{'s' * (n > 1)}", "strong")]
    for rule in rules:
        ranges = [f"{name} {least} to {most}" for name, (least, most) in rule["sizes"].items() if least < most]
        equal = {name: least for name, (least, most) in rule["sizes"].items() if least == most} | rule["others"]
        where = ", ".join([*ranges, *(f"{name}={value}" for name, value in equal.items())])
        regret = f"{100 * rule['regret']:.2g} % slower than the best on problems left out"
        lines.append(Line(f"rule       {rule['kind']}, {where}: {regret}, at worst {100 * rule['worst_regret']:.2g} %"))
    if not rules:
        lines.append(Line(f"rule       none: {why}; other sizes are a miss"))
    return [*lines, Line(f"digest     {manifest['digest']}")]


def _results(journal: str) -> list[tuple[Result, float]]:
    """Return the result of a journal, or those of a set's problems that have a winner, with their weights."""
    from atune.frontends.cli.output import print_message
    from atune.journal.replay import replay

    if not os.path.isdir(journal):
        return [(replay(journal), 1.0)]
    from atune.frontends.sets.tuning import read_set

    found = read_set(journal)
    if left := len(found) - len(found.winners):
        print_message(f"{left} of {len(found)} problems in {journal} have no winner, and are left out", kind="")
    return [(row.result, row.problem.weight) for row in found.winners if row.result is not None]

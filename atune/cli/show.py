"""``atune show``: one candidate of a journal, whole."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from atune.cli.parsing import add_command

if TYPE_CHECKING:
    from atune.system.signals import Interrupts


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add the command's parser to `commands`; `shown` has the options that all have."""
    parser = add_command(commands, shown, "show", _show, "Show one candidate of a journal whole; runs no code")
    parser.add_argument("journal", metavar="J", help="the journal's path")
    parser.add_argument(
        "index", type=int, nargs="?", metavar="INDEX", help="the candidate (the winner, or else the first that failed)"
    )


def _show(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.cli.printing import fitted, say
    from atune.reporting.explanation import candidate_story, story_data, story_lines

    story = candidate_story(arguments.journal, arguments.index)
    if arguments.json:
        say(json.dumps(story_data(story)))
        return 0
    told = (line if _verbatim(line) else fitted(line) for line in story_lines(story))
    say("\n".join(told))
    return 0


def _verbatim(line: str) -> bool:
    """Tell whether a line stands below a title as it was written, such as one of a traceback with its caret."""
    return line.startswith("  ") and not line.startswith("  samples ")

"""``atune suggest``: find the axes that change a kernel's code, and print a space with them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from atune.cli.output import write_output
from atune.cli.parsing import add_command
from atune.cli.printing import say

if TYPE_CHECKING:
    from atune.api.suggest import Suggestion
    from atune.system.signals import Interrupts


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add ``suggest``. `shown` holds the options that all commands share."""
    text = "Find the axes that change a kernel's code, and print a space with them; measures nothing"
    parser = add_command(commands, shown, "suggest", _suggest, text)
    parser.add_argument("workload", metavar="FILE.py:NAME", help="an atune.Workload by file and name (WORKLOAD)")
    parser.add_argument("--target", default="sm_90a", help="an arch such as sm_90a, cuda, or c (sm_90a)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the space to this file, as Python")


def _suggest(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import anyio
    import msgspec

    from atune.api.suggest import space_text, suggest
    from atune.workload.pickling import parse_file_ref

    found = anyio.run(partial(suggest, parse_file_ref(arguments.workload), target=arguments.target))
    space = space_text(found)
    if arguments.output is not None:
        text = f"# {found.workload}: axes that change its code for {found.target}.\nimport atune\n\nSPACE = {space}\n"
        write_output(arguments.output, text.encode(), private=False)
    if arguments.json:
        say(json.dumps({**msgspec.to_builtins(found), "space": space}))
        return 0
    lines = list(lines_of(found))
    say("\n".join(lines if arguments.output is not None else [*lines, "", space]))
    return 0


def lines_of(found: Suggestion) -> Iterator[str]:
    """Return a line for each axis, for each value with the same code, and for each value that does not lower."""
    from atune.journal.printing import describe_config, printable

    yield f"{printable(found.workload)} for {found.target}, compared with {describe_config(found.base)}:"
    for axis in (*found.axes, *found.passes):
        if axis.changes:
            kept = ", ".join(printable(repr(value)) for value in axis.kept)
            yield f"  {axis.name}: changes the code: {kept}"
        elif axis.same:
            yield f"  {axis.name}: changes nothing"
        else:
            yield f"  {axis.name}: has no other value that lowers"
        for value, like in axis.same if axis.changes else ():
            yield f"      {printable(repr(value))} gives the same code as {printable(repr(like))}"
        for value, why in axis.failed:
            yield f"      {printable(repr(value))} does not lower: {printable(why.splitlines()[0] if why else '')}"

"""Options of the command line that had other names: the former ones still work, and stderr says so."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from atune.cli.printing import complain
from atune.model.former_names import COMMAND_LINE


class _Former(argparse.Action):
    """Appends to what the option's present name appends to."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        complain(f"{option_string} is called {COMMAND_LINE[option_string or '']} now", kind="warning: ")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])


def add_former(parser: argparse.ArgumentParser, option: str) -> None:
    """Have `parser` take the former names of `option`, which is repeatable, too; its help does not list them."""
    for old, new in COMMAND_LINE.items():
        if new == option:
            parser.add_argument(old, action=_Former, dest=option.removeprefix("--"), help=argparse.SUPPRESS)

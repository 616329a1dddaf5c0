"""Former names of options of the command line. They still work, with a warning on stderr."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from atune.cli.printing import complain
from atune.model.former_names import COMMAND_LINE


class _Former(argparse.Action):
    """Append to the list of the option's present name, and warn."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        complain(
            f"{option_string} is called {COMMAND_LINE[option_string or '']} now: use the new name", kind="warning: "
        )
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])


def add_former(parser: argparse.ArgumentParser, option: str) -> None:
    """Make `parser` accept the former names of the repeatable `option`. The help does not list them."""
    for old, new in COMMAND_LINE.items():
        if new == option:
            parser.add_argument(old, action=_Former, dest=option.removeprefix("--"), help=argparse.SUPPRESS)

"""What the commands' parsers share: how a command is added, and types and options that several commands have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from atune.errors import UsageError
from atune.search.choosing import check_name

PLAIN = "progress as lines, for logs, on a terminal, too"


def add_command(
    commands: Any, shown: argparse.ArgumentParser, name: str, command: Callable[..., int], text: str
) -> argparse.ArgumentParser:
    """Add the parser of a command to `commands`. `shown` holds the options that all commands share.

    `text`: what the command does, as the beginning of a sentence: its description, and its line in the help.
    """
    help = f"{text[0].lower()}{text[1:]}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, parents=[shown], allow_abbrev=False, help=help, description=f"{text}."
    )
    parser.set_defaults(command=command)
    return parser


def strategy_name(text: str) -> str:
    """Check a strategy's name, as an argparse type: the strategy exists and its library is installed."""
    try:
        check_name(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def number(unit: str = "", *, whole: bool = True, zero: bool = False) -> Callable[[str], float]:
    """Return an argparse type for a number of `unit`, or for a plain one. `whole`: only integers; `zero`: zero, too."""

    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            kind = "whole number" if whole else "number"
            least = "zero or more" if zero else "above zero"
            counted = f" of {unit}" if unit else ""
            raise argparse.ArgumentTypeError(f"must be a {kind}{counted}, {least}, got {text!r}")
        return value

    return parse

"""The command line starts quickly: it imports the module of a command when that runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest
from processes import environment

from atune.frontends.cli.main import make_parser


def functions_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what carries out each command of a parser, as ``module:function``."""
    inner = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for commands in inner:
        for command in commands.values():
            yield from functions_of(command)
    if not inner:
        yield parser.get_default("command")


def test_each_command_has_a_function_that_carries_it_out() -> None:
    for name in functions_of(make_parser()):
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(f"atune.frontends.cli.{module}"), function))


@pytest.mark.parametrize(
    ("option", "absent"),
    [
        ("--version", ("anyio", "msgspec", "atune.journal")),
        ("--help", ("structlog", "torch", "tilelang", "atune.frontends.cli.runs")),
    ],
)
def test_what_an_option_needs_not_is_not_imported(option: str, absent: tuple[str, ...]) -> None:
    program = f"import atexit, sys; atexit.register(lambda: print([m for m in {absent} if m in sys.modules])); "
    program += "import atune.__main__ as entry; sys.exit(entry.main())"
    done = subprocess.run(
        [sys.executable, "-c", program, option], capture_output=True, text=True, env=environment(), timeout=30
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr

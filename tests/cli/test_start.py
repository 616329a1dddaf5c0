"""The command line starts quickly: it adds the command that is asked for, and imports what that one needs."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from processes import environment

from atune.frontends.cli.main import _COMMANDS, make_parser


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [group] = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(group.choices)


EVERY = commands_of(make_parser())


def test_the_table_names_every_command() -> None:
    assert [name for names in _COMMANDS.values() for name in names] == list(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_command_alone_is_as_among_all(name: str) -> None:
    alone = commands_of(make_parser(name))
    assert alone[name].format_help() == EVERY[name].format_help()
    assert len(alone) < len(EVERY)


@pytest.mark.parametrize("word", ["", "nonsense", "--help"])
def test_other_words_add_every_command(word: str) -> None:
    assert list(commands_of(make_parser(word))) == list(EVERY)


def test_the_version_needs_no_library() -> None:
    heavy = ("anyio", "msgspec", "atune.frontends.cli.journal", "atune.journal")
    program = f"import atexit, sys; atexit.register(lambda: print([m for m in {heavy} if m in sys.modules])); "
    program += "import atune.__main__ as entry; sys.exit(entry.main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True, env=environment(), timeout=30
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr

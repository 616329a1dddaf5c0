"""The command line starts quickly: it adds the command that is asked for, and imports what that one needs."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from processes import environment

from atune.frontends.cli.main import _COMMANDS, _parser


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [group] = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(group.choices)


EVERY = commands_of(_parser())


def test_the_table_names_every_command() -> None:
    assert [name for names in _COMMANDS.values() for name in names] == list(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_command_alone_is_as_among_all(name: str) -> None:
    alone = commands_of(_parser(name))
    assert alone[name].format_help() == EVERY[name].format_help()
    assert len(alone) < len(EVERY)


@pytest.mark.parametrize("word", ["", "nonsense", "--help", "--show-completion"])
def test_other_words_add_every_command(word: str) -> None:
    assert list(commands_of(_parser(word))) == list(EVERY)


def said_at_the_end(*words: str, code: str) -> str:
    """Run the command line, and return what `code` prints as the process ends."""
    program = f"import atexit, gc, sys; atexit.register(lambda: print({code})); import atune.__main__ as entry; "
    program += "sys.exit(entry.main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env=environment(), timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_version_needs_no_library() -> None:
    code = (
        "[name for name in ('anyio', 'msgspec', 'atune.frontends.cli.journal', 'atune.journal') if name in sys.modules]"
    )
    assert said_at_the_end("--version", code=code) == "[]"


def test_nothing_is_searched_for_garbage_as_the_process_ends() -> None:
    assert int(said_at_the_end("--version", code="gc.get_freeze_count() - len(gc.get_objects())")) > 0

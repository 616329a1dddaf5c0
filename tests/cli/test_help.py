"""What the command line says of itself: its help, and what a wrong word may have meant; and what that imports."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from programs import python

from atune.frontends.cli.main import main, make_parser

FLAG = re.compile(r"^  (?:-h, )?(--[a-z][a-z-]+)", re.MULTILINE)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: Any, *command: str, status: int = 0) -> str:
    assert main(list(command)) == status
    out, err = capsys.readouterr()
    return str(out if status == 0 else err)


def test_the_help_of_tune_has_thirty_options_at_most_and_examples(capsys: Any) -> None:
    text = printed(capsys, "tune", "--help")
    flags = FLAG.findall(text)
    assert len(set(flags)) == len(flags) <= 30 and {"--cicc", "--debug", "--seed", "--help", "--json"} <= set(flags)
    assert max(map(len, text.splitlines())) <= 80 and "default: all" in text
    assert len(re.findall("^  atune tune ", text, re.MULTILINE)) == 3


def test_without_a_command_there_is_help(capsys: Any) -> None:
    bare = printed(capsys)
    assert bare == printed(capsys, "--help") and "  tune  " in bare and "atune report latest" in bare
    assert "  export  " in printed(capsys, "cache")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("tunee", "atune has no command tunee; did you mean atune tune? (see atune --help)"),
        ("cache lss", "atune cache has no command lss; did you mean atune cache ls? (see atune cache --help)"),
        ("gemm.py", "atune has no command gemm.py; did you mean atune tune gemm.py?"),
        ("'my gemm.py'", "atune has no command my gemm.py; did you mean atune tune 'my gemm.py'?"),
        ("pkg.gemm:W", "atune has no command pkg.gemm:W; did you mean atune tune pkg.gemm:W?"),
        ("xyzzy", "atune has no command xyzzy; the commands are tune, runs, "),
        ("replay ./j --tabel", "atune replay has no option --tabel; did you mean --table? (see atune replay --help)"),
        ("replay ./j --group-size 1", "atune replay has no option --group-size (see atune replay --help)"),
        ("tune none.py:W", "none.py:W: there is no file 'none.py'"),
        ("replay /none", "cannot read the journal /none"),
        ("tune", "the following arguments are required: FILE.py[:NAME] (see atune tune --help)"),
    ],
)
def test_a_wrong_word_is_told_what_it_may_mean(command: str, meant: str, capsys: Any) -> None:
    assert printed(capsys, *shlex.split(command), status=2).startswith(f"atune: error: {meant}")


# It starts quickly: it imports the module of a command when that runs


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
    done = python("-c", program, option)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr

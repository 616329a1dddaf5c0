"""What comes from a stranger, such as a journal or a file's name, commands neither the terminal nor the machine."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write

import atune
from atune.frontends.cli.main import main
from atune.journal.events import Warned

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
"""Sets a title, clears the screen, colours by one byte, turns the direction of text, and goes to the line's begin."""
COMMANDS = (
    "replay J --table", "replay J --json", "show J 0", "show J 1", "show J 9", "export J --to csv",
    "export J --to json", "report J", "report J -o -", "report J --json", "compare J J", "compare J J --json",
    "merge J K -o MERGED", "merge J J", "watch J", "watch J --table", "explain J", "explain J --config a=1",
    "explain NONE.py:X", "resume J", "resume J --workload NONE.py:X", "resume NONE", "bundle J -o B", "bundle J -o J",
    "tune NONE.py", "tune NONE.py --debug", "runs --json", "NONE", "replay J --NONE", "replay SET", "resume SET",
    "report SET", "cache export -o J",
)  # fmt: skip
"""J, K, NONE, SET and so on are names with `EVIL` in them."""


def strange(origin: str = "") -> Stream:
    """Return a finished run, whose journal has `EVIL` wherever there is text."""
    stream = Stream(total=3, default=0).ready(3.0).candidate(0, 2.0, **{EVIL: EVIL}).candidate(1, 1.0, mode=EVIL)
    stream.proposed(2).build_failed(2, EVIL).add(Warned, message=EVIL).finished()
    stream.events[0] = replace(stream.events[0], workload=EVIL, origin=origin, versions={EVIL: EVIL})
    return stream


def replace(event: Any, **fields: Any) -> Any:
    return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | fields)


@pytest.mark.parametrize("terminal", [False, True], ids=["a file", "a terminal"])
@pytest.mark.parametrize("command", COMMANDS)
def test_names_and_texts_reach_no_terminal_as_commands(
    command: str, terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("J", "K"):
        write(Path(f"{name}{EVIL}"), strange(f"NONE{EVIL}.py:X").events)
    Path(f"SET{EVIL}").mkdir()
    Path(f"SET{EVIL}", "set.json").write_text('[{"arguments":{"\\u001b[2J":"\\u001b[2J"}}]')
    for stream in (sys.stdout, sys.stderr) if terminal else ():
        monkeypatch.setattr(stream, "isatty", lambda: True)
    if terminal:
        monkeypatch.setenv("TERM", "xterm")
    main([re.sub(r"^(?!-o)([A-Z]+)", rf"\1{EVIL}", word) for word in command.split()])
    out, err = capsys.readouterr()
    assert out or err
    own = re.sub(r"\x1b\[[\d;]*m|\r?\x1b\[[KA]|\r", "", err) if terminal else err
    for text in (re.sub(r"\x1b\[[\d;]*m", "", out) if terminal else out, own):
        if terminal or not command.startswith(("export", "report")):  # else a file has more characters
            assert not re.search(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|\u202e|owned\x07", text), repr(text)
    assert terminal or "\x1b" not in out + err


def test_what_prints_goes_through_one_function() -> None:
    """Only these two modules write to the standard streams, and what they write passes `shown`."""
    package, found = Path(atune.__file__).parent, set[str]()
    for path in [*package.glob("frontends/**/*.py"), *package.glob("reporting/**/*.py"), *package.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.func if isinstance(node, ast.Call) else None
            if ast.unparse(call) in ("print", "sys.stdout.write", "sys.stderr.write") if call else False:
                found.add(path.relative_to(package).as_posix())
    assert found == {"frontends/cli/output.py", "frontends/api/tune_set.py"}

"""What comes from a stranger, such as a journal or a file's name, commands neither the terminal nor the machine."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write
from msgspec.structs import replace

import atune
from atune.errors import JournalError, UsageError
from atune.frontends.cli.main import main
from atune.journal.events import Warned
from atune.journal.reader import read, replay
from atune.model.artifact import Artifact
from atune.model.candidate import BASELINE
from atune.model.folders import artifacts_folder
from atune.model.settings import CompileSettings
from atune.results import save_bundle
from atune.testing import FakeMachine
from atune.workers.local_machine import LocalMachine

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


def of_stranger(folder: Path, compile: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Path:
    """Return a set's folder with a finished journal, whose winner has these settings and is compiled for a bundle."""
    data = b"a library"
    library = artifacts_folder() / f"{hashlib.sha256(data).hexdigest()}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(data)
    (folder / "named.py").write_text("")
    stream = Stream(total=3, compile=compile or {}).candidate(0, 1.0, **(config or {"block": 1}))
    stream.finished(kernel=Artifact(0, str(library), "k", (), "c", compiler="cicc"))
    stream.events[0] = replace(stream.events[0], origin=f"{folder}/named.py:W")
    made = folder / "set"
    made.mkdir()
    (made / "set.json").write_text('[{"arguments":{"N":64}},{"arguments":{"N":65}}]')
    return write(made / "0000.jsonl", stream.events)


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
    """Only these modules write to streams, and what they write passes `shown`, or is JSON in ASCII."""
    package, found = Path(atune.__file__).parent, set[str]()
    for path in [*package.glob("frontends/**/*.py"), *package.glob("reporting/**/*.py"), *package.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.func if isinstance(node, ast.Call) else None
            if ast.unparse(call) in ("print", "sys.stdout.write", "sys.stderr.write", "Output") if call else False:
                found.add(path.relative_to(package).as_posix())
    others = {"frontends/tune_set.py", "reporting/log.py", "reporting/progress.py"}
    assert found == {"frontends/cli/output.py", *others}


RUN = ("explain J", "explain J 0 0", "bundle J -o B", "bundle SET -o B", "resume J", "resume SET")
"""Commands that run the file of a journal."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine that would load the file fail."""

    def open(*given: Any, **named: Any) -> Any:
        raise UsageError("a worker would load the file now")

    monkeypatch.setattr(LocalMachine, "open", open)


def run(command: str, journal: Path, *options: str) -> int:
    words = {"J": str(journal), "SET": str(journal.parent), "B": str(journal.parents[1] / "b")}
    return main([*(words.get(word, word) for word in command.split()), *options])


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("command", RUN)
def test_a_file_that_a_journal_names_is_run_only_after_saying_so(command: str, tmp_path: Path, capsys: Any) -> None:
    assert run(command, of_stranger(tmp_path)) != 0
    said, now = f"running {tmp_path}/named.py, which the journal names", "a worker would load the file now"
    err = " ".join(capsys.readouterr().err.split())
    assert err.count(said) == 1 and err.index(said) < err.index(now)


CODE = [
    ({"flags": ["-wrapper", "sh,-c,id"]}, {}, "flags is ('-wrapper', 'sh,-c,id')"),
    ({"target_host": "llvm -mcpu=x"}, {}, "target_host is 'llvm -mcpu=x'"),
    ({"pass_configs": {"tl.device_compile_flags": "-Bx"}}, {}, "pass_configs is {'tl.device_compile_flags': '-Bx'}"),
    ({}, {"compile_flags": ["-fplugin=x"]}, "compile_flags is ('-fplugin=x',)"),
    ({}, {"pass_configs": {"tl.device_compile_flags": "-Bx"}}, "pass_configs is {'tl.device_compile_flags': '-Bx'}"),
]
"""Settings, a winner's configuration, and what is said of them."""


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(("compile", "config", "said"), CODE)
@pytest.mark.parametrize("command", [*RUN, "resume J --workload W", "resume SET --workload W"])
def test_settings_that_are_code_do_not_travel_in_a_journal(
    command: str, compile: dict[str, Any], config: dict[str, Any], said: str, tmp_path: Path, capsys: Any
) -> None:
    journal = of_stranger(tmp_path, compile, config)
    if command.startswith("explain" if compile else "resume"):
        return  # it takes the configurations alone, or the settings alone
    command = command.replace("W", f"{tmp_path}/named.py:W")
    assert run(command, journal) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"settings: {said} Give them yourself, or accept this: --accept settings" in err
    assert "worker would load" not in err
    assert run(command, journal, "--accept", "settings") != 0
    assert "a worker would load the file now" in capsys.readouterr().err


@pytest.mark.usefixtures("begun")
def test_who_gives_the_settings_again_needs_not_accept_them(tmp_path: Path) -> None:
    journal, flags = of_stranger(tmp_path, {"flags": ["-O1"]}), CompileSettings(flags=("-O1",))
    for given in ({"compile": flags}, {"accept": ["settings"]}):
        with pytest.raises(UsageError, match="a worker would load"):
            atune.run_resume(journal, f"{tmp_path}/named.py:W", **given)  # type: ignore[arg-type]
    with pytest.raises(JournalError, match="flags is"):
        atune.run_resume(journal, f"{tmp_path}/named.py:W")
    with pytest.raises(JournalError, match="flags is"):
        save_bundle(tmp_path / "b", [replay(journal)])


def test_a_default_of_a_journal_brings_no_flags_of_its_own(tmp_path: Path) -> None:
    def cut(baseline: dict[str, Any]) -> Path:
        stream = Stream(total=2, default=BASELINE).proposed(BASELINE, **baseline)
        return write(tmp_path / str(len(baseline)), stream.events)

    machine = FakeMachine(2)
    header = (atune.run(machine=machine, journal=tmp_path / "j")) and replay(tmp_path / "j").header
    for baseline, refused in (({"x": 1}, False), ({"x": 1, "compile_flags": ["-Bx"]}, True)):
        journal = cut(baseline)
        events = [header, *read(journal)[1:]]
        journal.unlink()
        write(journal, events)
        if refused:
            with pytest.raises(JournalError, match=r"default's compile_flags was \('-Bx',\) and is None"):
                atune.run(machine=FakeMachine(2), journal=journal)
        else:
            assert (atune.run(machine=FakeMachine(2), journal=journal)).measured == 2

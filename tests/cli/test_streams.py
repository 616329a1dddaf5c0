"""Output that goes nowhere, or cannot show a character: the run goes on, and ends with its proper status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import environment

from atune.journal.reader import replay

DATA = Path(__file__).parents[1] / "data" / "schema-1.jsonl"
ENGINE = r"""
import msgspec, sys, time
from event_streams import Stream
from atune.errors import NoWinner
from atune.journal.result import Result
from atune.journal.writer import Journal
from atune.reporting.progress import Progress
async def tune(workload, *, journal, on_event, progress, **options):
    assert progress
    stream = Stream(total=3, default=0)
    if sys.argv[2].endswith("WINS"):
        stream.ready(3.0).candidate(0, 4.0, mode="é–\U0001f600").candidate(1, 1.0, mode="é–\U0001f600").candidate(2)
        stream.final({1: [1.0, 1.0, 1.0], 0: [4.0, 4.0, 4.0]}, [3.0])
    with Journal.create(journal) as file, Progress() as shown:
        for event in stream.finished(2.5).events:
            file.append(event)
            on_event(msgspec.structs.replace(event, time=time.time()))
            shown.on_event(event)
    result = Result.from_events(stream.events, journal)
    if result.best is None:
        raise NoWinner("no candidate worked", result)
    return result
import atune.frontends.cli.tune
atune.frontends.cli.tune.tune = tune
from atune.frontends.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def tune(tmp_path: Path) -> str:
    """A command that tunes with a scripted engine, whose winner has characters that not every output can show."""
    (tmp_path / "engine.py").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "toy.py").touch()
    return f"{sys.executable} {tmp_path}/engine.py tune {tmp_path}/toy.py:WINS --journal {tmp_path}/j"


def shell(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, cwd=folder, env={**environment(), **env}, timeout=60
    )


PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.mark.parametrize("env", [PLAIN, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii:strict"}])
def test_an_output_that_cannot_show_a_character_shows_its_escape(
    env: dict[str, str], tune: str, tmp_path: Path
) -> None:
    done = shell(tune, tmp_path, **env)
    assert done.returncode == 0 and rb"\u2013\U0001f600'" in done.stdout and rb"4.00\u20134.00)" in done.stdout
    assert b"best 1 ms (first timing): mode=" in done.stderr and b"rror" not in done.stderr
    for command in ("replay {} --json", "report {} -o r.html", "export {} --to csv", "export {} --to json"):
        done = shell(f"{sys.executable} -m atune {command.format(tmp_path / 'j')}", tmp_path, **env)
        assert (done.returncode, done.stderr) == (0, b"")
        if "--json" in command:
            assert json.loads(done.stdout)["best_config"] == {"mode": "é–\U0001f600"}
        if "csv" in command:
            assert "é–\U0001f600".encode() in done.stdout
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "95 % interval 4.00–4.00" in page or "\\u2013" in page


@pytest.mark.parametrize("options", ["", "--json"])
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">/dev/full", "2>/dev/full", "| true"])
def test_a_run_whose_output_is_closed_or_full_ends_with_its_status(
    streams: str, options: str, tune: str, tmp_path: Path
) -> None:
    done = shell(f"set -o pipefail; {tune} {options} {streams}", tmp_path)
    assert done.returncode == 0
    assert replay(tmp_path / "j").latency_ms == 1.0
    assert b"Traceback" not in done.stderr and b"bug in atune" not in done.stderr
    if streams == ">/dev/full":
        last = f"atune: cannot write to stdout: No space left on device; to see the result: atune replay {tmp_path}/j\n"
        assert done.stderr.endswith(last.encode())
    if streams.startswith("2>"):
        assert b"winner" in done.stdout or json.loads(done.stdout.splitlines()[-1])["latency_ms"] == 1.0
    if options:
        failing = shell(f"set -o pipefail; {tune.replace(':WINS', ':FAILS').replace('/j', '/f')} {streams}", tmp_path)
        assert failing.returncode == 1


def test_a_journal_never_gets_the_number_of_a_closed_stream(tune: str, tmp_path: Path) -> None:
    """What prints there, a library of C for one, would write into it."""
    text = (tmp_path / "engine.py").read_text(encoding="utf-8")
    text = text.replace(
        "    result = ", "        import os; os.write(1, b'hello'); os.write(2, b'hello')\n    result = "
    )
    (tmp_path / "engine.py").write_text(text, encoding="utf-8")
    assert shell(f"{tune} <&- >&- 2>&-", tmp_path).returncode == 0
    assert b"hello" not in (tmp_path / "j").read_bytes() and replay(tmp_path / "j").latency_ms == 1.0


@pytest.mark.parametrize(
    ("command", "status"),
    [("replay J", 2), ("export J --to csv", 2), ("cache export", 2), ("--version", 0), ("tune --help", 0)],
)
def test_a_command_that_only_prints_fails_where_that_is_lost(command: str, status: int, tmp_path: Path) -> None:
    words = f"{sys.executable} -m atune {command.replace('J', str(DATA))}"
    done = shell(f"{words} >/dev/full", tmp_path)
    printed = b"atune: error: cannot write to stdout: No space left on device\n" if status else b""
    assert (done.returncode, done.stderr) == (status, printed)
    done = shell(f"{words} >/dev/full 2>/dev/full", tmp_path)
    assert done.returncode == status
    done = shell(f"{words} >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_run_does_without_its_working_folder(tmp_path: Path) -> None:
    """A real run on the CPU, in a folder that is removed before it begins."""
    folder, workload = tmp_path / "gone", Path(__file__).parents[2] / "examples" / "gemm_cpu.py"
    folder.mkdir()
    options = f"--target c --budget 1 --quiet --rep 3 --journal {tmp_path}/j"
    done = shell(f"rmdir {folder}; {sys.executable} -m atune tune {workload}:WORKLOAD {options}", folder)
    assert done.returncode == 0, done.stderr
    assert not folder.exists() and replay(tmp_path / "j").measured == 1

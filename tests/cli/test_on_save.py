"""`atune tune --on-save`: what counts as a save, what is said of it, and that nothing of it outlives the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import anyio
import msgspec
import pytest
from event_streams import Stream
from processes import MARK, environment, marked, new_mark, wait_until

from atune.frontends.cli.main import main
from atune.frontends.cli.on_save import change_lines, saved, texts_of
from atune.journal.result import Result

pytest.importorskip("watchfiles")
KERNEL = """
import time
import tilelang.language as T
import atune
from work import WORK

def repeated(k: int = 0):
    time.sleep(PAUSE)
    @T.prim_func
    def main(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32")):
        with T.Kernel(1):
            for r, i in T.grid(WORK[k], 4096):
                B[i] = A[i] + r * 0.0
    return main

WORKLOAD = atune.Workload(repeated, [{"k": k} for k in range(len(WORK))], reference=lambda A: A + 0.0)
"""


def test_the_files_of_a_workload_are_it_and_what_it_imports_from_its_folder(tmp_path: Path) -> None:
    texts = {
        "main.py": "import json, helper\nfrom package.deep import thing\nimport absent",
        "helper.py": "def late():\n    from other import name",
        "other.py": "import main  # in a circle",
        "package/__init__.py": "",
        "package/deep.py": "from . import sibling\nfrom .. import helper",
        "package/sibling.py": "nothing Python knows",
        "package/unused.py": "",
        "unused.py": "",
    }
    (tmp_path / "package").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = texts_of(str(tmp_path / "main.py"))
    assert {os.path.relpath(path, tmp_path) for path in found} == {name for name in texts if "unused" not in name}
    assert found[str(tmp_path / "helper.py")].startswith(b"def late")
    (tmp_path / "main.py").write_text("import helper\n)")
    assert list(texts_of(str(tmp_path / "main.py"))) == [str(tmp_path / "main.py")]
    (tmp_path / "main.py").write_text(f"from {'.' * 99} import helper")  # there are fewer folders
    assert list(texts_of(str(tmp_path / "main.py"))) == [str(tmp_path / "main.py")]
    assert texts_of(str(tmp_path / "gone.py")) == {}


@pytest.mark.anyio
async def test_a_save_is_another_text_of_one_of_them(tmp_path: Path) -> None:
    """The same text again is none, nor another file; a file that an editor puts in its place is one."""
    file, helper = tmp_path / "main.py", tmp_path / "helper.py"
    file.write_text("import helper")
    helper.write_text("x = 1")
    texts = texts_of(str(file))

    async def act() -> None:
        await anyio.sleep(0.2)
        file.write_text("import helper")
        (tmp_path / "other.py").write_text("x = 1")
        file.rename(tmp_path / "main.py~")
        await anyio.sleep(0.3)
        assert not found
        (tmp_path / "main.py~").rename(file)
        (tmp_path / "new").write_text("x = 2")
        (tmp_path / "new").rename(helper)

    found = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(act)
        with anyio.fail_after(20):
            found.append(await saved(str(file), texts))
    assert found == [{str(file): b"import helper", str(helper): b"x = 2"}]


def result(latencies: dict[int, float], codes: str = "") -> Result:
    stream = Stream(total=9).ready()
    for index, latency_ms in latencies.items():
        stream.proposed(index).lowered(index, f"{codes}{index}").built(index).measured(index, latency_ms)
    return Result.from_events(stream.finished().events)


def test_it_says_which_candidates_are_new_and_how_the_winner_moved() -> None:
    before = result({0: 2.0, 1: 4.0, 2: 8.0})
    after = result({1: 4.0, 2: 1.0, 3: 9.0, 4: 9.0, 5: 9.0, 6: 9.0})
    assert [line.text for line in change_lines(before, after)] == [
        "",
        "changed    candidates: 4 new, 2 with the same code, 1 gone",
        "           new: block=3; block=4; block=5; 1 more",
        "winner     block=0 → block=2",
        "           2 ms → 1 ms, 2.00 times faster than before",
    ]
    after = result({0: 3.0, 1: 4.0, 2: 8.0}, "other ")
    assert [line.text for line in change_lines(before, after)] == [
        "",
        "changed    candidates: 3 with other code",
        "winner     still block=0",
        "           2 ms → 3 ms, 1.50 times slower than before",
    ]
    assert after.header is not None
    after.header = msgspec.structs.replace(after.header, arguments={"N": 128})
    assert [line.text for line in change_lines(before, after)] == [
        "",
        "changed    candidates: 3 with other code",
        "           problem: N=64 → N=128, so that the latencies do not compare",
    ]


@pytest.mark.parametrize("more", ["--dry-run", "--compile-only", "--journal=j"])
def test_what_makes_no_sense_with_it_is_refused(more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "main.py").write_text("")
    assert main(["tune", str(tmp_path / "main.py"), "--on-save", more]) == 2
    assert "--on-save" in capsys.readouterr().err


class Command:
    """`atune tune --on-save` as a program of its own, with a file to edit."""

    def __init__(self, tmp_path: Path) -> None:
        self.file, self.work, self.screen = tmp_path / "main.py", tmp_path / "work.py", tmp_path / "screen"
        self.mark, self.read = new_mark(), 0
        self.program: subprocess.Popen[str] | None = None
        self.out: IO[str] = self.screen.open("w")
        self.env = {**environment(), MARK: self.mark, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    def write(self, work: list[int], pause: float = 0.0) -> None:
        self.work.write_text(f"WORK = {work}\n")
        self.file.write_text(KERNEL.replace("PAUSE", str(pause)))

    def start(self) -> None:
        self.program = subprocess.Popen(
            [sys.executable, "-m", "atune", "tune", str(self.file), "--target", "c", "--on-save", "--quiet"],
            env=self.env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.out, text=True,
        )  # fmt: skip

    def says(self, text: str) -> str:
        """Wait until the screen says `text`, and return what it said since the last call."""
        wait_until(lambda: text in self.screen.read_text()[self.read :] or self.ended, 60, text)
        said = self.screen.read_text()[self.read :]
        assert text in said, said
        self.read += len(said)
        return said

    @property
    def ended(self) -> bool:
        return self.program is not None and self.program.poll() is not None

    def ends_at_ctrl_c(self) -> None:
        assert self.program is not None
        before = marked(self.mark)
        assert len(before) > 1
        self.program.send_signal(signal.SIGINT)
        wait_until(lambda: not marked(self.mark), 3, f"the end of {before}")
        assert self.program.wait() == 130
        assert "Traceback" not in self.screen.read_text()

    def close(self) -> None:
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.program is not None:
            self.program.wait()
        self.out.close()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()


WAITING = "waiting for the next save of main.py, work.py (Ctrl-C ends)"


def test_a_save_gives_another_winner_and_a_broken_file_is_waited_out(command: Command) -> None:
    """A module next to it is saved, too, with a text as long, and dated as the one before."""
    command.env.pop("PYTHONDONTWRITEBYTECODE", None)
    command.write([1, 60])
    written = command.work.stat()
    command.start()
    command.says(WAITING)
    assert list(command.work.parent.glob("__pycache__/work.*")), "Python kept no compiled file"
    command.work.write_text("WORK = [60, 1]\n")
    os.utime(command.work, ns=(written.st_atime_ns, written.st_mtime_ns))
    said = command.says(WAITING)
    assert "work.py was saved: tuning again" in said
    assert "candidates: 2 with other code" in said and "winner     k=0 → k=1" in said
    command.file.write_text("def broken(:\n")
    said = command.says("waiting for the next save of main.py (Ctrl-C ends)")
    assert "SyntaxError" in said and "def broken(:" in said
    command.write([60, 1, 30])
    said = command.says(WAITING)
    assert "candidates: 1 new, 2 with the same code" in said and "new: k=2" in said and "winner     still k=1" in said
    command.ends_at_ctrl_c()


@pytest.mark.usefixtures("with_a_terminal")
def test_a_save_cancels_the_search_and_ctrl_c_ends_it_all(command: Command) -> None:
    command.write([1] * 40, pause=0.5)
    command.start()
    wait_until(lambda: len(marked(command.mark)) > 3, 60, "workers")
    command.write([1, 60])
    said = command.says(WAITING)
    assert "the search was cancelled after" in said and "main.py, work.py was saved" in said
    command.write([1] * 40, pause=0.5)
    command.says("was saved: tuning again")
    wait_until(lambda: len(marked(command.mark)) > 3, 60, "workers")
    command.ends_at_ctrl_c()
    command.says("interrupted")

"""What `run` and `tune` show by themselves: progress where somebody sees it, and a line a minute elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from processes import environment
from programs import python

from atune import Tuner
from atune.testing import FakeMachine

RUN = """
import atune
from atune.testing import FakeMachine

events = []
print(atune.{call}.measured, len(events))
"""


def on_a_terminal(code: str) -> tuple[str, str]:
    """Run a program whose stderr is a terminal, and return its stdout and what the terminal got."""
    parent, child = pty.openpty()
    got: list[bytes] = []

    def read() -> None:
        while True:
            try:
                got.append(os.read(parent, 65536))
            except OSError:  # the program has ended
                return

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment(), "TERM": "xterm"}, timeout=60, stdout=subprocess.PIPE,
        stderr=child, text=True,
    )  # fmt: skip
    os.close(child)
    reader.join()
    os.close(parent)
    text = b"".join(got).decode()
    assert done.returncode == 0, text
    return done.stdout, text


@pytest.mark.parametrize("option", ["", "progress=True", "progress=False", "on_event=events.append"])
def test_a_run_shows_its_progress_on_a_terminal(option: str) -> None:
    """Unless a listener shows the run itself: bars would stand between its lines."""
    printed, shown = on_a_terminal(RUN.format(call=f"run(machine=FakeMachine(4), {option})"))
    assert printed.startswith("4 ") and ("4/4 compiled" in shown) == bool(shown) == (option in ("", "progress=True"))


OFTEN = "import atune.reporting.progress as p; p.SELDOM_S = 0.0\n"


@pytest.mark.parametrize(
    ("code", "shows"),
    [
        (RUN.format(call="run(machine=FakeMachine(4))"), False),  # it ends within seconds
        (OFTEN + RUN.format(call="run(machine=FakeMachine(4))"), True),
        (OFTEN + RUN.format(call="run(machine=FakeMachine(4), progress=False)"), False),
        (OFTEN + RUN.format(call="run(machine=FakeMachine(4), on_event=lambda event: None)"), False),
    ],
)
def test_elsewhere_a_line_a_minute_is_shown(code: str, shows: bool) -> None:
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "4 0\n")
    assert ("4/4 measured" in done.stderr) == shows == bool(done.stderr)


def test_a_tuner_shows_what_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Its reader shows the events."""
    monkeypatch.setattr("atune.frontends.tuner.is_watched", lambda: True)

    async def main(**options: Any) -> None:
        async with Tuner(machine=FakeMachine(4), **options) as tuner:
            await tuner.result()

    anyio.run(main)
    assert capsys.readouterr().err == ""
    anyio.run(lambda: main(progress=True))
    assert "4/4 compiled" in capsys.readouterr().err


STREAM = """
import os, sys
import atune
from atune.testing import FakeMachine

class Tee:
    got = []
    def write(self, text):
        self.got.append(text)

class Gone(Tee):
    def write(self, text):
        raise RuntimeError("the window is closed")

{stream}
print(atune.run(machine=FakeMachine(4), **{options}).measured, "".join(Tee.got), flush=True)
os._exit(0)  # at its own end Python would ask for more than write
"""


@pytest.mark.parametrize("options", [{}, {"progress": True}])
@pytest.mark.parametrize(
    "stream",
    ["sys.stderr = Tee()", "sys.stderr = Gone()", "sys.stderr.close()", "sys.stderr = None", "sys.stderr = object()"],
)
def test_anything_with_write_is_a_stream_and_what_is_none_costs_no_run(stream: str, options: dict[str, Any]) -> None:
    code = STREAM.format(stream=stream, options=options)
    done = python("-c", code)
    assert done.returncode == 0 and done.stdout.startswith("4 "), done.stderr
    assert ("4/4 compiled" in done.stdout) == ("Tee" in stream and bool(options))

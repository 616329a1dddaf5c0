"""What commands say on a screen: of any width, of a run that has not finished, and where nothing is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write

from atune.frontends.cli.main import main
from atune.frontends.cli.output import fitted
from atune.frontends.cli.preview import CompileReason, CompileSummary, compile_lines

KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
BROKEN = """
import atune, tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1], target="c")
def kernel(block=1):
    raise ValueError("no such block")

WORKLOAD = atune.Workload(kernel, {"block": [1, 2]})
"""


def run_of(*parts: str) -> Stream:
    stream = Stream(total=2).ready(2.0).candidate(0, 1.0).candidate(1, 1.5)
    for part in parts:
        getattr(stream, part)()
    return stream


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", run_of("finished").events)


def test_lines_are_broken_between_words_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "latency    0.1816 ms, 1.03 times slower than the reference (0.1758 ms)\njournal    /a/" + "long" * 20
    assert fitted(text) == text  # no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = fitted(text).splitlines()
    assert lines[:2] == ["latency    0.1816 ms, 1.03 times slower", "  than the reference (0.1758 ms)"]
    assert fitted("           2.88 times") == "  2.88 times"
    assert lines[-1].strip() == "/a/" + "long" * 20  # what is copied stays whole
    monkeypatch.setenv("COLUMNS", "60")
    assert fitted(text).splitlines()[1] == "           (0.1758 ms)"


@pytest.mark.parametrize(
    ("parts", "reported"),
    [
        (["finished"], None),
        (["interrupted"], "interrupted; atune resume {journal} goes on"),
        ([], "not yet: the run is under way, or was killed; atune resume {journal} goes on"),
        (["interrupted", "resumed", "finished"], None),
    ],
)
def test_replay_says_how_a_run_ended_that_did_not_finish(
    parts: list[str], reported: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl", run_of(*parts).events)
    assert main(["replay", str(path)]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ended")]
    assert printed == ([] if reported is None else [f"ended      {reported.format(journal=path)}"])


def test_resume_of_a_finished_run_says_so(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(journal)]) == 0
    out, err = capsys.readouterr()
    assert f"the run of {journal} is finished: nothing is left to do" in err and "winner     block=0" in out


def test_watch_of_a_missing_file_says_so_and_shows_no_bars(tmp_path: Path, capsys: Any) -> None:
    assert main(["watch", str(tmp_path / "none.jsonl")]) == 2
    err = capsys.readouterr().err
    assert "cannot read the journal" in err and "none.jsonl: there is no such file" in err and "compiled" not in err


def test_a_report_goes_to_stdout_where_that_is_asked(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(journal), "-o", "-"]) == 0
    page = capfdbinary.readouterr().out
    assert page.startswith(b"<!") and page.rstrip().endswith(b"</html>")
    assert main(["export", str(journal), "--to", "csv", "-o", "-"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"index,key,status,")
    assert not (tmp_path / "-").exists()


def test_compile_only_measures_nothing(tmp_path: Path, capsys: Any) -> None:
    command = ["tune", f"{KERNELS}:SCALED", "--compile-only", "--target", "c", "--budget", "2", "--no-store"]
    assert main([*command, "--workers", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["total"], printed["compiled"], printed["failed"], printed["target"]) == (2, 2, 0, "c")


def test_compile_only_of_kernels_that_all_fail_says_why_and_fails(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    command = ["tune", f"{tmp_path}/broken.py:WORKLOAD", "--compile-only", "--target", "sm_90a", "--workers", "1"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert out.startswith("compiled   0 of 2 candidates, 0 distinct codes, 2 failed; ")
    assert "target     cuda (sm_90a); nothing was measured" in out
    assert "2 × lower: ValueError: no such block" in out


def test_many_reasons_are_counted() -> None:
    failures = tuple(CompileReason("lower", f"reason {k}", 1) for k in range(11))
    counts = {"total": 11, "compiled": 0, "codes": 0, "failed": 11, "wall_s": 1.0}
    lines = compile_lines(CompileSummary(target="c", **counts, compiler="as asked", failures=failures))
    assert lines[2] == "compiler   as asked" and len(lines) == 3 + 8 + 1 and lines[-1].strip() == "3 other reasons"


def test_bash_completes_commands_and_the_options_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["--show-completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=(atune {}); COMP_CWORD={}; _shtab_atune; echo "${{COMPREPLY[@]}}"'
    asked = [ask.format("rep", 1), ask.format("tune --dry", 2), ask.format("cache l", 2)]
    found = subprocess.run(["bash", "-c", "\n".join([script, *asked])], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["replay report", "--dry-run", "ls"]

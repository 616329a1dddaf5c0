"""What the screen, `--json`, `atune show` and the report say of what failed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from event_streams import Stream, write

from atune.frontends.cli.main import main
from atune.reporting.report import report
from atune.reporting.summary import evidence_lines

KERNELS = Path(__file__).parents[1] / "teaching_kernels.py"
LINES = KERNELS.read_text().splitlines()


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(LINES, 1) if text in line)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))


def test_a_broken_kernel_is_shown_with_its_line_and_a_caret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = str(tmp_path / "run.jsonl")
    tuned = ["tune", f"{KERNELS}:MISSPELT", "--target", "c", "--quiet", "--json", "--journal", journal]
    assert main(tuned) == 1
    out, err = capsys.readouterr()
    lines, number = err.splitlines(), line_of("A[bx * block + q]")
    at = lines.index("    for example, candidate 0: block=16")
    assert lines[at - 1] == "  2 failed to lower: NameError: name 'q' is not defined"
    assert lines[at + 1] == f'      File "{KERNELS}", line {number}, in main'
    source, caret = lines[at + 2 : at + 4]
    assert source[caret.index("^")] == "q" and caret.strip() == "^"
    assert lines[at + 4] == f"    full output: atune show {journal} 0"
    [group] = json.loads(out.splitlines()[-1])["failures"]
    assert (group["kind"], group["count"]) == ("lower", 2)
    assert (group["where"]["file"], group["where"]["line"]) == (str(KERNELS), number)
    assert group["example"] == {"index": 0, "config": {"block": 16}}

    assert main(["show", journal, "1"]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[:2] == ["candidate  1: failed", "config     block=32"]
    assert "reason     failed to lower: NameError: name 'q' is not defined" in reported
    assert "  Traceback (most recent call last):" in reported


def test_places_and_commands_are_whole_however_long_the_paths_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that they can be copied. A compiler's output ends with its command; its other lines are clipped."""
    folder = tmp_path.joinpath(*["a folder with a long name " * 8] * 2)
    folder.mkdir(parents=True)
    journal = str(folder / "run.jsonl")
    (folder / "kernel.py").write_text(KERNELS.read_text())
    assert main(["tune", f"{folder}/kernel.py:MISSPELT", "--target", "c", "--quiet", "--journal", journal]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f'      File "{folder}/kernel.py", line {line_of("A[bx * block + q]")}, in main' in lines
    [shown] = [line for line in lines if "full output: " in line]
    assert shlex.split(shown.partition("full output: ")[2]) == ["atune", "show", journal, "0"]

    command = shlex.join(["nvcc", "-I", str(folder), "-o", f"{folder}/kernels.so"])
    error, output = "kernel.cu(3): error: q is undefined", "  T<" + "T<" * 400
    assert evidence_lines(error, f"nvcc failed, exit status 1\n{error}\n{output}\n{command}") == [
        "nvcc failed, exit status 1", output[:300], command,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "printed", "line"),
    [
        ("RAISING", "the reference raised NameError: name 'missing' is not defined", "return A @ missing"),
        ("BAD_INPUTS", "inputs raised RuntimeError: shape '[3, -1]'", "return [torch.randn(N).view(3, -1)]"),
    ],
)
def test_a_reference_or_inputs_that_raise_are_shown_with_their_line(
    name: str, printed: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = str(tmp_path / "j")
    assert main(["tune", f"{KERNELS}:{name}", "--target", "c", "--quiet", "--json", "--journal", journal]) == 2
    out, err = capsys.readouterr()
    lines, reported = err.splitlines(), json.loads(out.splitlines()[-1])
    assert printed in lines[0]
    assert reported["error"]["kind"] == "WorkloadError" and printed in reported["error"]["message"]
    where = reported["error"]["where"]
    assert (where["file"], where["line"], where["source"][:10]) == (str(KERNELS), line_of(line), line[:10])
    assert set(where["caret"].strip()) in ({"^"}, {"^", "~"})  # Python 3.13 marks by ~ what a method is called of
    assert reported["best_config"] is None and reported["journal"] == journal
    assert lines[1].startswith(f'  File "{KERNELS}", line {line_of(line)}, in ')
    assert lines[2].strip().startswith(line.strip()) and lines[3].strip() == where["caret"].strip()
    assert lines[4:] == [f"  journal: {journal}"]


def test_a_reference_that_hangs_is_told_of_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = str(tmp_path / "j")
    tuned = ["tune", f"{KERNELS}:HANGING", "--target", "c", "--quiet", "--journal", journal, "--timeout", "2"]
    assert main(tuned) == 2
    printed, *rest = capsys.readouterr().err.splitlines()
    assert "running the reference took more than benchmark_timeout_s=2. If neither hangs, allow more time" in printed
    assert "--timeout" in printed and rest == [f"  journal: {journal}"]


@pytest.mark.parametrize(
    ("source", "line", "below"),
    [
        ("import atune\ndef f(:\n    pass\n", 2, ["def f(:", "      ^"]),
        ("import atune\nimport no_such_module\n", 2, ["import no_such_module", ""]),
    ],
    ids=["no Python", "a missing module"],
)
def test_a_file_that_cannot_be_loaded_is_shown_with_its_line(
    source: str, line: int, below: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    command = ["tune", f"{file}:WORKLOAD", "--target", "c", "--quiet", "--json", "--journal", str(tmp_path / "j")]
    assert main(command) == 2
    out, err = capsys.readouterr()
    first, second, *rest = err.splitlines()
    assert first.startswith(f"atune: error: {file} cannot be loaded: ") and f'File "{file}", line {line}' in second
    assert rest == [f"    {text}" for text in below if text]
    reported = json.loads(out.splitlines()[-1])
    where = reported.pop("error")["where"]
    assert [where["line"], where["source"], where["caret"]] == [line, *below]
    assert reported == {}, "no run had begun, so there is no result to count"


@pytest.mark.parametrize("command", [["show", "none.jsonl"], ["tune", "none.py"], ["tune", "f.py", "--no-such-option"]])
def test_a_mistake_in_the_call_is_told_as_json_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["where"] is None and err == f"atune: error: {error['message']}\n"


def test_a_refused_journal_is_not_told_to_be_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads `best_config` would take another kernel's."""
    journal = write(tmp_path / "other.jsonl", Stream(total=2).candidate(0, 1.0).interrupted().events)
    tuned = ["tune", f"{KERNELS}:MISSPELT", "--target", "c", "--quiet", "--json", "--journal", str(journal)]
    assert main(tuned) == 2
    out, err = capsys.readouterr()
    reported = json.loads(out)
    assert reported.keys() == {"error"} and "the journal records another space" in reported["error"]["message"]
    assert "the journal records another space" in err


def test_show_has_what_was_measured_of_another_with_the_same_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(total=3).proposed(1).lowered(1).proposed(0).lowered(0).aliased(0, 1).proposed(2).lowered(2)
    path = write(
        tmp_path / "j", stream.aliased(2, 1).built(1).measured(1, 2.0, 4.0).final({0: [3.0]}).finished().events
    )
    for index, same_as in ((0, None), (1, 0), (2, 0)):
        assert main(["show", str(path), str(index), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["same_as"], data["measurement"]["timing"]["samples_us"]) == (same_as, [2000.0, 4000.0])


def test_show_takes_the_winner_or_else_the_first_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = Stream(total=2).candidate(0).candidate(1, 2.0, 4.0).final({1: [3.0]}).finished()
    path = write(tmp_path / "good", good.events)
    assert main(["show", str(path)]) == 0
    text = capsys.readouterr().out
    assert "candidate  1: measured, winner\n" in text and "final      3 ms, spread 0.0%, 1 sample by perf" in text
    assert "first      3 ms, spread 50.0%, 2 samples from 2 to 4 ms by perf" in text and "2000" not in text
    assert main(["show", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["index"] == 1 and data["timing"]["latency_ms"] == 3
    assert data["measurement"]["timing"]["samples_us"] == [2000.0, 4000.0] and data["measurement"]["checked"]
    bad = write(tmp_path / "bad", Stream(total=2).candidate(0).finished().events)
    assert main(["show", str(bad)]) == 0
    assert "reason     gave wrong outputs: wrong" in capsys.readouterr().out
    assert main(["show", str(bad), "7"]) == 2
    assert "has no candidate 7;" in capsys.readouterr().err
    assert main(["show", str(bad), "1"]) == 2
    assert "has no outcome of candidate 1, which was not tried;" in capsys.readouterr().err


@pytest.mark.parametrize("origin", ["toy.py:WORKLOAD", ""])
def test_a_candidate_is_explained_where_the_journal_names_a_file(
    origin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workload of a script or a notebook comes from no file that `atune explain` could load."""
    stream = Stream(total=1).candidate(0, 2.0).finished()
    stream.events[0] = msgspec.structs.replace(stream.events[0], origin=origin)
    path = write(tmp_path / "j", stream.events)
    assert main(["show", str(path)]) == 0
    assert (f"next       atune explain {path} 0 --source" in capsys.readouterr().out) is bool(origin)
    if not origin:
        assert main(["explain", str(path), "0"]) == 2
        printed = "does not name the file of its workload: give workload= (--workload FILE.py:NAME)"
        assert capsys.readouterr().err == f"atune: error: the journal {printed}\n"


def unchecked(tmp_path: Path, name: str, **settings: object) -> str:
    """Return the path of a journal in which nothing was checked."""
    first, *rest = Stream(total=2).candidate(0, 1.0).candidate(1, 2.0).finished().events
    events = [msgspec.structs.replace(e, checked=False) if hasattr(e, "checked") else e for e in rest]
    return str(write(tmp_path / name, [msgspec.structs.replace(first, settings=settings), *events]))


def test_what_nobody_checked_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = unchecked(tmp_path, "lacking", benchmark={"check": True})
    off = unchecked(tmp_path, "off", benchmark={"check": False})
    unknown = unchecked(tmp_path, "unknown")
    checked = str(write(tmp_path / "checked", Stream(total=1).candidate(0, 1.0).finished().events))
    printed = {}
    for path in (lacking, off, unknown, checked):
        assert main(["replay", path]) == 0
        printed[path] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("outputs")]
    assert len(printed[lacking]) == 1 and "no reference and no check" in printed[lacking][0]
    assert printed[off] == ["outputs    not checked: the check was switched off (--skip-check)"]
    assert printed[unknown] == printed[checked] == []
    page = report(lacking).replace("<wbr>", "")
    assert "The winner's outputs were not checked: the workload has no reference" in page

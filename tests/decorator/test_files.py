"""The journals and reports of decorated kernels, and one place to see what was tuned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import TUNING, doubled, scale_jit, shift

import atune
from atune.api import cached_tune as cached
from atune.decorator import files as decorator_files
from atune.decorator.files import files_in
from atune.errors import NoWinner, UsageError
from atune.journal.reader import read
from atune.journal.replay import replay


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Any]:
    """Decorate with a small tuning and a result cache, journals and reports of the test's own."""

    def decorate(kernel: Any = scale_jit, **options: Any) -> Any:
        given = {"space": {"block": [16, 64]}, "tuning": TUNING, "cache": tmp_path / "cache"}
        places = {"journal": tmp_path / "journals", "report": tmp_path / "reports"}
        if kernel is scale_jit:
            given |= {"reference": doubled, "hints": {"factor": 2}}
        return atune.autotune(kernel, **{**given, **places, **options})

    return decorate


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_each_key_has_its_journal_and_report_and_tunings_lists_them(tuned: Any, tmp_path: Path) -> None:
    kernel = tuned(name="twice <b>")
    kernel(256)
    kernel(512)
    journals, reports = names(tmp_path / "journals"), names(tmp_path / "reports")
    assert len(journals) == len(reports) == 2
    assert [n.removesuffix(".jsonl") for n in journals] == [n.removesuffix(".html") for n in reports]
    assert all(name.startswith("twice_b_-") for name in journals)
    assert {replay(tmp_path / "journals" / name).best_config["block"] for name in journals} <= {16, 64}
    page = (tmp_path / "reports" / reports[0]).read_text()
    assert "<h1>twice &lt;b&gt;" in page and 'id="candidates"' in page and journals[0] in page.replace("<wbr>", "")
    mine = [one for one in atune.tunings() if one.kernel == "twice <b>"]
    assert [one.key for one in mine] == [{"factor": 2, "n": 256}, {"factor": 2, "n": 512}]
    assert all(one.source == "tuned" and one.config["block"] in (16, 64) and one.latency_ms for one in mine)
    assert sorted(Path(one.journal or "").name for one in mine) == journals
    assert mine[0].result is not None and mine[0].result.measured == 2
    table = str(atune.tunings())
    assert table.splitlines()[0].split()[:3] == ["kernel", "key", "from"] and "n=512" in table
    assert "<td>twice &lt;b&gt;</td>" in atune.tunings()._repr_html_()


def test_a_result_of_the_cache_leaves_its_files_too(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that gets its winner from the cache can still ask for the journal and the page of the run."""
    tuned(journal=None, report=None)(256)
    assert names(tmp_path / "journals") == names(tmp_path / "reports") == []

    async def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("this would tune")

    monkeypatch.setattr(cached, "tune", refuse)
    kernel = tuned()
    kernel(256)
    [journal], [report] = names(tmp_path / "journals"), names(tmp_path / "reports")
    assert replay(tmp_path / "journals" / journal).measured == 2
    assert 'id="candidates"' in (tmp_path / "reports" / report).read_text()
    [winner] = kernel.known().values()
    assert [one.source for one in atune.tunings() if one.result is winner.result] == ["cache"]
    before = (tmp_path / "journals" / journal).stat().st_mtime_ns
    tuned()(256)
    assert (tmp_path / "journals" / journal).stat().st_mtime_ns == before


def test_tuning_anew_keeps_the_former_journal(tuned: Any, tmp_path: Path) -> None:
    kernel = tuned(shift, report=None)
    kernel.compile(n=64)
    [first] = names(tmp_path / "journals")
    result = kernel.tune(torch.zeros(64), refresh=True)
    assert not result.cache_hit and names(tmp_path / "journals") == sorted([first, first.replace(".jsonl", "-2.jsonl")])
    assert len(read(tmp_path / "journals" / first)) > 3 and Path(result.journal or "").name.endswith("-2.jsonl")


def test_an_interrupted_tuning_goes_on_in_its_journal(tuned: Any, tmp_path: Path) -> None:
    """As after a crash: the journal's first lines are there, and what they measured is not measured again."""
    kernel = tuned(cache=False)
    kernel(256)
    [name] = names(tmp_path / "journals")
    path = tmp_path / "journals" / name
    lines = path.read_bytes().splitlines(keepends=True)
    until = next(i for i, line in enumerate(lines) if b"candidate_measured" in line) + 1
    assert until < len(lines)
    path.write_bytes(b"".join(lines[:until]))
    again = tuned(cache=False)
    again(256)
    assert names(tmp_path / "journals") == [name]
    done = replay(path)
    assert done.finished and done.measured == 2
    assert sum(b"candidate_measured" in line for line in path.read_bytes().splitlines()) == 2


def test_measurements_of_the_cache_are_not_made_again_because_of_a_journal(tuned: Any, tmp_path: Path) -> None:
    tuned(journal=None, report=None)(256)
    wider = tuned(space={"block": [16, 64, 32]})
    result = wider.tune(256)
    assert result.measured == 3 and not result.cache_hit
    events = read(tmp_path / "journals" / names(tmp_path / "journals")[0])
    measured = [event for event in events if isinstance(event, atune.CandidateMeasured)]
    assert sorted(event.mono > 0 for event in measured) == [False, False, True]


def test_a_tuning_without_a_winner_leaves_its_report(tuned: Any, tmp_path: Path) -> None:
    kernel = tuned(reference=lambda A: A * 3)
    with pytest.raises(NoWinner):
        kernel(256)
    [report], [journal] = names(tmp_path / "reports"), names(tmp_path / "journals")
    assert "No candidate worked." in (tmp_path / "reports" / report).read_text()
    assert replay(tmp_path / "journals" / journal).failed == 2


def test_a_file_in_place_of_a_folder_is_refused(tuned: Any, tmp_path: Path) -> None:
    for option, path in (("journal", "run.jsonl"), ("report", tmp_path / "page.html")):
        with pytest.raises(UsageError, match=f"{option}: give a folder, and not the file .*: each key gets a file"):
            tuned(**{option: path})
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="give a folder"):
        files_in(tmp_path / "taken", None)
    kernel = tuned(journal=None, report=tmp_path / "taken" / "deeper")
    with pytest.raises(UsageError, match=r"report: cannot make the folder .*deeper: Not a directory"):
        kernel(256)


def test_a_report_that_cannot_be_written_costs_no_result(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decorator_files, "whole_file", full)
    with pytest.warns(RuntimeWarning, match=r"cannot write .*\.html: No space left on device"):
        assert tuned(journal=None)(256).config["block"] in (16, 64)

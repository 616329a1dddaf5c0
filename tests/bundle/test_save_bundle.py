"""Bundles of what was tuned: written, and served without tilelang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from event_streams import Stream
from processes import environment

import atune
from atune.bundle import load
from atune.errors import UsageError
from atune.frontends import save_bundle as writer
from atune.frontends.cli.main import main
from atune.journal.result import Result
from atune.model.folders import artifacts_folder
from atune.results import save_bundle

KERNELS = Path(__file__).parents[1] / "bundle_kernels.py"
SERVE = """
import sys
sys.modules["tilelang"] = None
import torch
from atune.bundle import load
found = load(sys.argv[1])
for M in (32, 64):
    A, B = torch.randn(M, 32), torch.randn(32, 16)
    torch.testing.assert_close(found(A, B), A @ B)
print("served")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the runs of this module."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATUNE_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def journals(home: Path) -> dict[str, str]:
    """The journals of one run for each workload of `bundle_kernels`."""
    found = {}
    for name in ("SMALL", "LARGE", "OTHER"):
        found[name] = str(home / f"{name}.jsonl")
        atune.run(f"{KERNELS}:{name}", target="c", journal=found[name], progress=False)
    return found


def replayed(journals: dict[str, str], *names: str) -> list[Any]:
    return [atune.replay(journals[name]) for name in names]


def test_what_was_tuned_is_served_without_tilelang_and_compilers(journals: dict[str, str], tmp_path: Path) -> None:
    small, large = results = replayed(journals, "SMALL", "LARGE")
    digest = save_bundle(tmp_path / "b", results)
    env = {name: value for name, value in environment().items() if not name.startswith("ATUNE_")}
    command = [sys.executable, "-W", "error", "-c", SERVE, str(tmp_path / "b")]
    done = subprocess.run(command, env=env | {"PATH": "/nowhere"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert manifest["digest"] == digest and manifest["target"] == "c"
    assert manifest["kernel"] == "matmul"
    for one, result in zip(manifest["problems"], (small, large), strict=True):
        assert one["problem"] == result.header.arguments
        assert one["params"][0] == {"dtype": "float32", "shape": [one["problem"]["M"], 32], "strides": None}
    assert save_bundle(tmp_path / "again", results) == digest


def test_a_library_that_is_gone_is_to_be_tuned_again(journals: dict[str, str], tmp_path: Path) -> None:
    [result] = replayed(journals, "SMALL")
    result.kept = msgspec.structs.replace(result.kept, path=str(artifacts_folder() / f"{'0' * 64}.so"))
    with pytest.raises(UsageError, match="the library of M=32, N=16 is gone, or was not kept: tune again"):
        result.save_bundle(tmp_path / "b")
    assert not list(tmp_path.iterdir())


SAYS_SO = pytest.mark.filterwarnings("ignore:running .*bundle_kernels.py, which the journal names:RuntimeWarning")


@SAYS_SO
@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({}, False),
        ({"compiler": "cicc", "state": "s", "compared": True}, False),
        ({"compiler": "cicc", "state": "s"}, True),
    ],
    ids=["plain", "compared", "unknown state"],
)
def test_a_measured_library_is_taken_if_its_code_is_known(
    changed: dict[str, Any], again: bool, journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [result] = replayed(journals, "SMALL")
    result.kept = msgspec.structs.replace(result.kept, **changed)
    compiled, compile_again = list[Any](), writer._compiled

    async def counted(*given: Any) -> Any:
        compiled.append(given)
        return await compile_again(*given)

    monkeypatch.setattr(writer, "_compiled", counted)
    result.save_bundle(tmp_path / "b")
    assert bool(compiled) == again
    A, B = torch.randn(32, 32), torch.randn(32, 16)
    torch.testing.assert_close(load(tmp_path / "b")(A, B), A @ B)


@SAYS_SO
@pytest.mark.parametrize(
    ("of_library", "of_winner"),
    [
        ({"source_key": "that of a stale entry"}, {}),
        ({"compiler": "cicc", "state": "unknown"}, {"source_key": "what the journal has"}),
        ({"compiler": "cicc", "state": "unknown"}, {"code_key": "what the journal has"}),
    ],
    ids=["stale", "other source", "other code"],
)
def test_a_library_of_other_code_than_the_journals_is_refused(
    of_library: Any, of_winner: Any, journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [result] = replayed(journals, "SMALL")
    result.kept = msgspec.structs.replace(result.kept, **of_library)
    best = msgspec.structs.replace(result.best, **of_winner)
    monkeypatch.setattr(type(result), "best", property(lambda self: best))
    with pytest.raises(UsageError, match="does not have the code that the run measured: tune again"):
        result.save_bundle(tmp_path / "b")


def test_results_that_make_no_bundle(journals: dict[str, str], tmp_path: Path) -> None:
    refused = [
        ([], "a bundle needs at least one result"),
        (replayed(journals, "SMALL", "SMALL"), "two results are for the problem M=32, N=16: leave one result out"),
        (replayed(journals, "SMALL", "OTHER"), r"one kernel, but M=96, N=16 \(.*\) is of a different kernel"),
        ([Result.from_events(Stream().proposed(0).events)], "the run has no winner"),
    ]
    for results, message in refused:
        with pytest.raises(UsageError, match=message):
            save_bundle(tmp_path / "b", results)
    half = tmp_path / "half.jsonl"
    half.write_text("".join(Path(journals["SMALL"]).read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match=r"the run of .*half\.jsonl did not finish: resume it first"):
        save_bundle(tmp_path / "b", [atune.replay(half)])
    assert [path.name for path in tmp_path.iterdir()] == ["half.jsonl"]


def test_a_folder_that_is_there_stays(journals: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    for taken in (tmp_path, tmp_path / "note"):
        with pytest.raises(UsageError, match="exists and is not empty: give a new folder"):
            save_bundle(taken, replayed(journals, "SMALL"))
    with pytest.raises(UsageError, match=r"cannot write .*/note/b: "):
        save_bundle(tmp_path / "note" / "b", replayed(journals, "SMALL"))
    assert (tmp_path / "note").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    save_bundle(tmp_path / "empty", replayed(journals, "SMALL"))
    load(tmp_path / "empty")


def test_the_instructions_of_another_cpu_are_not_shipped(
    journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.launch, "this_cpu", lambda: {"machine": "x86_64", "name": "Another CPU", "features": []})
    with pytest.raises(UsageError, match=r"uses instructions of the .* that tuned it: save the bundle on that machine"):
        save_bundle(tmp_path / "b", replayed(journals, "SMALL"))


def test_the_command(journals: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", journals["SMALL"], journals["LARGE"], "-o", str(tmp_path / "b"), "--json"]) == 0
    found = load(tmp_path / "b")
    printed = {"output": str(tmp_path / "b"), "problems": 2, "digest": found.digest}
    assert json.loads(capsys.readouterr().out) == printed and len(found.problems) == 2
    before = os.umask(0o027)
    try:
        assert main(["bundle", journals["SMALL"], "-o", str(tmp_path / "one")]) == 0
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "one").iterdir()} == {0o640}
    first, digest = capsys.readouterr().out.splitlines()
    assert first == f"bundle     {tmp_path / 'one'}, 1 problem" and digest.startswith("digest     ")


def test_a_set_of_problems(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a kernel that takes any size."""
    folder = tmp_path / "set"
    tuned = atune.run_set(f"{KERNELS}:DOUBLE", [{"n": 64}, {"n": 4096}], target="c", journal=folder)
    digest = tuned.save_bundle(tmp_path / "new" / "b")
    capsys.readouterr()
    assert main(["bundle", str(folder), "-o", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(tmp_path / "again"), "problems": 2, "digest": digest}
    nearest = load(tmp_path / "new" / "b", on_miss="nearest")
    assert nearest.problems == [{"n": 64}, {"n": 4096}] and nearest.digest == digest
    with pytest.warns(RuntimeWarning, match="the kernel of n=64 runs"):
        assert torch.equal(nearest(torch.ones(100)), torch.full((100,), 2.0))


def test_of_two_that_make_the_same_bundle_one_fails(
    journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's winner would be gone."""
    first, second = replayed(journals, "SMALL", "LARGE")
    write = writer._write

    def late(*given: Any) -> None:
        monkeypatch.setattr(writer, "_write", write)
        save_bundle(tmp_path / "b", [first])
        write(*given)

    monkeypatch.setattr(writer, "_write", late)
    with pytest.raises(UsageError, match=r"cannot write .*/b: Directory not empty"):
        save_bundle(tmp_path / "b", [second])
    assert load(tmp_path / "b").problems == [{"M": 32, "N": 16}]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]

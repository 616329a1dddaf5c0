"""Bundles of what was tuned: written, served without tilelang, and compiled again where a library is gone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from bundle_kernels import LARGE, OTHER, SMALL
from event_streams import Stream
from processes import environment

import atune
from atune.bundle import OutsideProblems, load
from atune.errors import UsageError
from atune.frontends.api import save_bundle as writer
from atune.frontends.cli.main import main
from atune.frontends.sets.tuning import read_set
from atune.journal.result import Result
from atune.model.folders import artifacts_folder
from atune.results import save_bundle
from atune.sets import compare, regret_matrix

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
    assert manifest["digest"] == digest and manifest["target"] == "c" and manifest["rule"] is None
    assert manifest["kernel"] == {"name": "matmul", "fingerprint": small.header.kernel}
    for one, result in zip(manifest["problems"], (small, large), strict=True):
        assert one["problem"] == result.header.arguments and one["config"] == result.best_config
        assert one["latency_ms"] == result.latency_ms and one["versions"]["tilelang"]
        assert one["params"][0] == {"dtype": "float32", "shape": [one["problem"]["M"], 32], "strides": None}
    assert save_bundle(tmp_path / "again", results) == digest
    with pytest.raises(
        OutsideProblems, match=r"no kernel takes float32 \[48, 32\] here; the bundle \w{12} has M=32, N=16; M=64"
    ):
        load(tmp_path / "b")(torch.ones(48, 32), torch.ones(32, 16))


def test_a_result_saves_itself(home: Path, tmp_path: Path) -> None:
    result = atune.run(SMALL, target="c", progress=False)
    digest = result.save_bundle(tmp_path / "new" / "b")
    found, A, B = load(tmp_path / "new" / "b"), torch.randn(32, 32), torch.randn(32, 16)
    assert found.digest == digest and torch.equal(found(A, B), result.kernel(A, B))


@pytest.fixture
def without_libraries(journals: dict[str, str]) -> Iterator[None]:
    """Have the artifact store be empty, until the test ends."""
    aside = artifacts_folder().with_name("aside")
    artifacts_folder().rename(aside)
    yield
    shutil.rmtree(artifacts_folder(), ignore_errors=True)
    aside.rename(artifacts_folder())


@pytest.mark.usefixtures("without_libraries")
def test_a_library_that_is_gone_is_compiled_again(journals: dict[str, str], tmp_path: Path) -> None:
    [result] = replayed(journals, "SMALL")
    assert result.artifact is None
    result.save_bundle(tmp_path / "b")
    A, B = torch.randn(32, 32), torch.randn(32, 16)
    torch.testing.assert_close(load(tmp_path / "b")(A, B), A @ B)


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({}, False),
        ({"compiler": "cicc", "state": "s", "compared": True}, False),
        ({"compiler": "cicc", "state": "s"}, True),
        ({"source_key": "that of a stale entry"}, True),
    ],
    ids=["plain", "compared", "unknown state", "other source"],
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


def test_a_winner_that_is_lowered_to_other_code_now_is_refused(
    journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [result] = replayed(journals, "SMALL")
    best = msgspec.structs.replace(result.best, source_key="what the journal has")
    monkeypatch.setattr(type(result), "best", property(lambda self: best))
    with pytest.raises(UsageError, match="lowered to other code now than when it was tuned: tune again"):
        result.save_bundle(tmp_path / "b")


@pytest.mark.usefixtures("without_libraries")
def test_a_workload_stands_for_all_problems_of_a_set(journals: dict[str, str], tmp_path: Path) -> None:
    [result] = replayed(journals, "SMALL")
    result.save_bundle(tmp_path / "b", workload=LARGE)
    assert load(tmp_path / "b").problems == [{"M": 32, "N": 16}]


@pytest.mark.usefixtures("without_libraries")
def test_another_kernel_is_not_compiled_in_its_place(journals: dict[str, str], tmp_path: Path) -> None:
    [result] = replayed(journals, "SMALL")
    with pytest.raises(UsageError, match=r"the winner's library is gone, and .* is not what was tuned"):
        result.save_bundle(tmp_path / "b", workload=OTHER)
    assert not (tmp_path / "b").exists() and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_libraries")
def test_another_tilelang_does_not_compile_it(
    journals: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "installed_versions", lambda: {"tilelang": "9"})
    with pytest.raises(UsageError, match=r"M=32, N=16 was tuned with tilelang .*, and 9 is installed; tune again"):
        replayed(journals, "SMALL")[0].save_bundle(tmp_path / "b")


def test_results_that_make_no_bundle(journals: dict[str, str], tmp_path: Path) -> None:
    refused = [
        ([], "a bundle needs at least one result"),
        (replayed(journals, "SMALL", "SMALL"), "two results are of the problem M=32, N=16: give one of them"),
        (replayed(journals, "SMALL", "OTHER"), r"one kernel, and M=96, N=16 \(.*\) is of another than the first"),
        ([Result.from_events(Stream().proposed(0).events)], "the run has no winner"),
    ]
    for results, message in refused:
        with pytest.raises(UsageError, match=message):
            save_bundle(tmp_path / "b", results)
    with pytest.raises(UsageError, match="a bundle of 1 results needs a weight for each, got 2"):
        save_bundle(tmp_path / "b", replayed(journals, "SMALL"), weights=[1, 2])
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
    monkeypatch.setattr(writer, "this_cpu", lambda: {"machine": "x86_64", "name": "Another CPU", "features": []})
    with pytest.raises(UsageError, match=r"has instructions of the .* that it was tuned on: save the bundle there"):
        save_bundle(tmp_path / "b", replayed(journals, "SMALL"))


def test_the_command(journals: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bundle", journals["SMALL"], journals["LARGE"], "-o", str(tmp_path / "b")]
    assert main([*command, "--json"]) == 0
    found = load(tmp_path / "b")
    printed = {"output": str(tmp_path / "b"), "problems": 2, "digest": found.digest}
    assert json.loads(capsys.readouterr().out) == printed and len(found.problems) == 2
    assert main(command) == 2
    assert "exists and is not empty: give a new folder" in capsys.readouterr().err
    assert main(["bundle", journals["SMALL"], "-o", str(tmp_path / "one")]) == 0
    first, rule, digest = capsys.readouterr().out.splitlines()
    assert first == f"bundle     {tmp_path / 'one'}, 1 problem" and digest.startswith("digest     ")
    assert rule.startswith("rule       none: each kernel takes one problem alone")


def test_a_set_of_problems(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    found = atune.run_set(f"{KERNELS}:SMALL", [{"M": 32, "N": 16}, {"M": 64, "N": 16}], target="c", journal=folder)
    digest = found.save_bundle(tmp_path / "b")
    assert load(tmp_path / "b").problems == [{"M": 32, "N": 16}, {"M": 64, "N": 16}]
    capsys.readouterr()
    assert main(["bundle", str(folder), "-o", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(tmp_path / "again"), "problems": 2, "digest": digest}


# ---- a set of any size: its rule, and problems that are added


SIZES = [{"n": 64}, {"n": 512}, {"n": 4096}]


@pytest.fixture(scope="module")
def doubled(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a set's journals."""
    folder = tmp_path_factory.mktemp("sets") / "double"
    atune.run_set(f"{KERNELS}:DOUBLE", atune.Problems(SIZES, weights=[1, 2, 3]), target="c", journal=folder)
    return folder


def test_a_set_has_a_rule_with_its_regret(doubled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = read_set(doubled).save_bundle(tmp_path / "b")
    found = load(tmp_path / "b")
    [rule] = found.manifest["rule"]
    assert (rule["tested"], rule["sizes"], rule["others"]) == (3, {"n": [64, 4096]}, {})
    assert rule["worst_regret"] >= rule["regret"] >= 0
    for n in (64, 100, 3000):
        assert torch.equal(found(torch.ones(n)), torch.full((n,), 2.0))
    assert [(miss["problem"], miss["by"]) for miss in found.misses()] == [({"n": 100}, "rule"), ({"n": 3000}, "rule")]
    with pytest.raises(OutsideProblems, match="outside of its rule"):
        found(torch.ones(5000))
    assert main(["bundle", str(doubled), "-o", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"bundle     {tmp_path / 'again'}, 3 problems" and printed[2] == f"digest     {digest}"
    how = r"[\d.e-]+ % slower than the best on problems left out, at worst [\d.e-]+ %"
    assert re.fullmatch(rf"rule       (nearest|tree), n 64 to 4096: {how}", printed[1])


def test_problems_are_added_while_the_old_bundle_serves(doubled: Path, tmp_path: Path) -> None:
    first, *others = read_set(doubled).results
    save_bundle(tmp_path / "b", [first])
    old = load(tmp_path / "b")
    digest = save_bundle(tmp_path / "b", others, add=True)
    save_bundle(tmp_path / "whole", [first, *others])
    found = load(tmp_path / "b")
    assert found.digest == digest != old.digest and found.problems == SIZES
    assert torch.equal(old(torch.ones(64)), found(torch.ones(64)))  # it loads its library only now
    assert found.manifest["files"] == load(tmp_path / "whole").manifest["files"]
    known = save_bundle(tmp_path / "b", [first], add=True)  # also what the others' configurations cost there
    assert known == save_bundle(tmp_path / "b", [first], add=True) and load(tmp_path / "b").problems == SIZES
    assert load(tmp_path / "b").manifest["files"] == found.manifest["files"]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_what_does_not_fit_a_bundle_is_not_added(
    doubled: Path,
    journals: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = read_set(doubled).results
    save_bundle(tmp_path / "b", results)
    with pytest.raises(UsageError, match=r"M=32, N=16 \(.*\) is of another than those in it"):
        save_bundle(tmp_path / "b", replayed(journals, "SMALL"), add=True)
    with monkeypatch.context() as elsewhere, pytest.raises(UsageError, match="and this machine is arm"):
        elsewhere.setattr(writer, "this_cpu", lambda: {"machine": "arm", "name": "", "features": []})
        save_bundle(tmp_path / "b", results, add=True)
    [library, *_] = (tmp_path / "b").glob("*.so")
    library.write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"\.so is damaged"):
        save_bundle(tmp_path / "b", results, add=True)


@pytest.mark.parametrize("add", [False, True])
def test_of_two_that_make_the_same_bundle_one_fails(
    doubled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: bool
) -> None:
    """The other one's winners would be gone."""
    first, second, _ = read_set(doubled).results
    made = writer._manifest

    def late(*given: Any) -> dict[str, Any]:
        monkeypatch.setattr(writer, "_manifest", made)
        save_bundle(tmp_path / "b", [first], add=add)
        return made(*given)

    monkeypatch.setattr(writer, "_manifest", late)
    with pytest.raises(UsageError, match=r"cannot write .*/b: Directory not empty"):
        save_bundle(tmp_path / "b", [second], add=add)
    assert load(tmp_path / "b").problems == SIZES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_bundle_that_two_add_to_has_both(doubled: Path, tmp_path: Path) -> None:
    first, second, third = read_set(doubled).results
    save_bundle(tmp_path / "b", [first])
    threads = [
        threading.Thread(target=save_bundle, args=(tmp_path / "b", [one]), kwargs={"add": True})
        for one in (second, third)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["n"] for one in load(tmp_path / "b").problems) == [64, 512, 4096]


def test_bundles_and_journals_are_compared(doubled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle of a set is as fast as the set, and one whose kernel got slower fails."""
    read_set(doubled).save_bundle(tmp_path / "b")
    assert main(["compare", str(doubled), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.startswith("compared   3 problems, none clearly slower by more than 2 %\n")
    bundle = load(tmp_path / "b")
    found = compare(bundle, read_set(doubled))
    assert [one.ratio[1] for one in found.problems if one.ratio] == pytest.approx([1] * 3)
    assert not any(one.code or one.config or one.setup for one in found.problems)
    bundle.manifest["problems"][1]["interval_ms"] = [0.5 * one for one in bundle.manifest["problems"][1]["interval_ms"]]
    assert [one.problem for one in compare(bundle, tmp_path / "b").slower] == [{"n": 512}]
    with pytest.raises(UsageError, match="a bundle has no journals"):
        regret_matrix(bundle)

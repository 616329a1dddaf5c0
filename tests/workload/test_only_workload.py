"""FILE.py alone: a file's only workload, its WORKLOAD, or the list of what there is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from atune.errors import SpaceError, WorkloadError
from atune.workload.pickling import FileRef, chosen, load, parse_file_ref

ONE = """
import atune

def kernel(N, block=16):
    pass

def other(name):
    return atune.Workload(kernel, atune.Space(block=[16, 32]), arguments={"N": 4}, name=name)

"""


def written(folder: Path, last: str) -> str:
    file = folder / "work.py"
    file.write_text(ONE + last)
    return str(file)


@pytest.mark.parametrize(
    ("last", "name"),
    [
        ("GEMM = other('gemm')", "GEMM"),
        ("GEMM = ALIAS = other('gemm')", "GEMM"),
        ("GEMM = other('gemm'); WORKLOAD = other('whole')", "WORKLOAD"),
    ],
)
def test_a_file_alone_is_enough(tmp_path: Path, last: str, name: str) -> None:
    ref = parse_file_ref(written(tmp_path, last))
    assert ref.name == "" and chosen(ref) == FileRef(ref.path, name) and ref.origin == ref.path
    assert load(ref) is load(FileRef(ref.path, name))


def test_of_several_the_message_has_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "TALL = other('tall'); FLAT = other('flat')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        load(parse_file_ref("work.py", "atune tune"))
    first, *rest = str(caught.value).splitlines()
    assert first == f"{tmp_path}/work.py has 2 workloads; choose one:"
    assert rest == ["  atune tune work.py:TALL", "  atune tune work.py:FLAT"]
    with pytest.raises(WorkloadError, match=r"choose one:\n  work.py:TALL\n"):
        load(parse_file_ref("work.py"))
    (tmp_path / "a folder").mkdir()
    written(tmp_path / "a folder", "TALL = other('tall'); FLAT = other('flat')")
    with pytest.raises(WorkloadError) as caught:
        load(parse_file_ref("a folder/work.py", "atune tune"))
    words = [shlex.split(line) for line in str(caught.value).splitlines()[1:]]
    assert words == [["atune", "tune", f"a folder/work.py:{name}"] for name in ("TALL", "FLAT")]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "TALL = other('tall'); FLAT = other('flat')")
    with pytest.raises(WorkloadError, match=r"has no 'TALLL'; it has TALL, FLAT \(did you mean 'TALL'\?\)"):
        load(parse_file_ref(f"{file}:TALLL"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkloadError, match=r"no atune.Workload at its top level: give .* WORKLOAD = atune"):
        load(parse_file_ref(written(tmp_path / "empty", "")))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("BAD = atune.Workload(kernel, atune.Space(blok=[16]))", "takes no argument 'blok'"),
        ("BAD = atune.Workload(kernel, atune.Space(block=[16]), inputs=5)", "inputs must be a list of tensors"),
        (
            "import argparse, sys; argparse.ArgumentParser(usage='%(prog)s N').error('no N')",
            "it wrote: usage: work.py N",
        ),
    ],
)
def test_a_mistake_of_a_file_is_shown_with_its_line(line: str, told: str, tmp_path: Path) -> None:
    file = written(tmp_path, line)
    with pytest.raises(WorkloadError if "sys" in line or "inputs" in line else SpaceError) as caught:
        load(parse_file_ref(file))
    message, place, source, *_ = str(caught.value).split("\n")
    number = Path(file).read_text().splitlines().index(line) + 1
    assert told in message and place == f'  File "{file}", line {number}, in <module>' and source.strip() == line

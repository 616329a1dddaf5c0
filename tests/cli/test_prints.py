"""What the kernel's function, the inputs and the reference print: kept with each candidate, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atune.frontends.cli.main import main
from atune.journal.reader import replay

FILE = """
import os

import torch
from workloads import scale

import atune


def kernel(n: int, factor: int = 2):
    print("elaborating", factor)
    if factor < 0:
        os.kill(os.getpid(), 11)
    if not factor:
        raise ValueError("no factor")
    return scale(n, factor)


def inputs(n):
    print("making inputs")
    return [torch.randn(n)]


def reference(A):
    print("\\033[31mreference of", tuple(A.shape))
    return 2 * A


SPACE = atune.Space(factor=[2, 3, 0, -1])
WORKLOAD = atune.Workload(kernel, SPACE, arguments={"n": 64}, inputs=inputs, reference=reference)
"""
OF_ALL = ["making inputs", "\033[31mreference of (64,)"]
PRINTED = [
    ("measured", ["elaborating 2", *OF_ALL]),
    ("failed", ["elaborating 3", *OF_ALL]),
    ("failed", ["elaborating 0"]),
    ("failed", []),
]
"""The status of each candidate, and what its functions print: the reference is called often, and tells it once.
Of a process that crashed nothing is kept, and nothing of the candidate before."""


def test_prints_are_kept_with_each_candidate_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "printing.py").write_text(FILE)
    journal = str(tmp_path / "j")
    given = ["--target", "c", "--workers", "1", "--verbose", "--journal", journal]
    assert main(["tune", f"{tmp_path}/printing.py", *given]) == 0
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    records = {record.index: record for record in replay(journal).records}
    for index, (status, lines) in enumerate(PRINTED):
        assert (records[index].status, records[index].printed.splitlines()) == (status, lines)
        assert "".join(one.get("printed", "") for one in logged if one.get("index") == index).splitlines() == lines
        assert main(["show", journal, str(index)]) == 0
        shown = capsys.readouterr().out
        text = "\nprinted\n" + "".join(f"  {line}\n".replace("\033", " ") for line in lines)
        assert text in shown if lines else "\nprinted" not in shown

"""Layouts that the tilelang in use infers, read off the CUDA code that it generates: which rule it keeps."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from contract_kernels import MODES
from stage_runs import session_of

import atune
from atune.model.artifact import Lowered
from atune.stages.compile.codegen import Blob
from atune.stages.compile.lowering import lower
from atune.workload.pickling import FileRef

TESTS = Path(__file__).parents[2]


def source(file: str, name: str, index: int, folder: Path) -> str:
    """Return the CUDA code of a workload's candidate, for sm_90a."""
    with session_of(FileRef(str(TESTS / file), name), folder) as candidates:
        lowered = lower(candidates[index])
    assert isinstance(lowered, Lowered), lowered
    blob: Blob = msgspec.msgpack.decode(lowered.blob, type=Blob)
    return blob.source


def test_of_threads_that_hold_the_same_element_one_stores_it(tmp_path: Path) -> None:
    """The contract suite's kernel: 16 elements among 128 threads, each held eight times, and added to once."""
    code = source("contract_kernels.py", "MOODY_GPU", MODES.index("replicated"), tmp_path)
    assert "float held[1];" in code and re.search(r"__launch_bounds__\(128\b", code)
    [guarded] = re.findall(r"if \(+\(int\)threadIdx\.x\) >> 4\) == 0\) \{(.*?)\n  \}", code, re.S)
    added = re.compile(r"total\[[^\n]*= [^\n]*held\[0\]")
    assert len(added.findall(guarded)) == len(added.findall(code)) == 2


@pytest.mark.gpu
def test_what_is_shared_out_among_threads_is_right_on_a_gpu() -> None:
    result = atune.run(f"{TESTS / 'layout_kernels.py'}:WEIGHTED", target="cuda", devices=["0"])
    assert result.measured == 1 and result.measurements[0].checked

"""The facts of a configuration, read while it is lowered and off its machine code."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from stage_runs import session_of

from atune.model.artifact import Artifact
from atune.model.candidate import Candidate
from atune.model.layouts import contained, mask_of
from atune.stages import elf
from atune.stages.codegen import answer
from atune.stages.lowering import lower
from atune.workload.pickling import FileRef

ROOT = Path(__file__).parents[3]
WEIGHTED = FileRef(str(ROOT / "tests" / "layout_kernels.py"), "WEIGHTED")
SOFTMAX = FileRef(str(ROOT / "examples" / "softmax.py"), "WORKLOAD")


def built(candidate: Candidate, folder: Path) -> Artifact:
    [found] = answer([lower(candidate)], str(folder / "library.so"))
    assert isinstance(found, Artifact), found
    return found


def test_a_loop_that_many_threads_do_says_which(tmp_path: Path) -> None:
    """Each of 4 rows is done by 64 of 256 threads, where tilelang decides; and by one each in rows of vectors."""
    with session_of(FileRef(str(ROOT / "examples" / "layout_broadcast.py"), "WIDE"), tmp_path) as candidates:
        found = {one.config["loop"]: one for one in reversed(candidates) if one.config["held"] == "compiler"}
        own, pairs = (lower(found[how]).facts.layouts for how in ("compiler", "vector2"))
    assert own is not None and pairs is not None
    [many], [one] = own.loops, pairs.loops
    assert (many.slots, many.replication, many.redundant) == (4096, 64, 4032)
    assert (many.threads[0], many.threads[-1]) == (mask_of(range(0, 256, 4)), mask_of(range(3, 256, 4)))
    assert (one.slots, one.replication, one.redundant, one.width) == (64, 1, 0, 2)
    assert (many.access_bits, one.access_bits) == (128, 32)
    assert one.threads[:4] == tuple(mask_of([thread]) for thread in (0, 0, 1, 2)) and one.threads[-1] == mask_of([255])
    assert contained(pairs, own) is False  # other threads do it, so that less work decides


def test_a_layout_that_is_not_understood_costs_its_facts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("another tilelang")

    monkeypatch.setattr("atune.stages.facts.layouts_of", fails)
    with session_of(WEIGHTED, tmp_path) as candidates:
        assert lower(candidates[0]).facts.layouts is None


def test_registers_and_stack_are_those_of_ptxas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILELANG_VERBOSE", "1")  # tilelang then logs the figures of ptxas
    monkeypatch.setattr(logging.getLogger("tilelang"), "handlers", [caplog.handler])
    with session_of(SOFTMAX, tmp_path), caplog.at_level(logging.INFO, "tilelang"):
        found = built(Candidate(0, "0123456789abcdef", {"block_rows": 32, "threads": 1024}), tmp_path)
    registers, stack = (re.search(text, caplog.text) for text in (r"Used (\d+) regi", r"(\d+) bytes stack frame"))
    assert registers is not None and stack is not None and found.machine is not None
    assert (found.machine.registers, found.machine.stack_bytes) == (int(registers[1]), int(stack[1]))
    assert found.machine.stack_bytes > 0


def test_the_code_that_proofs_compare_has_its_registers(tmp_path: Path) -> None:
    """Two kernels of equal code and other register counts are launched differently."""
    with session_of(WEIGHTED, tmp_path) as candidates:
        found = built(candidates[0], tmp_path)
    assert found.machine is not None
    [code] = elf.kernels_code(Path(found.path).read_bytes(), found.symbol)
    [registers] = [int.from_bytes(value, "little") for name, value in code.items() if name.startswith("registers of")]
    assert registers == found.machine.registers > 0

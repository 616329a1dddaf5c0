"""The workload's files edited during a run: it measures one version, and ends if a worker loads another."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import tilelang
import torch

import atune
from atune.compat.tilelang import autotune as drop_in
from atune.errors import JournalError, UsageError, WorkloadError
from atune.journal.events import CandidateLowered, CandidateMeasured, Event, RunStarted, Warned

N = 64
MAIN = """
import json, os, pathlib
import tilelang.language as T
import atune
from HELPER import amount
N = 64
SHIFT = 1.0
DATA = json.loads(pathlib.Path(__file__).with_name("data.json").read_text())

def shifted(k: int = 0):
    shift = SHIFT + amount() + DATA
    if k == 1:
        os._exit(1)  # a new compile worker, which loads the workload anew
    if k == 3:
        @T.prim_func
        def faulty(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(1):
                T.evaluate(T.call_extern("int32", "raise", 11))  # a new device's process
                for i in T.serial(N):
                    B[i] = A[i] + shift
        return faulty
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            for r, i in T.grid(k + 1, N):
                B[i] = A[i] + shift + 0.0
    return main

def reference(A):
    return A + SHIFT + amount() + DATA

WORKLOAD = atune.Workload(shifted, atune.Space(k=list(range(6))), reference=reference)
"""
HELPER = "def amount():\n    return 10.0\n"
AFTER = {
    "main": MAIN.replace("SHIFT = 1.0", "SHIFT = 2.0").replace("+ 0.0", "+ 5.0"),
    "helper": HELPER.replace("1", "7"),
}
"""Of the same length: files compiled before are told from newer ones by seconds and length."""

Found = tuple[Path, str]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Found]:
    """The workload's file, and the name of the helper module next to it; the helper's name is new in this process."""
    helper = f"helper_{abs(hash(tmp_path))}"
    (tmp_path / f"{helper}.py").write_text(HELPER)
    (tmp_path / "data.json").write_text("100.0")
    (tmp_path / f"main_{helper}.py").write_text(MAIN.replace("HELPER", helper))
    sys.path.insert(0, str(tmp_path))
    yield tmp_path / f"main_{helper}.py", helper
    sys.path.remove(str(tmp_path))
    for name in (helper, f"main_{helper}", "loaded_from_a_path"):
        sys.modules.pop(name, None)


def by_file(file: Path) -> str:
    return f"{file}:WORKLOAD"


def by_reference(file: Path) -> Any:
    """The workload of a module that the workers import by its name."""
    return importlib.import_module(file.stem).WORKLOAD


def by_value(file: Path) -> Any:
    """The workload of a module that the workers cannot import, as those of a script."""
    spec = importlib.util.spec_from_file_location("loaded_from_a_path", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["loaded_from_a_path"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WORKLOAD


def edit(work: Found, which: str) -> None:
    file, helper = work
    path = file if which == "main" else file.with_name(f"{helper}.py")
    path.write_text(AFTER[which].replace("HELPER", helper))
    for name in ("run.log", "other.py"):
        file.with_name(name).write_text("")  # of which no worker reads anything


def tuned(workload: Any, on_event: Callable[[Event], None] | None = None, **options: Any) -> Any:
    return atune.run(
        workload,
        target="c",
        compile=atune.CompileSettings(workers=1, group_size=1, store=False),
        benchmark=atune.BenchmarkSettings(n_repeat=2, n_warmup=1, n_final=1),
        on_event=on_event,
        **options,
    )


def once(kind: type[Event], act: Callable[[], None]) -> Callable[[Event], None]:
    """Return a listener that acts at the first event of its kind."""
    left = [act]

    def listen(event: Event) -> None:
        if isinstance(event, kind) and left:
            left.pop()()

    return listen


def is_the_first_version(result: Any) -> None:
    """Hold every outcome, and the kernel, against the text at the run's start."""
    failures = {record.index: record.kind for record in result.failures}
    assert failures == {1: "crash", 3: "fault"}
    assert result.measured == 4
    [out] = [result.kernel(torch.zeros(N))]
    assert out.tolist() == [111.0] * N


BEFORE, LOWERED, MIDDLE = RunStarted, CandidateLowered, CandidateMeasured
"""Before the first compile; before the device's process starts; in the middle, before processes are replaced."""


@pytest.mark.parametrize(
    ("given", "which", "when"),
    [
        (by_file, "main", BEFORE), (by_file, "main", LOWERED), (by_file, "helper", MIDDLE),
        (by_reference, "main", MIDDLE), (by_value, "helper", MIDDLE),
    ],
)  # fmt: skip
def test_an_edited_file_ends_the_run_and_is_named(
    work: Found, given: Callable[[Path], Any], which: str, when: type[Event], tmp_path: Path
) -> None:
    """What was measured stays in the journal."""
    journal = tmp_path / "journal.jsonl"
    file = work[0] if which == "main" else work[0].with_name(f"{work[1]}.py")
    with pytest.raises(WorkloadError, match=rf"has changed since the run's start \(written since: {file}\), .* resume"):
        tuned(given(work[0]), once(when, lambda: edit(work, which)), journal=journal)
    events = [json.loads(line)["event"]["event"] for line in journal.read_text().splitlines()]
    assert events[-1] == "run_interrupted"
    assert when is not CandidateMeasured or "candidate_measured" in events


def test_a_workload_that_was_sent_by_value_does_not_read_its_file_again(work: Found) -> None:
    is_the_first_version(tuned(by_value(work[0]), once(RunStarted, lambda: edit(work, "main"))))


@pytest.mark.parametrize("given", [by_file, by_value])
def test_files_without_another_meaning_end_no_run(work: Found, given: Callable[[Path], Any]) -> None:
    def edit_comments() -> None:
        for path in (work[0], work[0].with_name(f"{work[1]}.py")):
            path.write_text(f"# the first line\n{path.read_text()}")

    is_the_first_version(tuned(given(work[0]), once(RunStarted, edit_comments)))


@pytest.mark.filterwarnings("ignore:running .*, which the journal names:RuntimeWarning")
@pytest.mark.parametrize(("given", "when"), [(by_file, BEFORE), (by_reference, MIDDLE)])
def test_other_data_that_a_worker_reads_as_it_loads_ends_the_run(
    work: Found, given: Callable[[Path], Any], when: type[Event], tmp_path: Path
) -> None:
    """What was measured stays; `resume` refuses the other work, and goes on where the change was undone."""
    journal, data = tmp_path / "journal.jsonl", tmp_path / "data.json"
    cause = r"none of its Python files was written since"
    with pytest.raises(WorkloadError, match=rf"has changed since the run's start \({cause}.*resume"):
        tuned(given(work[0]), once(when, lambda: data.write_text("200.0")), journal=journal)
    events = [json.loads(line)["event"]["event"] for line in journal.read_text().splitlines()]
    assert events[-1] == "run_interrupted"
    assert ("candidate_measured" in events) == (when is CandidateMeasured)
    if given is by_file:
        with pytest.raises(JournalError, match="the source of the kernel"):
            anyio.run(atune.resume, journal)
        data.write_text("100.0")
        is_the_first_version(anyio.run(atune.resume, journal))


@pytest.mark.parametrize("door", ["run", "autotune", "drop-in"])
def test_a_value_that_the_program_set_in_a_module_makes_no_other_kernel(
    work: Found, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    module = importlib.import_module(work[0].stem)
    monkeypatch.setattr(module, "SHIFT", module.SHIFT + 1000.0)
    space, options = {"k": [0, 2]}, {"reference": module.reference, "target": "c", "cache": False}
    with (
        pytest.warns(RuntimeWarning, match="the workers loaded another version"),
        pytest.raises(UsageError, match="not the kernel of this program"),
    ):
        if door == "run":
            tuned(atune.Workload(module.shifted, space, reference=module.reference))
        elif door == "autotune":
            atune.autotune(module.shifted, space=space, **options)()
        else:
            jitted = tilelang.jit(module.shifted, out_idx=-1, target="c")
            drop_in(configs=[{"k": 0}, {"k": 2}], ref_prog=module.reference)(jitted)()


@pytest.mark.parametrize("given", [by_reference, by_value])
def test_a_kernel_that_is_not_the_programs_is_refused(
    work: Found, given: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program replaced a function of a module, which no worker gets."""
    helper = work[0].with_name(f"{work[1]}.py")
    helper.write_text("def ten():\n    return 10.0\ndef amount():\n    return ten()\n")
    workload, warned = given(work[0]), list[Warned]()
    monkeypatch.setattr(sys.modules[work[1]], "ten", lambda: 50.0)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(WorkloadError, match="not the kernel of this program: the workers loaded another version"):
            tuned(workload, lambda event: warned.append(event) if isinstance(event, Warned) else None)
    by_name = given is by_reference  # by value, fingerprints may differ although the kernels are equal
    assert [one.category for one in shown] == [RuntimeWarning] * by_name and len(warned) == by_name


def test_other_data_of_the_same_kernel_is_warned_of(work: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program replaced a function by another text of the same meaning."""
    workload = by_reference(work[0])
    monkeypatch.setattr(sys.modules[work[0].stem], "amount", lambda: 2 * 5.0)
    said = "the workers loaded another version of the workload than this program has"
    log = work[0].with_name("run.log")
    with pytest.warns(RuntimeWarning, match=said):
        result = tuned(workload, once(RunStarted, lambda: log.write_text("")))
    is_the_first_version(result)
    assert [warning for warning in result.warnings if said in warning]

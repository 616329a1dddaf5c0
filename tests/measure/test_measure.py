"""`atune measure`: the statuses of candidates that nobody trusts, their isolation, and the command's output."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from judged_programs import program

import atune
from atune.errors import UsageError
from atune.frontends.cli.main import main
from atune.frontends.measure import STATUSES, MeasureResult
from atune.model.artifact import FailureKind
from atune.stages import foreign

TASK = f"{Path(__file__).parent / 'tasks.py'}:DOUBLE"
HERE = {"target": "c", "compile": atune.CompileSettings(compile_timeout_s=20)}
pytestmark = pytest.mark.anyio

ASSERTS = "T.device_assert(A[i] > -1e9); B[i] = A[i] * 2.0"
PROGRAMS = {
    "good": program(),
    "good again": program(),
    "as the default": program().replace("block=64", "block=32"),
    "wrong": program("B[i] = A[i] * 3.0"),
    "half": program("if j < 7: B[i] = A[i] * 2.0"),
    "input": program("A[i] = A[i] * 2.0; B[i] = A[i]"),
    "syntax": "def double(n:\n",
    "raises": program(before="raise ValueError('no kernel')"),
    "ends": program(before="import os; os._exit(0)"),
    "crashes": program(before="import ctypes; ctypes.string_at(0)"),
    "extern": program('B[i] = T.call_extern("float32", "sinf", A[i])'),
    "packed": program('T.call_packed("atune.anything", i)'),
    "text": program('T.import_source("int f() { return 1; }"); B[i] = A[i] * 2.0'),
    "dtype": program(of="float64"),
    "assert": program(ASSERTS),
    "empty": "x = 1\n",
    "others": program().replace("def double", "def triple") + "\ndef more(n): pass\n",
    "more": program().replace('"float32")):', '"float32"), C: T.Tensor((n,), "float32")):'),
    "at once": "import os\n\nraise RuntimeError('boom')\n",
    "hog": program(before="x = bytearray(64 << 30)"),
    "writes": program(before="open('WHERE/left', 'w')"),
    "connects": program(before="import socket; socket.create_connection(('127.0.0.1', 9), 1)"),
    "kills": program(before="import os; os.kill(os.getppid() or -1, 9)"),
}
"""Programs by name."""
EXPECTED = {
    "good": "passed", "good again": "passed", "as the default": "passed", "wrong": "wrong", "half": "wrong",
    "input": "wrong", "syntax": "compile_error", "raises": "compile_error", "ends": "crashed", "crashes": "crashed",
    "extern": "refused", "packed": "refused", "text": "refused", "dtype": "refused",
    "assert": "refused", "empty": "compile_error", "others": "compile_error", "more": "refused",
    "at once": "compile_error", "hog": "out_of_memory",
}  # fmt: skip
REASONS = {
    "syntax": "SyntaxError: '(' was never closed (candidate.py, line 1)",
    "raises": "ValueError: no kernel, line 5 of the program",
    "ends": "elaborating failed: exited with status 0",
    "crashes": "elaborating failed: killed by SIGSEGV",
    "empty": "LookupError: the program has no kernel function 'double'",
    "others": "LookupError: the program has no kernel function 'double', but triple, more",
    "more": "it has 3 parameters, but the task's kernel has 2",
    "at once": "RuntimeError: boom, line 3 of the program",
    "hog": "MemoryError, line 5 of the program",
}
"""The whole reason of a program's failure."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MeasureResult]:
    """Judge all programs."""
    folder = tmp_path_factory.mktemp("measure")
    texts = [text.replace("WHERE", str(folder)) for text in PROGRAMS.values()]
    results = anyio.run(partial(atune.measure_many, texts, TASK, journal=folder / "journals", **HERE))
    assert not (folder / "left").exists() or not isolated(results[0])
    return dict(zip(PROGRAMS, results, strict=True))


def isolated(result: MeasureResult) -> bool:
    return result.problems[0].python == "isolated"


@pytest.mark.parametrize("name", EXPECTED)
def test_whatever_a_candidate_does_is_a_status(judged: dict[str, MeasureResult], name: str) -> None:
    result = judged[name]
    assert result.status == EXPECTED[name], result
    assert bool(result.reason) == (result.status != "passed")
    assert result.problems[0].native.startswith("not isolated")


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_about_the_program(judged: dict[str, MeasureResult], name: str) -> None:
    assert judged[name].reason == REASONS[name]


def test_a_refused_text_is_named_with_its_operator(judged: dict[str, MeasureResult]) -> None:
    assert "in tl.device_assert" in judged["assert"].reason
    assert " in tirx." not in judged["text"].reason


@pytest.mark.parametrize("name", ["good", "as the default"])
def test_a_candidate_that_passes_is_timed_beside_default_and_reference_on_new_inputs(
    judged: dict[str, MeasureResult], name: str
) -> None:
    """A candidate with the code of the default gets the default's figures from the final."""
    [one] = judged[name].problems
    assert one.fresh_inputs
    assert one.checked_calls >= 20
    for interval in (one.latency_ms, one.baseline_ms, one.reference_ms, one.speedup, one.reference_speedup):
        assert interval is not None
        assert 0 < interval[0] <= interval[1] <= interval[2]
    assert judged[name].speedup == pytest.approx(one.speedup)
    assert judged["as the default"].speedup == (1, 1, 1)


def test_equal_texts_are_measured_once(judged: dict[str, MeasureResult]) -> None:
    assert judged["good"].problems[0].journal == judged["good again"].problems[0].journal


@pytest.mark.parametrize("name", ["writes", "connects", "kills"])
def test_a_candidates_python_reaches_no_file_network_or_process(judged: dict[str, MeasureResult], name: str) -> None:
    if not isolated(judged[name]):
        pytest.skip(judged[name].problems[0].python)
    assert judged[name].status == "compile_error"  # Python's own error


def test_a_missed_deadline_is_named_by_the_setting_and_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hangs := tmp_path / "hangs.py").write_text(program(before="while True: pass"))
    (endless := tmp_path / "endless.py").write_text(program("for _ in T.serial(1 << 30): B[i] = B[i] * 0.5 + A[i]"))
    limits = ["--compile-timeout", "4", "--timeout", "3"]
    assert main(["measure", str(hangs), str(endless), "--task", TASK, "--target", "c", *limits, "--json"]) == 1
    found = {(each["status"], each["reason"]) for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found == {
        ("timeout", "elaborating ran past compile_timeout_s=4 (--compile-timeout)"),
        ("timeout", "ran past benchmark_timeout_s=3 (--timeout) and was killed"),
    }


async def test_a_candidate_is_judged_on_every_problem_until_it_fails_one() -> None:
    text = program(before="assert n < 4096")
    results = await atune.measure_many([program(), text], TASK, problems=[{"n": 512}, {"n": 4096}], target="c")
    assert [(each.status, len(each.problems)) for each in results] == [("passed", 2), ("compile_error", 2)]
    speedups = [one.speedup for one in results[0].problems]
    assert results[0].speedup is not None
    assert results[0].speedup[1] == pytest.approx((speedups[0][1] * speedups[1][1]) ** 0.5)  # type: ignore[index]


async def test_what_the_judge_allows_by_name_is_measured() -> None:
    text = program('B[i] = T.call_extern("float32", "fabsf", A[i]) * 2.0')
    result = await atune.measure(text, TASK, allow=["fabsf"], **HERE)
    assert result.status == "wrong"


async def test_each_result_is_told_as_soon_as_it_is_known(tmp_path: Path) -> None:
    told = list[tuple[str, int]]()
    texts = [program(), program("B[i] = A[i] * 3.0"), program()]

    def tell(result: MeasureResult) -> None:
        told.append((result.status, len([*tmp_path.glob("*.jsonl")])))

    results = await atune.measure_many(texts, TASK, on_result=tell, journal=tmp_path, **HERE)
    journals = [Path(each.problems[0].journal).name for each in results]
    assert journals == ["0000.jsonl", "0001.jsonl", "0000.jsonl"]
    assert told == [("passed", 1), ("wrong", 2), ("passed", 2)]


async def test_a_string_is_a_program_and_only_a_path_names_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "good.py").write_text(program())
    os.mkfifo(pipe := tmp_path / "pipe")
    named = Path(f"{file}:double")
    texts = [file, named, str(file), str(pipe), "def double(n): 1/0", "", "I am sorry, I cannot.", "\ud800\n"]
    results = await atune.measure_many(texts, TASK, **HERE)
    assert [each.status for each in results] == ["passed"] * 2 + ["compile_error"] * 6
    assert [each.candidate for each in results] == [str(file), str(named), *["<text>"] * 6]
    for path in (pipe, tmp_path, Path("/dev/zero"), tmp_path / "gone.py"):
        with pytest.raises(UsageError, match=f"candidate {path}: "):
            await atune.measure(path, TASK, **HERE)


async def test_a_latency_that_the_device_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.frontends.measure.fastest_ms", lambda *_: 1e6)
    result = await atune.measure(program(), TASK, **HERE)
    assert (result.status, result.latency_ms) == ("refused", None)
    assert "peaks" in result.reason


@pytest.mark.parametrize(("task", "n"), [("UNJUDGED", 1024), ("DOUBLE", 0), ("ACCEPTED", 0)])
async def test_a_task_with_nothing_to_compare_is_the_callers_mistake(task: str, n: int) -> None:
    with pytest.raises(UsageError, match=f"has no reference and no check, or its outputs are empty for n={n}: give "):
        await atune.measure(program("B[i] = 7.0"), TASK.replace("DOUBLE", task), problems=[{"n": n}], target="c")


def test_a_tuning_with_empty_outputs_says_that_nothing_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", TASK, "--arg", "n=0", "--target", "c", "--quiet"]) == 0
    assert "outputs    not checked: the workload has no reference and no check, or its" in capsys.readouterr().out


WHOLE: list[dict[str, Any]] = [
    {"type": "ffi.String", "data": "n"},
    {"type": "None"},
    {"type": "ir.PrimType", "data": {"span": 1, "dtype": "int32"}},
    {"type": "tirx.Var", "data": {"span": 1, "dtype": "int32", "name": 0, "type_annotation": 2}},
    {"type": "ffi.Array", "data": [3, 3]},
]
"""A variable, and an array that holds it twice, in TVM's JSON."""


@pytest.mark.parametrize(
    ("place", "data"),
    [
        (3, {"span": 1, "dtype": "int32", "name": 99, "type_annotation": 2}),
        (3, {"span": 1, "dtype": "int32", "name": -1, "type_annotation": 2}),
        (3, {"span": 1, "dtype": "int32", "name": 2, "type_annotation": 2}),
        (3, {"span": 1, "dtype": "int32", "name": 1, "type_annotation": 2}),
        (3, {"span": 1, "dtype": "int32", "name": 0, "type_annotation": 0}),
        (3, {"span": 1, "dtype": "int32", "name": 0, "type_annotation": 2, "more": 1}),
        (3, {"span": 1, "dtype": "int32; f();", "name": 0, "type_annotation": 2}),
        (4, [3, 4]),
        (4, [True]),
        (0, "x; system()"),
        (0, "x\\"),
    ],
)
def test_a_graph_that_tvm_would_misread_or_print_as_code_is_refused(place: int, data: Any) -> None:
    """TVM's reader checks neither places nor types, so wrong ones would be read as memory."""
    foreign._check_graph([dict(node) for node in WHOLE], ())
    nodes = [dict(node) for node in WHOLE]
    nodes[place]["data"] = data
    with pytest.raises(foreign.Refused):
        foreign._check_graph(nodes, ())


@pytest.mark.parametrize(
    "kind", ["ir.GlobalVar", "ir.EnvFunc", "ir.IRModule", "target.Target", "ffi.Module", "relax.Call"]
)
def test_a_graph_with_a_node_that_is_no_part_of_a_kernel_is_refused(kind: str) -> None:
    with pytest.raises(foreign.Refused, match=kind):
        foreign._check_graph([{"type": kind, "data": {}}], ())


def test_each_kind_of_failure_has_a_status() -> None:
    kinds = {*FailureKind.__args__}  # type: ignore[attr-defined]
    assert kinds >= STATUSES.keys()
    assert kinds - STATUSES.keys() == {"crash", "load", "launch", "fault", "worker_lost", "suspect"}


def test_the_command_prints_an_object_for_each_candidate_and_exits_with_0_only_if_all_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "wrong"):
        (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "good.py:double", "--task", TASK, "--target", "c", "--journal", "new/folder"]) == 0
    assert Path("new/folder/0000.jsonl").exists()
    assert "good.py:double" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("good.py\nwrong.py\n"))
    assert main(["measure", "-", "--task", TASK, "--target", "c", "--json"]) == 1
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["candidate"], each["status"]) for each in objects] == [("good.py", "passed"), ("wrong.py", "wrong")]
    assert [msgspec.convert(each, MeasureResult).problems[0].problem for each in objects] == [{"n": 1024}] * 2
    (tmp_path / "small.py").write_text(program(before="assert n < 4096"))
    (tmp_path / "sizes.json").write_text('[{"n": 512}, {"n": 4096}]')
    assert main(["measure", "small.py", "--task", TASK, "--target", "c", "--problems", "sizes.json"]) == 1
    assert "small.py   compile_error for n=4096: " in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["measure", "-", "--task", TASK, "--json"]) == 2
    assert "no candidate" in json.loads(capsys.readouterr().out)["error"]["message"]
    for journal in ("good.py", "good.py/folder", "/proc/none/folder"):
        assert main(["measure", "good.py", "--task", TASK, "--target", "c", "--journal", journal]) == 2
        assert f"cannot create the folder {journal} for the journals: " in (printed := capsys.readouterr().err)
        assert printed.endswith("Give another folder (--journal, journal=)\n")
    assert main(["measure", "gone.py", "--task", TASK, "--target", "c", "--json"]) == 2
    assert "gone.py" in json.loads(capsys.readouterr().out)["error"]["message"]

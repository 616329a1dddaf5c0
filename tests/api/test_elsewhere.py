"""Exceptions and results in other processes, and on terminals that are not UTF-8; numbers of numpy at each door."""

from __future__ import annotations

import copy
import importlib
import math
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import value_kernels as kernels

import atune
from atune import errors
from atune.compat.tilelang.environment import TuningFailed
from atune.errors import AtuneError
from atune.frontends.blocking import in_time
from atune.model.candidate import distance
from atune.model.folders import cache_folder_at
from atune.model.settings import Budget

WORKLOADS = Path(__file__).parents[1] / "workloads.py"
WAYS: list[Callable[[Any], Any]] = [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy]


def raised(kind: type[AtuneError]) -> AtuneError:
    if issubclass(kind, errors.NoWinner | errors.CompileFailed):
        return kind("several\nlines", [1, 2])  # type: ignore[call-arg]
    error = kind("several\nlines", "its detail") if issubclass(kind, errors.WorkerError) else kind("several\nlines")
    error.more = {"field": 1}  # type: ignore[attr-defined]
    return error


def branches(root: type[AtuneError]) -> list[type[AtuneError]]:
    return [root, *(found for kind in root.__subclasses__() for found in branches(kind))]


@pytest.mark.parametrize("kind", sorted({*branches(AtuneError), TuningFailed}, key=lambda kind: kind.__name__))
def test_an_exception_survives_pickling_and_copying(kind: type[AtuneError]) -> None:
    error = raised(kind)
    for way in WAYS:
        again = way(error)
        assert (type(again), str(again), again.args, vars(again)) == (kind, str(error), error.args, vars(error))


def test_what_a_run_raises_survives_with_its_records() -> None:
    with pytest.raises(atune.NoWinner) as caught:
        atune.run(atune.Workload(lambda N, block=1: 1 / 0, [{"block": 1}], arguments={"N": 1}), target="c")
    for way in WAYS:
        again = way(caught.value)
        assert again.result.records == caught.value.result.records and str(again) == str(caught.value)


ENCODINGS = "ascii", "latin-1", "utf-8"
PRINTS = f"""
import sys, atune, value_kernels as kernels
problems = [{{"N": n, "order": "…"}} for n in (64, 128)]
found = atune.run_set(kernels.ARGUMENT, problems, target="c", progress=False)
for encoding in {ENCODINGS}:
    sys.stdout.reconfigure(encoding=encoding)
    print(found)
    print(found[0].result)
    print(atune.tunings())
    print(end="\\0")
"""


def test_a_result_prints_in_any_encoding() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    for encoding, printed in zip(ENCODINGS, done.stdout.split(b"\0")[:-1], strict=True):
        text = printed.decode(encoding)
        assert text.isascii() is (encoding == "ascii")
        assert ("\\xd7 default" if encoding == "ascii" else "× default") in text
        assert ("order='…'" if encoding == "utf-8" else "order='\\u2026'") in text


def test_commands_work_in_the_locale_of_a_bare_container(tmp_path: Path) -> None:
    """With runs whose paths it cannot decode; one that is asked for is named."""
    work = tmp_path / "wörk.py"
    work.write_text(
        f"import sys; sys.path.insert(0, {str(Path(kernels.__file__).parent)!r})\nfrom value_kernels import *\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def atune_of(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "atune", *command]
        return subprocess.run(line, capture_output=True, encoding="utf-8", env={**environment, **more}, cwd=tmp_path)

    for journal in (["--journal", "jöurnal.jsonl"], []):
        assert atune_of("tune", f"{work}:BACKWARD", "--target", "c", *journal).returncode == 0
    bare = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "by_order" in atune_of("runs", **bare).stdout
    assert "winner" in atune_of("replay", "latest", **bare).stdout
    wrong = atune_of("tune", f"{work}:BACKWARD", "--target", "c", **bare)
    assert wrong.returncode == 2 and "PYTHONUTF8=1" in wrong.stderr and "bug" not in wrong.stderr


def test_numbers_of_numpy_count_as_python_s(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    assert Budget.parse(np.int64(3)) == Budget(candidates=np.int32(3)) == Budget(candidates=3)
    assert atune.BenchmarkSettings(n_repeat=np.int64(4)) == atune.BenchmarkSettings(n_repeat=4)
    assert distance({"N": np.int64(64)}, {"N": 32}) == 1 and distance({"x": 0.0}, {"x": -0.0}) == 1
    found = atune.run_set(kernels.COMPUTED, [{"N": np.int64(64)}, {"N": 128}], target="c", budget=np.int64(1))
    for size in (64, np.int64(64), np.uint8(64)):
        assert found[{"N": size}].best_config == {"order": 1} and found.rule().pick({"N": size}) == 0
    assert found.rule().pick({"N": np.int16(96)}) == 0
    found.save_bundle(tmp_path / "bundle")
    bundle = atune.bundle.load(tmp_path / "bundle", on_miss="nearest")
    for size in (64, np.int64(64)):
        assert bundle(torch.ones(64), N=size)[0] == 3


def test_a_bundle_tells_zeros_apart(tmp_path: Path) -> None:
    work = atune.Workload(kernels.by_zero, [{}], arguments={"N": 64, "value": 0.0}, out_idx=-1)
    found = atune.run_set(work, [{"value": 0.0}, {"value": -0.0}], target="c")
    found.save_bundle(tmp_path / "bundle")
    bundle = atune.bundle.load(tmp_path / "bundle")
    for value in (0.0, -0.0, 0.0):
        assert math.copysign(1, bundle(torch.ones(64), value=value)[0].item()) == math.copysign(1, value)


@pytest.mark.anyio
async def test_a_warning_that_is_an_error_comes_out_of_a_run_whose_journal_was_removed(tmp_path: Path) -> None:
    def unlink(event: atune.events.Event) -> None:
        if isinstance(event, atune.events.CandidateMeasured):
            for path in (tmp_path / "journals").rglob("*.jsonl"):
                path.unlink()

    with (
        warnings.catch_warnings(),
        cache_folder_at(tmp_path),
        pytest.raises(RuntimeWarning, match="was removed"),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        await atune.tune(f"{WORKLOADS}:SCALE", target="c", on_event=unlink)


def test_functions_of_a_space_are_asked_in_the_thread_that_imports(tmp_path: Path, monkeypatch: Any) -> None:
    """Another thread would wait for the import if a constraint imported the module that is being imported."""
    lines = ["import threading", "from atune.frontends.blocking import in_time", "def ask():"]
    lines += ["    import asked_while_imported", "    return threading.get_ident()", "THREAD = in_time(ask)"]
    (tmp_path / "asked_while_imported.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("asked_while_imported")
    assert threading.get_ident() == module.THREAD
    assert in_time(threading.get_ident) != threading.get_ident()

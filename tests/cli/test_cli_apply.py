"""`atune apply`: the winner's values in the kernel's default arguments, for the kernel that was tuned and no other."""

from __future__ import annotations

import importlib.util
import json
import linecache
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream, timing

from atune.frontends.cli import apply
from atune.frontends.cli.main import main
from atune.journal.events import CandidateMeasured, CandidateProposed, RunStarted
from atune.journal.writer import Journal
from atune.model.candidate import config_key
from atune.workload.kernel_defaults import KernelSite, Sought, locate
from atune.workload.pickling import FileRef, load
from atune.workload.workload import describe

ROOT = Path(__file__).parents[2]

KERNEL = """\
import functools

import atune


def kernel(N, *, block=16, stages: int = 1):  # tuned by hand
    \"\"\"Scale.\"\"\"
    return N * block * stages


WORKLOAD = atune.Workload(kernel, atune.Space(block=[16, 64], stages=[1, 2]), arguments={"N": 64})
LAMBDA = atune.Workload(lambda N, block=16, stages=1: N, {"block": [16, 64], "stages": [1, 2]}, arguments={"N": 64})
PARTIAL = atune.Workload(functools.partial(kernel, stages=1), {"block": [16]}, arguments={"N": 64})
NUMBER = 7
"""
WINNER = {"block": 64, "stages": 2}


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the file here, anew each time, and not in a worker."""

    async def located(sought: Sought) -> KernelSite:
        for name in [name for name in sys.modules if name.startswith("atune_workload_")]:
            monkeypatch.delitem(sys.modules, name)
        linecache.checkcache()
        return locate(sought)

    monkeypatch.setattr(apply, "locate_kernel", located)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tuned.py"
    path.write_text(KERNEL)
    return path


def journal_of(path: Path, config: Any = None, *, wins: bool = True, name: str = "WORKLOAD") -> str:
    """Write the journal of a run of the workload in `path` that `config` won."""
    for module in [module for module in sys.modules if module.startswith("atune_workload_")]:
        del sys.modules[module]
    spec = describe(load(FileRef(str(path), name)))
    config = WINNER if config is None else config
    stream = Stream(total=len(spec.configs))
    header = stream.events[0]
    assert isinstance(header, RunStarted)
    stream.events[0] = msgspec.structs.replace(
        header, workload=spec.name, fingerprint=spec.fingerprint, kernel=spec.kernel, arguments=spec.arguments
    )
    stream.add(CandidateProposed, index=0, key=config_key(config), config=config)
    if wins:
        stream.add(CandidateMeasured, index=0, device="cpu", timing=timing(1.0), checked=True)
    else:
        stream.build_failed(0)
    stream.finished()
    journal = path.with_suffix(".jsonl")
    journal.unlink(missing_ok=True)
    with Journal.create(journal) as written:
        for event in stream.events:
            written.append(event)
    return str(journal)


def refused(capsys: Any, *arguments: str) -> str:
    assert main(["apply", *arguments]) == 2
    return str(capsys.readouterr().err)


EXPECTED = KERNEL.replace("block=16, stages: int = 1):", "block=64, stages: int = 2):")


def test_the_diff_is_shown_and_write_makes_it(file: Path, capsys: Any) -> None:
    journal = journal_of(file)
    file.chmod(0o640)
    assert main(["apply", journal, "tuned.py:WORKLOAD"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- tuned.py\n+++ tuned.py\n@@ ") and "nothing was written: add --write to write it" in err
    assert "-def kernel(N, *, block=16, stages: int = 1):  # tuned by hand\n" in out
    assert "+def kernel(N, *, block=64, stages: int = 2):  # tuned by hand\n" in out
    assert file.read_text() == KERNEL
    assert main(["apply", journal, "tuned.py:WORKLOAD", "--write"]) == 0
    assert capsys.readouterr().out == out
    assert file.read_text() == EXPECTED and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(os.listdir(file.parent)) == ["tuned.jsonl", "tuned.py"]


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_patch_takes_the_diff(file: Path, capsys: Any) -> None:
    file.write_text(KERNEL.rstrip("\n"))
    assert main(["apply", journal_of(file), "tuned.py:WORKLOAD"]) == 0
    subprocess.run(["patch", "-p0"], input=capsys.readouterr().out, text=True, check=True, capture_output=True)
    assert file.read_text() == EXPECTED.rstrip("\n")


def test_applying_once_more_changes_nothing(file: Path, capsys: Any) -> None:
    """The defaults that it wrote do not make it another kernel."""
    journal = journal_of(file)
    assert main(["apply", journal, str(file), "--write"]) == 0
    capsys.readouterr()
    assert main(["apply", journal, str(file), "--write", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "already has these defaults" in err
    assert json.loads(out) == {"file": str(file), "changes": {}, "written": False, "left": {}, "forced": []}


def test_json_is_the_last_line(file: Path, capsys: Any) -> None:
    config = {**WINNER, "pass_configs": {"tl.fast": True}, "compile_flags": None}
    assert main(["apply", journal_of(file, config), f"{file}:kernel", "--write", "--json", "--force"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out.splitlines()[-1])
    assert printed["changes"] == {"block": {"from": "16", "to": "64"}, "stages": {"from": "1", "to": "2"}}
    assert printed["written"] and printed["left"] == {"pass_configs": {"tl.fast": True}}
    assert "pass it to @tilelang.jit: pass_configs={'tl.fast': True}" in err


@pytest.mark.parametrize("name", ["WORKLOAD", "kernel"])
def test_a_journal_of_another_kernel_is_refused_and_can_be_forced(file: Path, capsys: Any, name: str) -> None:
    journal = journal_of(file)
    file.write_text(KERNEL.replace("N * block", "N + block").replace('"N": 64', '"N": 128'))
    printed = refused(capsys, journal, f"{file}:{name}", "--write")
    assert "was tuned for another kernel than" in printed and "--force applies it anyway" in printed
    assert "the kernel's source, or what it uses, changed since it was tuned" in printed
    assert ("N was 64 and is 128" in printed) == (name == "WORKLOAD")
    assert "block=16" in file.read_text()
    assert main(["apply", journal, f"{file}:{name}", "--write", "--force"]) == 0
    assert "block=64" in file.read_text()


def test_a_journal_without_a_winner_is_refused(file: Path, capsys: Any) -> None:
    printed = refused(capsys, journal_of(file, wins=False), str(file), "--force")
    assert "has no winner (0 measured, 1 failed, 3 not tried): there is nothing to apply" in printed


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("LAMBDA", WINNER, "the kernel of LAMBDA is a lambda and has no default arguments: define it with def"),
        ("PARTIAL", {"block": 16}, "the kernel of PARTIAL is a partial"),
    ],
)
def test_kernels_that_are_no_def_are_refused(file: Path, capsys: Any, name: str, config: Any, why: str) -> None:
    assert why in refused(capsys, journal_of(file, config, name=name), f"{file}:{name}")


def test_what_is_no_kernel_is_refused(file: Path, capsys: Any) -> None:
    journal = journal_of(file)
    assert "tuned.py:NUMBER is an int: give a Workload or a kernel" in refused(capsys, journal, f"{file}:NUMBER")
    assert "has no 'NOTHING'; it has WORKLOAD, LAMBDA, PARTIAL" in refused(capsys, journal, f"{file}:NOTHING")


def test_a_kernel_of_another_file_is_refused_with_where_it_is(file: Path, capsys: Any, tmp_path: Path) -> None:
    uses = tmp_path / "uses.py"
    uses.write_text("from tuned import WORKLOAD\n")
    sys.modules.pop("tuned", None)
    journal = journal_of(uses)
    printed = refused(capsys, journal, "uses.py:WORKLOAD")
    assert f"defined elsewhere, in {file}, line 6: atune apply {journal} {file}:kernel" in printed
    assert main(["apply", journal, f"{file}:kernel"]) == 0
    sys.modules.pop("tuned", None)


def test_a_file_that_is_edited_meanwhile_stays_as_it_is(
    file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, found = journal_of(file), apply.locate_kernel

    async def edited(sought: Sought) -> KernelSite:
        site = await found(sought)
        file.write_text(f"{KERNEL}# more\n")
        return site

    monkeypatch.setattr(apply, "locate_kernel", edited)
    assert "changed during this command and was not written" in refused(capsys, journal, str(file), "--write")
    assert file.read_text() == f"{KERNEL}# more\n"


def test_the_encoding_and_a_link_stay(file: Path, capsys: Any, tmp_path: Path) -> None:
    text = f"# coding: latin-1\n# é\n{KERNEL}"
    file.write_bytes(text.encode("latin-1"))
    link = tmp_path / "link.py"
    link.symlink_to(file)
    assert main(["apply", journal_of(file), str(link), "--write"]) == 0
    assert link.is_symlink()
    assert file.read_bytes() == f"# coding: latin-1\n# é\n{EXPECTED}".encode("latin-1")


DECORATED = """\
import atune
import tilelang
import tilelang.language as T


@atune.autotune(space={"block": [16, 64]}, on_miss="default", default={"block": 32}, target="c")
@tilelang.jit(target="c", execution_backend="cython")
def scale(n: int, block: int = 16):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return main


WORKLOAD = atune.Workload(scale.kernel, atune.Space(block=[16, 64]), arguments={"n": 64})
JIT = scale.kernel
"""


@pytest.mark.parametrize("name", ["WORKLOAD", "JIT", "scale"])
def test_kernels_under_decorators(file: Path, capsys: Any, name: str) -> None:
    text = DECORATED.replace(' default={"block": 32},', "") if name == "scale" else DECORATED
    file.write_text(text)
    assert main(["apply", journal_of(file, {"block": 64}), f"{file}:{name}", "--write"]) == 0
    assert file.read_text() == text.replace("block: int = 16", "block: int = 64")
    spec = importlib.util.spec_from_file_location("applied", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name == "scale":
        assert module.scale.best_config(64) == {"block": 64}


def test_a_default_in_the_decorator_is_named(file: Path, capsys: Any) -> None:
    """The default configuration of a kernel that tunes itself is the decorator's, where that has one."""
    file.write_text(DECORATED)
    assert main(["apply", journal_of(file, {"block": 64}), f"{file}:scale", "--write"]) == 2
    assert "the default= in the decorator of scale overrides default arguments: remove it" in capsys.readouterr().err
    assert file.read_text() == DECORATED


def test_a_read_only_file_stays_as_it_is(file: Path, capsys: Any) -> None:
    """Also where the folder, or root's rights, would let it be replaced."""
    journal = journal_of(file)
    file.chmod(0o444)
    assert main(["apply", journal, str(file)]) == 0
    assert "is read-only and was not written: make it writable" in refused(capsys, journal, str(file), "--write")
    assert file.read_text() == KERNEL


def test_at_the_command_line_a_worker_loads_the_file(file: Path, tmp_path: Path) -> None:
    file.write_text(KERNEL.replace("import functools", "import functools\nimport os\nos.write(2, b'loaded')"))
    journal = journal_of(file)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "atune", "apply", journal, "tuned.py:WORKLOAD", "--write"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "+def kernel(N, *, block=64, stages: int = 2):" in done.stdout and "loaded" not in done.stderr
    assert "block=64" in file.read_text()

"""Workloads in packages: by file and by module, with imports of every form, in the workers and in messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atune.errors import WorkloadError
from atune.frontends.cli.main import main
from atune.workload.pickling import FileRef, parse_file_ref

ROOT = Path(__file__).resolve().parents[2]
KERNEL = """\
def scale(N: int, block: int = 256):
    import tilelang.language as T  # here, so that loading takes no seconds

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2.0

    return main
"""
WORKLOAD = """
import atune

W = atune.Workload(scale, {"block": [256, 1024]}, arguments={"N": 4096}, reference=lambda A: A * 2)
"""
FILES = {
    "pkg/__init__.py": "from .kern import scale" + WORKLOAD,
    "pkg/kern.py": KERNEL,
    "pkg/plain.py": "from pkg.kern import scale" + WORKLOAD,
    "pkg/beside.py": "from kern import scale" + WORKLOAD,
    "pkg/json.py": "raise ImportError('a module that has the name of one of Python')",
    "pkg/sub/__init__.py": "",
    "pkg/sub/work.py": "from ..kern import scale" + WORKLOAD,
    "pkg/sub/01-work.py": "from ..kern import scale" + WORKLOAD,
    "spread/kern.py": KERNEL,
    "spread/work.py": "from spread.kern import scale" + WORKLOAD,
}
LOADED = """
import logging  # as a worker has
import sys
from atune.workload.pickling import load, parse_file_ref
work = load(parse_file_ref(sys.argv[1]))
print(work.kernel.__module__, work.kernel.__code__.co_filename, work.reference.__module__)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, **environment: str) -> str:
    """Load a workload in a process without the working folder on its path, as a worker of the installed command."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-P", "-c", LOADED, text]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("pkg/sub/work.py:W", "pkg.sub.work"),
        ("pkg.sub.work:W", "pkg.sub.work"),
        ("pkg/__init__.py", "pkg"),
        ("pkg:W", "pkg"),
    ],
)
def test_a_workload_is_loaded_by_its_full_name(folder: Path, text: str, module: str) -> None:
    assert loaded(text) == f"pkg.kern {folder}/pkg/kern.py {module}"


@pytest.mark.parametrize("text", ["pkg/sub/01-work.py", "pkg/beside.py"])
def test_file_names_that_are_no_modules_and_imports_as_in_a_script(folder: Path, text: str) -> None:
    assert f"{folder}/pkg/kern.py pkg." in loaded(text)


def test_a_package_without_init_says_what_to_set(folder: Path) -> None:
    assert f"No module named 'spread'; it is in {folder}: set PYTHONPATH={folder}" in loaded("spread.work:W")
    where = f"{ROOT}{os.pathsep}{folder}"
    assert loaded("spread.work:W", PYTHONPATH=where).startswith(f"spread.kern {folder}/spread/kern.py ")
    (folder / "spread" / "sub").mkdir()
    (folder / "spread" / "sub" / "work.py").write_text("from absent_package import scale")
    assert loaded("spread/sub/work.py").count("PYTHONPATH") == 0


def test_a_file_whose_package_is_hidden_by_a_namesake_runs_alone(folder: Path) -> None:
    (folder / "logging").mkdir()
    (folder / "logging" / "__init__.py").touch()
    (folder / "logging" / "work.py").write_text(KERNEL + WORKLOAD)
    module, file, _ = loaded("logging/work.py").split()
    assert module.startswith("atune_workload_") and file == f"{folder}/logging/work.py"


def test_modules_are_found_without_importing_them(folder: Path) -> None:
    (folder / "pkg" / "loud.py").write_text("raise SystemExit('imported')")
    assert parse_file_ref("pkg.loud:W") == FileRef(f"{folder}/pkg/loud.py", "W")
    assert parse_file_ref("pkg.sub.work", "atune tune").typed == "atune tune pkg.sub.work"
    told = "there is no file 'pkg.nothing'; give FILE.py, or FILE.py:NAME or package.module:NAME"
    with pytest.raises(WorkloadError, match=told):
        parse_file_ref("pkg.nothing:W")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_every_command_takes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run by file is interrupted by its budget, and continued by the module's name; and the reverse."""
    for tuned, resumed in (("pkg/sub/work.py", "pkg.sub.work:W"), ("pkg.sub.work:W", "pkg/sub/work.py:W")):
        first = run(capsys, "tune", tuned, "--target", "c", "--budget", "1", "--journal", "run.jsonl", "--quiet")
        assert (first["measured"], first["remaining"]) == (1, 1)
        more = ("--budget", "2", "--quiet")
        assert run(capsys, "resume", "run.jsonl", "--workload", resumed, *more)["measured"] == 2
        assert run(capsys, "explain", "run.jsonl", "0", "--target", "c")["config"] == {"block": 256}
        (folder / "run.jsonl").unlink()
    assert run(capsys, "explain", "pkg.sub.work:W", "--target", "c")["config"] == {}
    assert run(capsys, "pick", "pkg.sub.work:W", "-n", "1")["candidates"] == 2
    assert run(capsys, "tune", "pkg.plain", "--dry-run")["candidates"] == 2
    found = run(capsys, "tune", "pkg.sub.work:W", "--arg", "N=1024,2048", "--target", "c", "--quiet")
    assert len(found["problems"]) == 2


IMPORTING = """
import atune
from pkg.sub.work import W

if __name__ == "__main__":
    own = atune.Workload(W.kernel, {"block": [256]}, arguments={"N": 4096})
    print(W.origin(), W.at({"N": 1024}).origin(), own.origin() or "none")
    atune.run(W, target="c", budget=1, journal="one.jsonl", progress=False)
    atune.run_set(W, [{"N": 1024}, {"N": 2048}], target="c", budget=1, journal="set", progress=False)
    atune.run(own, target="c", journal="own.jsonl", progress=False)
"""


def test_an_imported_workload_is_found_again_from_its_journal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal names module file and name; a workload of the script itself is asked for by its option."""
    (folder / "app.py").write_text(IMPORTING)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "app.py"], env=env, capture_output=True, text=True, timeout=120)
    place = f"{folder}/pkg/sub/work.py:W"
    assert done.stdout.split() == [place, place, "none"], done.stderr
    assert run(capsys, "explain", "one.jsonl", "0")["config"] == {"block": 256}
    assert run(capsys, "resume", "one.jsonl", "--budget", "2", "--quiet")["measured"] == 2
    assert run(capsys, "resume", "set", "--budget", "2", "--quiet")["problems"]
    assert run(capsys, "explain", "own.jsonl", "--workload", "pkg.sub.work:W")["config"] == {"block": 256}
    assert main(["explain", "pkg.sub.work:W", "--workload", "pkg.sub.work:W"]) == 2
    assert "--workload goes with a journal" in capsys.readouterr().err


ENDED = """
import dataclasses, os, signal, atune
from ..kern import scale

@dataclasses.dataclass
class Factor:
    value: int = 2

def reference(A, factor=Factor()):
    return A * factor.value

def end(event):
    type(event).__name__ == "CandidateMeasured" and os.kill(os.getpid(), signal.SIGINT)

W = atune.Workload(scale, {"block": [64, 128, 256]}, arguments={"N": 4096}, reference=reference)
if __name__ == "__main__":
    atune.run(W, target="c", on_event=end, progress=False)
"""


@pytest.mark.usefixtures("with_a_terminal")
def test_a_script_that_was_ended_is_resumed_without_a_question(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with relative imports. Classes of its own count the same, and loading it never tunes anew."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(folder / "cache"))
    file, env = folder / "pkg" / "sub" / "app.py", {**os.environ, "PYTHONPATH": str(ROOT)}
    file.write_text(ENDED)
    command = [sys.executable, "-m", "pkg.sub.app"]
    ended = subprocess.run(command, env=env, timeout=60, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert "decorated kernel again, or use atune resume" in ended.stderr
    file.write_text(ENDED.replace('if __name__ == "__main__"', "if True"))
    assert main(["resume", "latest"]) == 2
    assert f"{file}, line 17, tunes while a worker loads the file" in capsys.readouterr().err
    file.write_text(ENDED)
    assert run(capsys, "resume", "latest", "--quiet")["measured"] == 3


SETTINGS = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--name")
args = parser.parse_args()
"""
SCALED = KERNEL.replace("2.0", "args.scale").replace("def scale", "from settings import args\n\ndef scale")
LATE = """
def reference(A):
    from late import args  # the first import is in a worker
    return A * args.scale
"""
STARTED = """
import os, sys
sys.path[:0] = ["lib"]
import atune
from scaled import reference, scale

if __name__ == "__main__":
    os.makedirs("out/lib")
    open("out/lib/scaled.py", "w").write("raise ImportError('the program has another module of this name')")
    os.chdir("out")
    EXTRA
    W = atune.Workload(scale, {"block": [256, 1024]}, arguments={"N": 4096}, reference=reference)
    result = atune.run(W, target="c", progress=False)
    import torch
    print(result.measured, result.kernel(torch.ones(4096)).unique().tolist(), result.warnings)
"""


@pytest.fixture
def started(folder: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a program that imports modules from a relative folder, which read its arguments, and changes its folder."""
    (folder / "lib").mkdir()
    for name, text in {"settings": SETTINGS, "late": SETTINGS, "scaled": SCALED + LATE}.items():
        (folder / "lib" / f"{name}.py").write_text(text)

    def start(*words: str | bytes, extra: str = "") -> subprocess.CompletedProcess[bytes]:
        (folder / "app.py").write_text(STARTED.replace("EXTRA", extra))
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "app.py", *words], env=env, capture_output=True, timeout=120)

    return start


def test_workers_import_with_the_arguments_and_from_the_folders_of_the_program(
    started: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    """Also if an argument is not UTF-8, and if the program has a server that was started before."""
    done = started("--scale", "3", "--name", b"\xff", extra="atune.warm()")
    assert done.stdout == b"2 [3.0] ()\n", done.stderr


@pytest.mark.parametrize(
    ("extra", "told", "file"),
    [
        ("sys.argv.append('--other')", "SystemExit: 2; it wrote: usage: app.py .* arguments: --other", "settings"),
        ("os.remove('../lib/settings.py')", "ModuleNotFoundError: No module named 'settings'", "scaled"),
        ("open('../lib/settings.py', 'w').write('import sys\\n{}[1]')", "KeyError: 1", "settings"),
        ("open('../lib/settings.py', 'w').write('open(\"gone\")')", ".*No such file or directory: 'gone'", "settings"),
        ("open('../lib/settings.py', 'w').write('raise MemoryError')", "MemoryError", "settings"),
    ],
)
def test_an_imported_module_that_workers_cannot_load_is_named(
    started: Callable[..., subprocess.CompletedProcess[bytes]], folder: Path, extra: str, told: str, file: str
) -> None:
    *_, last = started(extra=extra).stderr.decode().partition("atune.errors.")
    assert re.match(f"WorkloadError: the workload cannot be loaded in a worker: {told}", last)
    assert f'\n  File "{folder}/lib/{file}.py", line ' in last


def test_a_file_is_loaded_without_the_commands_arguments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither when it runs, nor when its functions import more."""
    for name, text in {"settings": SETTINGS, "late": SETTINGS, "scaled": SCALED + LATE + WORKLOAD}.items():
        (folder / f"{name}.py").write_text(text.replace("lambda A: A * 2", "reference"))
    seen = "import sys\nassert sys.argv == [__file__]\n"
    (folder / "scaled.py").write_text(seen + (folder / "scaled.py").read_text())
    assert run(capsys, "tune", "scaled.py", "--target", "c", "--quiet")["measured"] == 2

"""What stands in README and docs can be pasted: each command block runs as it stands, or is at least a right call."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from pages import FENCED, PAGES, ROOT, write_files

from atune.frontends.cli.main import make_parser

BLOCK = re.compile(r"^```(sh|bash|shell|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
"""Commands, and what they print where a page shows it right below."""
NOT_RUN = {
    "pip": "installs into an environment: release/package.py and .ci/run make new ones for that",
    "make": "sets up an environment, and runs all of this",
    "ray": "starts what outlives the test: tests/cluster has Ray",
    "atune tune gemm.py --cluster auto": "needs a Ray cluster",
    "atune tune examples/gemm.py --budget": "needs a GPU",
    "atune tune examples/layout_broadcast.py": "needs a GPU",
    "python bench/first.py": "needs a GPU for minutes: tests/benches runs it",
    "python examples/service.py": "serves until it is stopped: tests/test_service.py runs it",
    "atune compare": "its status depends on what was measured",
    "python -c": "its status depends on what was measured",
}
"""Beginnings of commands that are read and not run, and why. The other commands of their blocks run."""
STATUS = {"atune tune broken.py --quiet\n": 1}
"""Blocks that are there to show a failure, and their exit status."""
GEMM = """\
import tilelang.language as T

import atune


def matmul(M: int, N: int, block_M: int = 1, block_N: int = 64):
    @T.prim_func
    def main(A: T.Tensor((M, 2), "float32"), B: T.Tensor((2, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=64) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] = (
                    A[by * block_M + i, 0] * B[0, bx * block_N + j] + A[by * block_M + i, 1] * B[1, bx * block_N + j]
                )

    return main


WORKLOAD = atune.Workload(
    matmul, {"block_N": [64, 256]}, arguments={"M": 16, "N": 1024}, reference=lambda A, B: A @ B
)
"""
BROKEN = """\
import tilelang.language as T

import atune


def copy(N: int, block: int = 16):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + q] * 2.0

    return main


WORKLOAD = atune.Workload(copy, {"block": [16, 32, 64, 128]}, arguments={"N": 1024})
"""
PROBLEMS = '{"M": 4, "N": 512}\n{"M": 8, "N": 256}\n'
JOURNALS = ("run.jsonl", "other.jsonl", "good.jsonl")
RECORD = """\
set -e
PATH=/none
mkdir() { /bin/mkdir "$@"; }
command_not_found_handle() { printf '%s\\x1f' "$@" >&3; printf '\\x1e' >&3; }
. "$1"
"""
"""Runs a block and none of its commands. Writes what the shell would run: words, as comments and quotes leave them."""
STAND_IN = """\
#!/bin/bash
said=$(printf '%s\\x1f' {name} "$@")
while read -r one; do [[ $said == "$one"* ]] && exit 0; done < {not_run}
exec {real} "$@"
"""


class Block(NamedTuple):
    """A block of commands on a page, or what stands for one elsewhere."""

    where: str
    text: str
    shown: str | None = None

    @property
    def page(self) -> str:
        return self.where.partition(":")[0]

    @property
    def runs(self) -> bool:
        """Whether one of its lines runs."""
        return not all(line.startswith(tuple(NOT_RUN)) for line in self.text.splitlines())


def blocks() -> Iterator[Block]:
    """Yield the blocks of commands, page by page."""
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(f"{page.relative_to(ROOT)}:{line}", found[2], found[3])


def of_help() -> Iterator[Block]:
    """Yield the examples at the end of each command's help, as one block each."""
    parser = make_parser()
    [commands] = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for name, chosen in {"": parser, **commands}.items():
        if lines := re.findall(r"^  (atune .*)$", chosen.epilog or "", re.MULTILINE):
            yield Block(f"atune {name} --help", "\n".join(lines) + "\n")


BLOCKS = list(blocks())


def commands(block: Block, folder: Path) -> list[list[str]]:
    """Return the words of each command in `block`, as bash reads them. Fails where it reads something else."""
    file, record = folder / "block.sh", folder / "block.txt"
    file.write_text(block.text)
    done = subprocess.run(
        ["bash", "-c", f"exec 3> {record}; {RECORD}", "bash", str(file)],
        cwd=folder, env={"HOME": str(folder)}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, f"{block.where}: {done.stderr}"
    return [said.split("\x1f")[:-1] for said in record.read_text().split("\x1e")[:-1]]


def of_atune(words: Sequence[str]) -> str:
    """Return why ``atune`` refuses these arguments; empty if it takes them."""
    try:
        make_parser().parse_args(words)
    except SystemExit as end:
        return "" if end.code == 0 else f"exit {end.code}"
    except Exception as error:
        return str(error)
    return ""


def of_pip(words: Sequence[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    named = (project["project"]["dependencies"], *extras.values(), *groups.values())
    known = {one.name: one.specifier for one in map(Requirement, chain(*named))}
    for given in (Requirement(word) for word in words[1:] if word not in (".", "--no-deps")):
        if given.name not in known:
            return f"{given} is no package that atune uses"
        if given.specifier and given.specifier != known[given.name]:
            return f"{given} has another range than pyproject.toml"
    return ""


def of_python(words: Sequence[str]) -> str:
    first, *rest = words
    if first == "-c":
        compile(rest[0], "-c", "exec")
        return "" if len(rest) == 1 else f"unexpected {rest[1:]}"
    if not (ROOT / first).is_file() and first not in {
        name for page in PAGES for name, _ in FENCED.findall(page.read_text())
    }:
        return f"there is no file {first}"
    if not first.startswith("bench/"):
        return f"unexpected {rest}" if rest else ""
    importlib.import_module(Path(first).stem).parser().parse_args(rest)
    return ""


def of_make(words: Sequence[str]) -> str:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return "" if set(words) <= set(targets) else f"{words} are no targets"


def of_ray(words: Sequence[str]) -> str:
    return "" if re.fullmatch(r"start --head|start --address [\d.]+:6379", " ".join(words)) else "not known"


PROGRAMS: dict[str, Callable[[Sequence[str]], str]] = {
    "atune": of_atune, "pip": of_pip, "python": of_python, "make": of_make, "ray": of_ray,
}  # fmt: skip
"""Each takes a program's arguments, and returns what is wrong with them."""
PLACEHOLDER = re.compile(r"…|\.\.\.|[<>]|\b(FILE|DIR|FOLDER|JOURNAL|NAME|ADDRESS|HEAD|HOST|VERSION)\b")


def mistakes(block: Block, folder: Path) -> list[str]:
    """Return what is wrong with the commands of `block`: a reader cannot paste it as it stands."""
    found = []
    for program, *words in commands(block, folder):
        why = PROGRAMS[program](words) if program in PROGRAMS else "no program that a reader is told to run"
        left = (
            []
            if words[0] == "-c"
            else [word for word in words if PLACEHOLDER.search(re.sub("[<>]=?[\\d.]+", "", word))]
        )
        found += [f"{block.where}: {shlex.join([program, *words])}: {said}" for said in (why, *left) if said]
    return found


@pytest.mark.parametrize("block", [*BLOCKS, *of_help()], ids=lambda block: block.where)
def test_each_command_is_a_right_call(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("latest", "tuned.jsonl", "old.jsonl", *JOURNALS):  # reading a command asks whether they are there
        Path(name).touch()
    assert commands(block, tmp_path) and mistakes(block, tmp_path) == []


def test_no_hint_names_the_distribution_of_somebody_else() -> None:
    """«atune» on the package index is another project, so what is missing is named itself."""
    sources = [*PAGES, *(path for top in ("atune", "examples", "tests") for path in (ROOT / top).rglob("*.py"))]
    hints = re.compile(r"pip install (?:-\S+ )*'?atune\b|\batune" + r"\[\w")
    found = [path.name for path in sources if path.name != Path(__file__).name and hints.search(path.read_text())]
    assert found == ["README.md"]  # which says so
    assert "`pip install atune` gets another project" in (ROOT / "README.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == "tilelang-atune"


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a reader whose home is `folder`, on a machine without a GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATUNE_", "TILELANG_", "PYTEST"))}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **kept, "PYTHONPATH": path, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / ".cache"),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120",
    }  # fmt: skip


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `text` as a reader does who pastes it, but ends at the first failure. Both outputs come as one."""
    return subprocess.run(
        ["bash", "-e", "-c", text], cwd=folder, env=environment(folder), text=True, timeout=150,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages' files, files of a reader's own, and a run of one of them. Its home is itself."""
    folder = tmp_path_factory.mktemp("desk")
    write_files(folder)
    for name in ("examples", "bench"):
        (folder / name).symlink_to(ROOT / name)
    texts = {"broken.py": BROKEN, "misses.jsonl": PROBLEMS}
    for name, text in {**dict.fromkeys(("gemm.py", "kernels.py", "candidate.py"), GEMM), **texts}.items():
        (folder / name).write_text(text)
    (folder / "shapes.json").write_text(f"[{','.join(PROBLEMS.splitlines())}]")
    (folder / "not_run").write_text("".join("\x1f".join(one.split()) + "\n" for one in NOT_RUN))
    (folder / "bin").mkdir()
    real = {"atune": f"{sys.executable} -m atune", "python": sys.executable, "uvicorn": "false"}
    for name in PROGRAMS:
        file = folder / "bin" / name
        file.write_text(STAND_IN.format(name=name, not_run=folder / "not_run", real=real.get(name, "false")))
        file.chmod(0o755)
    done = run("atune tune gemm.py --quiet", folder)
    assert done.returncode == 0, done.stdout
    [journal] = (folder / ".cache" / "atune" / "journals").glob("*.jsonl")
    for name in JOURNALS:
        shutil.copy(journal, folder / name)
    return folder


def shape(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run: numbers, folders, who wins by how much, and
    lines on measurements that scatter, tie or depend on an axis, and on the progress of runs that take their time.
    """
    output = re.sub(r"^atune: \[\d+ s[^]]*\] .*\n", "", output, flags=re.MULTILINE)
    output = re.sub(r"[\w./-]*/", "", output)
    output = re.sub(r"\d[\d.,-]*", "N", output)
    output = re.sub(r"^(latency +N ms, ).*(?:\n {11}.*)*\bdefault\b.*", r"\1…", output, flags=re.MULTILINE)
    output = re.sub(r"^(?:noise|ties|axes) .*\n(?: {11}.*\n)*", "", output, flags=re.MULTILINE)
    return output.splitlines()


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.runs}))
def test_the_blocks_of_a_page_run(page: str, desk: Path, tmp_path: Path) -> None:
    """One after the other in one folder, as a reader runs them, also where this page comes first."""
    folder = tmp_path / "desk"
    shutil.copytree(desk, folder, symlinks=True)
    if any("atune bundle latest" in block.text for block in BLOCKS if block.page == page):
        run("atune tune gemm.py --quiet", folder)  # its library lies in this folder's store
    for block in BLOCKS:
        if block.page != page:
            continue
        if "sm_90a" in block.text and shutil.which("nvcc") is None:
            continue  # the block is still read; nothing else compiles for a GPU
        done = run(block.text, folder)
        assert done.returncode == STATUS.get(block.text, 0), f"{block.where}: {done.stdout}"
        if block.shown is not None:
            assert shape(done.stdout) == shape(block.shown), block.where

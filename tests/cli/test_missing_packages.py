"""Where a package that atune requires is not installed, one line says what to install; no traceback, no «bug»."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fork_servers import fork_server
from programs import python

import atune
from atune.errors import UsageError
from atune.model import requirements
from atune.model.requirements import HEAVY, REQUIRES, not_installed

ROOT = Path(atune.__file__).parents[1]
JOURNAL = ROOT / "bench" / "results" / "layouts" / "uneven.jsonl"
GEMM = str(ROOT / "examples" / "gemm_cpu.py")
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # importing one of these raises ModuleNotFoundError
from atune.frontends.cli.main import main
sys.exit(main())
"""


def run(without: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a Python that lacks the modules named in `without`."""
    return python("-c", WITHOUT, without, *command, folder=ROOT)


def test_all_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"torch", "tilelang", "numpy", "structlog", "pynvml"}
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name in absent else object())
    small = "pip install 'structlog>=25.1,<27' 'nvidia-ml-py>=12.0,<14'"
    assert not_installed("structlog.dev").endswith(f"in this Python: structlog, nvidia-ml-py. To install: {small}")
    assert all(f"'{name}{REQUIRES[name]}'" in not_installed("torch") for name in {*HEAVY, "structlog", "nvidia-ml-py"})
    assert not_installed("msgspec") == not_installed("pandas") == not_installed(None) == ""


@pytest.mark.parametrize("command", [("replay", str(JOURNAL)), ("tune", "x.py"), ("--help",)])
def test_a_missing_package_is_no_bug(command: tuple[str, ...]) -> None:
    done = run("msgspec", *command)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"atune: error: {' '.join(done.stderr.split()[2:])}\n"  # one line
    assert "pip install 'msgspec>=0.20,<0.23'" in done.stderr and "bug" not in done.stderr


def test_what_only_one_thing_needs_is_named_itself() -> None:
    done = run("ray", "tune", GEMM, "--cluster", "auto")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"needs ray, which {sys.executable} cannot import" in done.stderr
    assert done.stderr.endswith(": pip install ray\n")


@pytest.mark.parametrize("command", ["replay J", "report J -o -", "export J --to json", "show J", "merge J"])
def test_journals_are_read_without_what_tunes(command: str) -> None:
    done = run("torch,tilelang,cloudpickle,structlog,pynvml", *command.replace("J", str(JOURNAL)).split())
    assert done.returncode == 0 and "compiler" in done.stdout, done.stderr


@pytest.mark.anyio
async def test_tuning_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fork server finds it out; the name stands for torch, which the tests' environment has."""
    monkeypatch.setitem(REQUIRES, "torch_that_is_absent", ">=2")
    async with fork_server(str(tmp_path), ["torch_that_is_absent"]) as server:
        with pytest.raises(UsageError, match=r"pip install .*'torch_that_is_absent>=2'"):
            await server.spawn("test")

"""examples/compat: only an import line differs, each compiles for sm_90a, and on a GPU each runs; bench/compat.py."""

from __future__ import annotations

import difflib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import compat as bench
import pytest
import tilelang
from processes import environment

import atune

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "compat"
pytestmark = pytest.mark.timeout(180)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"compat_example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def configs_of(module: ModuleType) -> tuple[Any, list[dict[str, Any]]]:
    [tuned] = [value for value in vars(module).values() if hasattr(value, "jit_impl")]
    configs = tuned.configs(*module.arguments()) if callable(tuned.configs) else tuned.configs
    return tuned, list(configs)


@pytest.mark.parametrize("name", bench.EXAMPLES)
def test_one_line_makes_it_tilelangs(name: str, tmp_path: Path) -> None:
    ours = (EXAMPLES / f"{name}.py").read_text()
    theirs = bench.for_tilelang(ours)
    changed = [line for line in difflib.ndiff(ours.splitlines(), theirs.splitlines()) if line[:2] in ("- ", "+ ")]
    assert len(changed) == 2 and changed[0].startswith("- from atune.compat.tilelang import ")
    assert changed[1].startswith("+ from tilelang.autotuner import ")
    file = tmp_path / f"{name}_theirs.py"
    file.write_text(theirs)
    tuned, configs = configs_of(loaded(file))
    assert type(tuned) is tilelang.autotuner.tuner.AutoTuneImpl
    tuned, mine = configs_of(loaded(EXAMPLES / f"{name}.py"))
    assert type(tuned).__module__ == "atune.compat.tilelang.autotuner" and mine == configs and 6 <= len(configs) <= 16


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", bench.EXAMPLES)
def test_examples_compile(name: str) -> None:
    module = loaded(EXAMPLES / f"{name}.py")
    tuned, configs = configs_of(module)
    work = tuned.call_of(module.arguments(), {}).tuned.workload
    kernels = atune.compile_all(
        work.kernel, [configs[0], configs[-1]], arguments=work.arguments, out_idx=work.out_idx, target="sm_90a"
    )
    assert [kernel.config for kernel in kernels] == [configs[0], configs[-1]]


@pytest.mark.gpu
@pytest.mark.parametrize("name", bench.EXAMPLES)
def test_examples_run_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Each compares the tuned kernel's output with its reference, and prints both latencies."""
    env = {**environment(), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert " ms with {" in done.stdout.splitlines()[-1]

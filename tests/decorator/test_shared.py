"""Two hosts with one shared folder: the second one neither tunes nor compiles what the first one tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

HOST = """
import json, os, sys
import torch
from decorated import QUICK, TUNING, run_cached, scale_jit, shift, workload
import atune
from atune.frontends.api import cached_tune, compile_all
from atune.frontends.api.cached_tune import CachedWork
from atune.workers.storage import shared_cache
from atune.workers.storage.result_cache import ResultCache

if "foreign" in sys.argv:
    shared_cache._machine = lambda target: "another"
if "idle" in sys.argv:
    del cached_tune.tune_apart, compile_all._built  # nothing may be tuned or compiled
A = torch.arange(256.0)
tuned = atune.autotune(space={"factor": [2, 3], "block": [16, 64]}, target="c", tuning=TUNING)(scale_jit)
found = {"decorated": (tuned.tune(256), tuned(256)(A))}
if "foreign" not in sys.argv:
    result = run_cached(CachedWork(workload(), target="c", benchmark=QUICK), ResultCache())
    found["tune_work"] = result, result.kernel(A)
print(json.dumps({
    door: {
        "hit": result.cache_hit, "config": result.best_config, "latency_ms": result.latency_ms,
        "right": torch.equal(answer, A * result.best_config["factor"]),
        "library": result.artifact and result.artifact.path, "source": result.artifact and result.kernel_source,
    }
    for door, (result, answer) in found.items()
}))
"""
Host = dict[str, dict[str, Any]]


def on_host(tmp_path: Path, name: str, *arguments: str) -> Host:
    """Tune a decorated kernel and a workload, or find them tuned."""
    variables = {"ATUNE_CACHE_DIR": tmp_path / name, "ATUNE_SHARED_CACHE": tmp_path / "shared"}
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **{n: str(path) for n, path in variables.items()}}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", HOST, *arguments]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    found: Host = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Host]:
    """Return a folder with a shared cache and what the first host found."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "shared").mkdir()
    return folder, on_host(folder, "a")


def test_the_second_host_neither_tunes_nor_compiles(hosts: tuple[Path, Host]) -> None:
    folder, found = hosts
    there = on_host(folder, "b", "idle")
    for door in ("decorated", "tune_work"):
        first, second = found[door], there[door]
        assert not first["hit"] and first["right"] and first["library"].startswith(f"{folder / 'a'}/")
        assert second["hit"] and second["right"] and second["source"] == first["source"]
        assert second["library"] == first["library"].replace(str(folder / "a"), str(folder / "b"))
        assert (second["config"], second["latency_ms"]) == (first["config"], first["latency_ms"])


def test_another_machine_compiles_the_winner_itself(hosts: tuple[Path, Host]) -> None:
    """One with another C library, or with other instructions, does not load what was compiled for the first."""
    folder, found = hosts
    first, second = found["decorated"], on_host(folder, "c", "foreign")["decorated"]
    assert second["hit"] and second["right"] and second["library"] is None
    assert second["config"] == first["config"]

"""Runs and `atune doctor` with a tilelang outside of the tested range: another version, and one that lacks a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tilelang

from atune.model.requirements import REQUIRES

WORKLOAD = f"{Path(__file__).parents[1]}/workloads.py:SCALE"
FITS = "atune was not tested with tilelang {}, only with {}; all the names that atune uses are there"
DOES_NOT = (
    "atune does not work with tilelang 99.0: tilelang.engine.lower.device_codegen_without_compile is gone. "
    "Install a tested version: pip install 'tilelang{}'"
)


def installed(folder: Path, version: str) -> None:
    """Have Python find `version` of tilelang as installed, where `folder` is on its path."""
    facts = folder / f"tilelang-{version}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tilelang\nVersion: {version}\n")


def edited(folder: Path, old: str, new: str) -> None:
    """Put a tilelang into `folder` that has `new` in place of `old` in ``engine/lower.py``."""
    real = Path(tilelang.__file__).parent
    (folder / "tilelang" / "engine").mkdir(parents=True)
    for inner in ("", "engine"):
        for entry in (real / inner).iterdir():
            if entry.name not in ("__pycache__", "engine", "lower.py"):
                (folder / "tilelang" / inner / entry.name).symlink_to(entry)
    text = (real / "engine" / "lower.py").read_text()
    assert old in text
    (folder / "tilelang" / "engine" / "lower.py").write_text(text.replace(old, new))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "atune", *command], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_one_that_keeps_the_contract_tunes_and_a_run_says_so_once(tmp_path: Path) -> None:
    version = "99.0"
    said = FITS.format(version, REQUIRES["tilelang"])
    installed(tmp_path, version)
    done = run(tmp_path, "tune", WORKLOAD, "--target", "c", "--journal", "run.jsonl")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    warned = [event["message"] for event in events if event["event"] == "warned"]
    assert [message for message in warned if "tilelang" in message] == [said]
    assert " ".join(done.stderr.split()).count(said) == 1
    found = run(tmp_path, "doctor", "--json")
    (check,) = [check for check in json.loads(found.stdout)["checks"] if check["name"] == "tilelang"]
    assert found.returncode == 0
    assert check == {"name": "tilelang", "ok": True, "found": version, "advice": said}


def test_one_that_lacks_a_name_is_refused_in_one_sentence(tmp_path: Path) -> None:
    said = DOES_NOT.format(REQUIRES["tilelang"])
    installed(tmp_path, "99.0")
    edited(tmp_path, "device_codegen_without_compile", "printed_device")
    done = run(tmp_path, "tune", WORKLOAD, "--target", "c")
    assert done.returncode == 2 and done.stderr == f"atune: error: {said}\n"
    found = run(tmp_path, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert checks["tilelang"]["found"] == "99.0, unusable" and checks["tilelang"]["advice"] == said
    assert found.returncode == 1 and "this environment lacks tilelang" in checks["target c"]["advice"]

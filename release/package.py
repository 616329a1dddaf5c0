"""Build the sdist and the wheel, and try the wheel as a user does who only reads journals.

    python release/package.py [--out dist]

`python -m build` makes the wheel from the sdist, so the sdist lacks nothing. The wheel must hold exactly the files that
git tracks below atune/. The command in the docs for machines without tilelang and torch then installs it in a new
environment, where a stored journal must be replayed and reported, and where tuning must say what to install.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
"""Prefix of the distribution's file names."""
JOURNAL = ROOT / "bench" / "results" / "layouts" / "uneven.jsonl"
WORKLOAD = ROOT / "examples" / "gemm_cpu.py"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel, and try the wheel.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for both (default: dist)")
    out = parser.parse_args().out.resolve()
    if find_spec("build") is None:
        sys.exit("'build' is not installed: pip install 'build>=1.2'")
    started = time.perf_counter()
    wheel = build(out)
    compare(wheel)
    with tempfile.TemporaryDirectory() as folder:
        try_out(Path(folder), wheel)
    print(f"{wheel.name} works without tilelang and torch ({time.perf_counter() - started:.0f} s)")


def build(out: Path) -> Path:
    """Build both into `out`, replace older packages, and return the wheel's path."""
    for pattern in (f"{NAME}-*.whl", f"{NAME}-*.tar.gz"):
        for older in out.glob(pattern):
            older.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=sys.stderr)
    (sdist,), (wheel,) = out.glob(f"{NAME}-*.tar.gz"), out.glob(f"{NAME}-*.whl")
    for path in (sdist, wheel):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return wheel


def compare(wheel: Path) -> None:
    """Exit unless the wheel holds exactly the files of the package that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", "atune"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {name for name in listed.stdout.split("\0") if name}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not re.match(rf"{NAME}-[^/]+\.dist-info/", name)}
    if tracked != held:
        sys.exit(f"the wheel lacks {sorted(tracked - held)} and has {sorted(held - tracked)} that git does not track")


def light_install() -> list[list[str]]:
    """Return the commands from the docs for machines that only read journals, as lists of words."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    line = re.search(r"^(pip install .*--no-deps \.)$", pages, re.MULTILINE)
    if line is None:
        sys.exit("docs/ lacks the line for installing without tilelang and torch: pip install … --no-deps .")
    return [shlex.split(part) for part in line[1].split("&&")]


def try_out(folder: Path, wheel: Path) -> None:
    """Install the wheel in a new environment, and exit unless it works there as the docs promise."""
    venv.create(folder, with_pip=True)
    for pip, *words in light_install():
        given = [str(wheel) if word == "." else word for word in words]
        subprocess.run([folder / "bin" / pip, "--quiet", "--disable-pip-version-check", *given], check=True)
    atune = str(folder / "bin" / "atune")
    summary = json.loads(output_of(atune, "replay", JOURNAL, "--json").splitlines()[-1])
    if not summary["best_config"] or not summary["latency_ms"]:
        sys.exit(f"atune replay shows no winner: {summary}")
    output_of(atune, "report", JOURNAL, "-o", folder / "report.html")
    output_of(atune, "cache", "ls")
    lacking = output_of(atune, "tune", f"{WORKLOAD}:WORKLOAD", status=2)
    if "pip install" not in lacking or "torch" not in lacking or len(lacking.splitlines()) != 1:
        sys.exit(f"atune tune does not say in one line what to install:\n{lacking}")


def output_of(*command: object, status: int = 0) -> str:
    """Run a command outside of the checkout, and return its output. Exit if its status is not `status`."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ATUNE_CACHE_DIR": folder}
        environment.pop("PYTHONPATH", None)  # so that the installed wheel is tried, not the checkout
        done = subprocess.run(
            [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
        )
    if done.returncode != status:
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}, not {status}:\n{done.stderr}")
    return done.stdout or done.stderr


if __name__ == "__main__":
    main()

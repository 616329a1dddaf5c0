"""CONTRIBUTING.md names files, names in them and targets of make; all are there. A release, tried in a copy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_file_and_folder_is_there() -> None:
    paths = set(re.findall(r"`([\w.]+(?:/[\w.]+)*(?:/|\.(?:py|md)))`", PAGE))
    assert len(paths) > 25
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_target_of_make_is_one() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|    )make ([\w-]+)", PAGE)) - {"with"} <= set(targets)
    assert "make package" in (ROOT / ".ci" / "run").read_text()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with what a release changes, and checks that pass unless a file `broken` is there."""
    for name in ("release/release.py", "atune/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 7.0.0 (unreleased)\n\nAll.\n\n## 6.0.0 (2020-01-01)\n")
    (tmp_path / "Makefile").write_text("check:\n\t@test ! -e ../broken-$(notdir $(CURDIR))\npackage:\n\t@true\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.name", "A")
    git(tmp_path, "config", "user.email", "a@localhost")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")


def release(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "release/release.py", *words, "--date", "2031-02-03"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_release_is_a_commit_and_a_tag_and_a_dry_run_of_it_changes_nothing(copy: Path) -> None:
    done = release(copy, "7.0.0", "--dry-run")
    assert done.returncode == 0 and '+__version__ = "7.0.0"' in done.stdout, done.stderr
    assert git(copy, "status", "--porcelain") == git(copy, "tag") == ""
    done = release(copy, "7.0.0")
    assert done.returncode == 0 and "git push --follow-tags" in done.stdout, done.stderr
    assert '__version__ = "7.0.0"' in git(copy, "show", "v7.0.0:atune/version.py")
    assert "## 7.0.0 (2031-02-03)\n" in git(copy, "show", "v7.0.0:CHANGELOG.md")
    assert git(copy, "log", "-1", "--format=%s") == "Release 7.0.0\n" and git(copy, "status", "--porcelain") == ""


def test_checks_that_fail_leave_all_as_it_was(copy: Path) -> None:
    broken = copy.parent / f"broken-{copy.name}"
    broken.touch()
    done = release(copy, "7.0.0")
    assert done.returncode == 1 and "`make check package` failed" in done.stderr
    assert git(copy, "status", "--porcelain") == git(copy, "tag") == ""


@pytest.mark.parametrize(
    ("version", "why"),
    [("7.0", "three numbers"), ("6.0.0", "begins with «## 7.0.0"), ("5.0.0", "not newer than v5.1.0")],
)
def test_a_release_is_refused_with_a_reason(copy: Path, version: str, why: str) -> None:
    git(copy, "tag", "v5.1.0")
    done = release(copy, version)
    assert done.returncode == 1 and done.stderr.startswith("no release: ") and why in done.stderr


@pytest.mark.parametrize(("limit", "status"), [(3, 0), (2, 1)])
def test_a_part_that_has_more_lines_than_it_may_is_refused(limit: int, status: int, tmp_path: Path) -> None:
    for name, text in {
        "release/size.py": "",
        "part/a.py": "1\n2\n",
        "part/in/b.js": "3\n",
        "part/vendored/c.js": "4\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "release" / "size.py", tmp_path / "release")
    (tmp_path / "pyproject.toml").write_text(f"[tool.atune.size]\npart = {limit}\n")
    subprocess.run("git init -q && git add .", shell=True, cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "release/size.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status and f"3    2  part  of {limit}" in done.stdout
    assert (f"part/ has 3 lines, but may have {limit}" in done.stderr) == bool(status)

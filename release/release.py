"""Make a release: enter version and date, run all checks, build the packages, commit and tag. Publishes nothing.

    python release/release.py VERSION [--date YYYY-MM-DD] [--dry-run]

CHANGELOG.md must begin with «## VERSION (unreleased)», which becomes «## VERSION (YYYY-MM-DD)»; atune/version.py gets
the version. `make check package` then runs on exactly the files that are committed and tagged. If it fails, both files
are restored. `--dry-run` shows the changes and the commands, and changes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG, VERSION = Path("CHANGELOG.md"), Path("atune/version.py")
BRANCH = "main"
CHECKS = ("make", "check", "package")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a release: version, date, checks, packages, commit and tag.")
    parser.add_argument("version", help="such as 0.1.0")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="of the release (default: today)")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen")
    given = parser.parse_args()
    tag, files = f"v{given.version}", (VERSION, CHANGELOG)
    old = {path: (ROOT / path).read_text() for path in files}
    try:
        datetime.date.fromisoformat(given.date)
        refuse(given.version, git("tag", "--list", "v*").split())
        new = {VERSION: versioned(old[VERSION], given.version)}
        new[CHANGELOG] = dated(old[CHANGELOG], given.version, given.date)
        if git("status", "--porcelain") or git("branch", "--show-current").strip() != BRANCH:
            raise ValueError(f"check out {BRANCH} and commit all changes first")
    except ValueError as error:
        sys.exit(f"no release: {error}")
    then = (["git", "commit", "--quiet", "--message", f"Release {given.version}", *map(str, files)],
            ["git", "tag", "--annotate", tag, "--message", f"atune {given.version}"])  # fmt: skip
    if given.dry_run:
        for path in files:
            lines = [text.splitlines(keepends=True) for text in (old[path], new[path])]
            sys.stdout.writelines(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}", n=1))
        print(*(shlex.join(command) for command in (CHECKS, *then)), sep="\n")
        return
    for path in files:
        (ROOT / path).write_text(new[path])
    passed = False
    try:
        passed = subprocess.run(CHECKS, cwd=ROOT).returncode == 0
    finally:
        for path in files if not passed else ():
            (ROOT / path).write_text(old[path])
    if not passed:
        sys.exit(f"no release: `{shlex.join(CHECKS)}` failed; {' and '.join(map(str, files))} are restored")
    for command in then:
        subprocess.run(command, cwd=ROOT, check=True)
    print(f"{tag} is tagged, and dist/ has its packages. To publish: git push --follow-tags, and twine upload dist/*")


def refuse(version: str, tags: list[str]) -> None:
    """Raise ValueError unless `version` is three numbers, and newer than all tags."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"the version must be three numbers, such as 0.1.0, got {version!r}")
    newest = max(tags, key=numbers, default="")
    if newest and numbers(version) <= numbers(newest):
        raise ValueError(f"{version} is not newer than {newest}")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def versioned(source: str, version: str) -> str:
    """Return the source of version.py with `version`."""
    return re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', source, count=1, flags=re.MULTILINE)


def dated(changelog: str, version: str, date: str) -> str:
    """Return the changelog with the date of `version`, whose section must be the first. Raises ValueError."""
    first = re.search(r"^## .*$", changelog, re.MULTILINE)
    wanted = f"## {version} (unreleased)"
    if first is None or first[0] != wanted:
        there = "no heading" if first is None else f"«{first[0]}»"
        raise ValueError(f"CHANGELOG.md must begin with «{wanted}», but begins with {there}")
    return changelog.replace(wanted, f"## {version} ({date})", 1)


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()

"""Count the project's lines and files by folder. Fails if a part has more lines than pyproject.toml allows."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".py", ".c", ".js", ".html")
FOREIGN = "vendored"
"""Name of folders with other projects' files."""


def tracked(root: Path) -> list[Path]:
    """Return the project's own source files, relative to `root`, as git lists them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = (Path(name) for name in listed.split("\0") if name)
    return [path for path in paths if path.suffix in KINDS and FOREIGN not in path.parts and (root / path).is_file()]


def counted(root: Path, paths: Iterable[Path]) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of lines and files by folder, including its subfolders."""
    lines, files = Counter[str](), Counter[str]()
    for path in paths:
        n = len((root / path).read_bytes().splitlines())
        for folder in list(path.parents)[:-1]:
            lines[folder.as_posix()] += n
            files[folder.as_posix()] += 1
    return lines, files


def too_large(lines: Mapping[str, int], most: Mapping[str, int]) -> list[str]:
    """Return a sentence for each part with more lines than its limit in `most`."""
    return [
        f"{part}/ has {lines.get(part, 0):,} lines, but may have {limit:,} ([tool.atune.size]): remove some"
        for part, limit in most.items()
        if lines.get(part, 0) > limit
    ]


def main() -> None:
    """Print the table, and fail if a part is too large."""
    most = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["atune"]["size"]
    lines, files = counted(ROOT, tracked(ROOT))
    for folder in sorted(lines):
        if folder.split("/")[0] in most:
            limit = f"  of {most[folder]:,}" if folder in most else ""
            print(f"{lines[folder]:7,} {files[folder]:4}  {'  ' * folder.count('/')}{folder}{limit}")
    sys.exit("\n".join(too_large(lines, most)) or 0)


if __name__ == "__main__":
    main()

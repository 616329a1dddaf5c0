"""The pages that a reader sees, and what stands in their blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
"""A file that a page gives: its name, and its text."""


def write_files(folder: Path) -> None:
    """Write the pages' example files into `folder`, each under the name that the page gives it."""
    for page in PAGES:
        for name, text in FENCED.findall(page.read_text()):
            (folder / name).write_text(text)

"""What the site shows beside the pages of docs/: the changelog, and the files of the repository that pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".ipynb": "json", ".sbatch": "bash"}


def outside(page: Path, target: str) -> Path | None:
    """Return the repository's file that `target` names from `page`, if it is none of docs/."""
    file = (page.parent / target).resolve()
    is_ours = "://" not in target and file.is_file() and file.is_relative_to(ROOT)
    return file.relative_to(ROOT) if is_ours and not file.is_relative_to(ROOT / "docs") else None


def shown_at(file: Path) -> str:
    return "changelog.md" if file.name == "CHANGELOG.md" else f"files/{file}" + ("" if file.suffix == ".md" else ".md")


def as_page(file: Path) -> str:
    """Return a page with what `file` holds; its own links are left out, as they lead on through the repository."""
    text = (ROOT / file).read_text()
    if file.name == "CHANGELOG.md":
        return text.replace("](docs/", "](").replace("](examples/", "](../examples/")
    if file.suffix == ".md":
        return LINK.sub(r"\1", text)
    return f"# {file}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog and each file that a page links to."""
    found = {Path("CHANGELOG.md")}
    for page in [ROOT / "CHANGELOG.md", *Path(config.docs_dir).rglob("*.md")]:
        found |= {file for _, target, _ in LINK.findall(page.read_text()) if (file := outside(page, target))}
    for file in sorted(found):
        files.append(File.generated(config, shown_at(file), content=as_page(file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to files of the repository lead to the pages made of them."""
    here = Path(config.docs_dir, page.file.src_uri)
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        file = outside(here, match[2])
        return match[0] if file is None else f"[{match[1]}]({up}{shown_at(file)}{match[3] or ''})"

    return LINK.sub(link, markdown)

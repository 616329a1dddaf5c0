"""Write tables into their pages: the options from themselves, promises from their tests' docstrings. make tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from atune.frontends.cli.commands import groups, help_of, skips
from atune.frontends.cli.parsing import SHARED

DOCS = Path(__file__).parent


def of_tune() -> Iterable[tuple[str, str]]:
    """Yield the rows of `atune tune`'s options: what ``--help`` says of them, and where the pages say more."""
    for option in (one for options in groups().values() for one in options):
        spelled = f"`{f'{option.flag} {option.metavar}'.rstrip()}`".replace("|", "`, `")
        if option.default is True and not skips(option):
            spelled += f", `--no-{option.flag.removeprefix('--')}`"
        more = f" ([more]({option.page}))" if option.page else ""
        yield spelled, help_of(option) + more
    for flag, text in SHARED.items():
        yield f"`{flag}`", text
    yield "`--help`", "show the options"


def promised_by(document: str) -> Callable[[], Iterable[tuple[str, str]]]:
    """Return what yields the promises of a founding document: the first line of each test's docstring, and the test."""

    def rows() -> Iterable[tuple[str, str]]:
        found = []
        for file in (DOCS.parent / "tests" / "documents").glob(f"{document}*.py"):
            for node in ast.parse(file.read_text()).body:
                name = getattr(node, "name", "")
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name.startswith("test_"):
                    said = (ast.get_docstring(node) or "").partition("\n")[0]
                    number = re.match(r"test_[a-z](\d+)_", name)
                    where = f"`{file.relative_to(DOCS.parent)}::{name}`"
                    found.append((int(number[1]) if number else 0, said.rstrip("."), where))
        for _, said, where in sorted(found):
            yield said, where

    return rows


OPTIONS_HEAD, PROMISES_HEAD = ("option", "is"), ("promise", "test")
PROMISES = "design/promises.md"
TABLES: dict[tuple[str, str], tuple[tuple[str, str], Callable[[], Any]]] = {
    ("options.md", "options of tune"): (OPTIONS_HEAD, of_tune),
    (PROMISES, "promises of the design"): (PROMISES_HEAD, promised_by("test_card")),
    (PROMISES, "promises of the pipeline"): (PROMISES_HEAD, promised_by("test_000")),
    (PROMISES, "promises of eager kernels"): (PROMISES_HEAD, promised_by("test_001")),
    (PROMISES, "promises of the guide"): (PROMISES_HEAD, promised_by("test_002")),
    (PROMISES, "promises of cuTile.jl"): (PROMISES_HEAD, promised_by("test_003")),
    (PROMISES, "promises of layouts"): (PROMISES_HEAD, promised_by("test_004")),
}
"""The tables' heads and rows, by page and by the mark above and below them."""


def page(name: str) -> str:
    """Return the page as it should be."""
    text = (DOCS / name).read_text()
    for (of, mark), (head, rows) in TABLES.items():
        if of == name:
            lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
            lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows()]
            before, _, rest = text.partition(f"<!-- {mark}: make tables writes them -->\n")
            _, found, after = rest.partition(f"<!-- end of {mark} -->\n")
            assert found, f"{name} has no place for the {mark}"
            shown = "\n".join(lines)
            text = f"{before}<!-- {mark}: make tables writes them -->\n\n{shown}\n\n<!-- end of {mark} -->\n{after}"
    return text


if __name__ == "__main__":
    for name in {name for name, _ in TABLES}:
        (DOCS / name).write_text(page(name))

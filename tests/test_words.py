"""Retired words stand in no message and on no page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "atune").rglob("*.py"))
RETIRED = {
    r"lanes?": "worker",
    r"trials?": "candidate, simulation",
    r"playoff|rematch": "final",
    r"incumbent": "best",
    r"artefacts?": "artifact",
    r"seconds of devices": "device seconds",
    r"search space|parameter space": "space",
    r"tuning parameters?": "axis",
}
"""Words that are retired, as patterns, with the words for them."""


def messages() -> Iterator[tuple[str, str]]:
    """Yield each text in the sources that is no docstring and has several words, with its place."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docstrings and " " in str(node.value):
                yield f"{path.name}:{node.lineno}", str(node.value)


def retired(text: str) -> list[str]:
    """Return the retired words in `text`, with what to say."""
    found = {word: re.search(rf"\b({pattern})\b", text, re.IGNORECASE) for pattern, word in RETIRED.items()}
    return [f"{match[0]}: say {word}" for word, match in found.items() if match]


def test_retired_words_are_in_no_message_and_on_no_page() -> None:
    texts = list(messages())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        texts += [(f"{page.name}:{n}", line) for n, line in enumerate(page.read_text().splitlines(), 1)]
    assert len(texts) > 1000
    assert not [f"{where}: {word}" for where, text in texts for word in retired(text)]


def test_a_retired_word_would_be_found() -> None:
    assert retired("the lane is lost") == ["lane: say worker"]

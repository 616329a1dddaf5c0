"""The glossary and the code use the same words: its names exist, and retired words stand nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from atune.journal.events import AnyEvent

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
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


def rows() -> list[tuple[str, str]]:
    """Return the glossary's rows: the words, and what they mean."""
    found = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", GLOSSARY.read_text(), re.MULTILINE)
    return [(word, meaning) for word, meaning in found if word not in ("word", "---")]


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


def test_events_that_the_glossary_names_are_those_of_the_journal() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in get_args(AnyEvent)}
    named = {name for _, meaning in rows() for name in re.findall(r"event `(\w+)`", meaning)}
    assert len(named) > 5 and named <= tags


def test_names_that_the_glossary_gives_exist() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    names = [
        n for row in rows() for part in re.findall(r"`([^`]+)`", " ".join(row)) for n in re.findall(r"[\w-]+", part)
    ]
    unknown = {name for name in names if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", code)}
    assert len(set(names)) > 20 and not unknown


def test_each_word_is_used_in_messages_docs_or_code() -> None:
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page != GLOSSARY]
    used = " ".join("\n".join(path.read_text() for path in [*SOURCES, *pages]).split()).casefold()
    words = {word.strip() for row in rows() for word in row[0].split(",")}
    assert not {word for word in words if word.casefold() not in used}

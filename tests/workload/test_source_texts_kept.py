"""Texts that a worker has read, and files that were written beside the workload's own."""

from __future__ import annotations

import inspect
import linecache
import os
from pathlib import Path

from atune.workload.source_text import keep_texts, written_since


def test_a_text_that_was_read_stays_after_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("def kernel():\n    return 1\n")
    scope: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    kernel = scope["kernel"]
    assert inspect.getsource(kernel).endswith("return 1\n")  # type: ignore[arg-type]
    keep_texts()
    file.write_text("# a comment\ndef kernel():\n    return 22\n")
    assert inspect.getsource(kernel) == "def kernel():\n    return 1\n"  # type: ignore[arg-type]
    del linecache.cache[str(file)]


def test_what_was_written_beside_the_files_is_named_but_for_journals(tmp_path: Path) -> None:
    package, other = tmp_path / "package", tmp_path / "other"
    for folder in (package, other):
        folder.mkdir()
        (folder / "part.py").write_text("")
    (package / "__init__.py").write_text("")
    for name in ("main.py", "old.py", "data.json", "journal.jsonl"):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / "old.py", (1e9, 1e9))
    os.utime(package / "__init__.py", (1e9, 1e9))
    found = written_since(1.5e9, [str(tmp_path / "main.py")])
    assert found == [str(tmp_path / "data.json"), str(tmp_path / "main.py"), str(package / "part.py")]
    assert written_since(1.5e9, [str(tmp_path / "gone" / "main.py")]) == []

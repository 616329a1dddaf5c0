"""What is remembered of a compiler state, and when it is known no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from atune.workers.storage.compiler_states import StateCheck, contents_of, key_in, recall, remember, state_of


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "copy.h"
    file.write_text("first")
    return file


def compared(header: Path, difference: str = "") -> StateCheck:
    return StateCheck((str(header),), contents_of([str(header)]), difference)


@pytest.mark.parametrize("difference", ["", "the code of .text.K"])
def test_a_comparison_is_known_as_long_as_the_headers_are_the_same(header: Path, difference: str) -> None:
    assert recall("tools", "use") is None
    remember("tools", "use", one := compared(header, difference))
    assert recall("tools", "use") == (state_of("tools", "use", one.headers), difference)
    assert recall("tools", "other use") is None and recall("other tools", "use") is None
    header.write_text("again")
    assert recall("tools", "use") is None
    header.unlink()
    assert recall("tools", "use") is None


def test_the_latest_comparison_counts_and_a_damaged_one_is_unknown(header: Path, tmp_path: Path) -> None:
    remember("tools", "use", compared(header, "the code"))
    remember("tools", "use", compared(header))
    assert (recall("tools", "use") or ("", "unknown"))[1] == ""
    [file] = (tmp_path / "cache").rglob("states/*.json")
    file.write_text(file.read_text()[:-5])
    assert recall("tools", "use") is None


def test_libraries_of_each_state_have_keys_of_their_own() -> None:
    assert key_in("key", "") == "key" and key_in("", "state") == ""
    assert len({"key", key_in("key", "one"), key_in("key", "two"), key_in("other", "one")}) == 4

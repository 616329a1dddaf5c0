"""Where atune keeps its files: the folder that a variable names, and the one that a program chooses for a while."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from atune.frontends.api.blocking import run_blocking
from atune.model.folders import artifacts_folder, cache_folder, cache_folder_at, is_cached, is_stored


def test_the_variable_names_the_folder_and_a_relative_one_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "atune"
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" and artifacts_folder() == tmp_path / "own" / "artifacts"
    monkeypatch.setenv("ATUNE_CACHE_DIR", "own")
    assert cache_folder() == tmp_path / "xdg" / "atune"


def test_a_chosen_folder_holds_for_its_block_and_its_thread(tmp_path: Path) -> None:
    before, seen = cache_folder(), []
    with cache_folder_at(tmp_path / "one"):
        with cache_folder_at(None):
            assert cache_folder() == tmp_path / "one"
        other = threading.Thread(target=lambda: seen.append(cache_folder()))
        other.start()
        other.join()
    assert cache_folder() == before and seen == [before]


def test_a_blocking_run_takes_the_folder_into_its_thread(tmp_path: Path) -> None:
    async def asked() -> Path:
        return cache_folder()

    with cache_folder_at(tmp_path):
        assert run_blocking(asked) == tmp_path


def test_a_library_in_a_chosen_folder_may_be_loaded_later_and_no_other(tmp_path: Path) -> None:
    def kept(cache: Path) -> str:
        data = b"a library"
        file = cache / "artifacts" / f"{hashlib.sha256(data).hexdigest()}.so"
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        return str(file)

    chosen, strange = kept(tmp_path / "chosen"), kept(tmp_path / "strange")
    with cache_folder_at(tmp_path / "chosen"):
        assert is_stored(chosen) and not is_stored(strange)
    assert is_stored(chosen) and is_cached(chosen)
    assert not is_stored(strange) and not is_cached(strange)

"""Where atune keeps its files: the folder that a variable names, and the one that a program chooses for a while."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import atune
from atune.errors import AtuneError
from atune.frontends.blocking import run_blocking
from atune.model.artifact import Artifact
from atune.model.folders import (
    artifacts_folder,
    cache_folder,
    cache_folder_at,
    is_cached,
    is_stored,
    loadable,
    untrusted,
)
from atune.testing import FakeMachine
from atune.workers.artifact_store import ArtifactStore, StateCheck, contents_of, recall, remember

WHEN_COLLECTED = cache_folder()


def test_a_kernel_that_a_test_module_decorates_is_not_in_the_users_cache() -> None:
    assert cache_folder() == WHEN_COLLECTED != Path.home() / ".cache" / "atune"


def test_the_variable_names_the_folder_and_a_relative_one_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "atune"
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" and artifacts_folder() == tmp_path / "own" / "artifacts"
    monkeypatch.setenv("ATUNE_CACHE_DIR", "./own")
    with pytest.warns(RuntimeWarning, match=r"^ATUNE_CACHE_DIR=\./own is ignored: give an absolute path$") as warned:
        assert cache_folder() == cache_folder() == tmp_path / "xdg" / "atune"
    assert [Path(one.filename) for one in warned] == [Path(__file__)], "once, where the program called"


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


NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to another user")
STRANGE = [
    ("", lambda path: path.chmod(0o777), "other users may write to"),
    ("", lambda path: path.chmod(0o1777), "other users may write to"),
    ("artifacts", lambda path: path.chmod(0o770), "other users may write to"),
    ("artifacts/*.so", lambda path: path.chmod(0o666), "other users may write to"),
    pytest.param("", lambda path: os.chown(path, NOBODY, NOBODY), "another user owns", marks=AS_ROOT),
    pytest.param("artifacts", lambda path: os.chown(path, NOBODY, NOBODY), "another user owns", marks=AS_ROOT),
    pytest.param("artifacts/*.so", lambda path: os.chown(path, NOBODY, NOBODY), "another user owns", marks=AS_ROOT),
]
"""What of a cache folder is another user's, and how it becomes that."""


@pytest.mark.parametrize(("what", "make", "whose"), STRANGE)
def test_no_library_is_loaded_that_another_user_may_have_written(
    what: str, make: Any, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(root := tmp_path / "cache"))
    (tmp_path / "kernel.so").write_bytes(b"a library")
    (tmp_path / "kernel.k.source").touch()
    built = Artifact(0, str(tmp_path / "kernel.so"), "k", (), "c", store_key="key")
    store, comparison = ArtifactStore(), StateCheck((), contents_of(()), "")
    store.put("key", built)
    remember("tools", "use", comparison)
    kept = store.find("key", 0)
    assert kept is not None and loadable(kept, replayed=True) == kept and not untrusted(kept.path)
    [changed] = root.glob(what) if what else [root]
    make(changed)
    assert untrusted(kept.path).startswith(f"{whose} {changed}, so no library is kept there")
    with pytest.raises(AtuneError, match=f"^{whose} "):
        loadable(kept, replayed=True)
    for use in (lambda: store.find("key", 0), lambda: store.put("key", built), lambda: store.keep(built)):
        with pytest.raises(OSError, match=f"{whose} "):
            use()
    assert not what or recall("tools", "use") is not None
    assert what or recall("tools", "use") is None


def test_the_parents_of_the_cache_folder_and_a_folder_to_come_are_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "all" / "mine"))
    assert not untrusted(artifacts_folder() / "x.so")


def test_a_run_in_a_folder_that_all_may_write_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its winner, and no library of it."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    machine = FakeMachine(3)
    found = atune.run(machine=machine, journal=tmp_path / "j")
    assert found.best_config and sum("other users may write to" in text for text in found.warnings) == 1
    with pytest.raises(AtuneError, match="could not be kept"):
        _ = found.kernel

"""The shared cache: whole files under their keys, whatever writers, disks and other hosts do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cache_entries import events, key

import atune
from atune.errors import UsageError
from atune.journal.events import RunFinished
from atune.model.artifact import Artifact, source_path
from atune.workers.storage import shared_cache
from atune.workers.storage.result_cache import ResultCache

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setenv("ATUNE_SHARED_CACHE", str(folder))
    yield folder
    monkeypatch.setattr(shared_cache, "_chosen", shared_cache._UNSET)


def host(tmp_path: Path, name: str) -> ResultCache:
    return ResultCache(tmp_path / name / "results")


def script(text: str, *arguments: object, **variables: object) -> subprocess.Popen[bytes]:
    """Start `text` as a program whose warnings are errors."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **{name: str(v) for name, v in variables.items()}}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, env=env)


def test_a_host_finds_what_another_one_tuned(tmp_path: Path, shared: Path) -> None:
    shared.chmod(0o2775)
    host(tmp_path, "a").put(key(), events(3.0, 1.0, None))
    [file] = (path for path in shared.rglob("*") if path.is_file())
    assert file == shared / key().text[:2] / key().text
    assert (file.parent.stat().st_mode & 0o7777, file.stat().st_mode & 0o777) == (0o2775, 0o644)
    b = host(tmp_path, "b")
    found = b.find(key())
    assert found is not None and found.cache_hit and found.latency_ms == 1.0 and found.failed == 1
    file.unlink()
    assert b.find(key()) is not None  # it was copied
    assert len(b.known(key(), [{"block": 16}, {"block": 32}])) == 2
    assert b.find(key(problem={"M": 65})) is None


def test_a_file_that_a_journal_names_is_not_shared(tmp_path: Path, shared: Path) -> None:
    """A stranger's journal, once imported, could have any file read, or any library run elsewhere."""
    for name in (str(tmp_path / "file"), source_path(str(tmp_path / "file"), "main")):
        Path(name).write_text("secret")
    *before, last = events(1.0)
    assert isinstance(last, RunFinished)
    kernel = Artifact(0, str(tmp_path / "file"), "main", (), "c")
    host(tmp_path, "a").put(key(), [*before, msgspec.structs.replace(last, kernel=kernel)])
    found = shared_cache.find(key().text)
    assert found is not None and found.library == b""


def test_a_host_whose_own_cache_is_no_use_shares(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ResultCache(tmp_path / "file" / "results")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        cache.put(key(), events(1.0))
    assert host(tmp_path, "b").find(key()) is not None
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert cache.find(key()) is not None


def test_what_did_not_finish_is_not_shared(tmp_path: Path, shared: Path) -> None:
    host(tmp_path, "a").put(key(), events(1.0, finished=False))
    host(tmp_path, "a").put(key(), events(None))
    assert not list(shared.iterdir())


@pytest.mark.parametrize("harm", ["cut", "flipped", "another's", "empty"])
def test_a_damaged_file_is_no_result_and_is_written_anew(tmp_path: Path, shared: Path, harm: str) -> None:
    host(tmp_path, "a").put(key(), events(1.0))
    host(tmp_path, "a").put(key(problem={"M": 1}), events(2.0))
    file = shared / key().text[:2] / key().text
    other = key(problem={"M": 1}).text
    data = file.read_bytes()
    file.write_bytes({
        "cut": data[:-1], "flipped": data[:-1] + bytes([data[-1] ^ 1]), "empty": b"",
        "another's": (shared / other[:2] / other).read_bytes(),
    }[harm])  # fmt: skip
    with pytest.warns(RuntimeWarning, match=f"{key().text} in the shared cache .* is damaged and left out"):
        assert host(tmp_path, "b").find(key()) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert host(tmp_path, "b").find(key()) is None  # said once
    host(tmp_path, "b").put(key(), events(1.0))
    assert host(tmp_path, "c").find(key()) is not None


KILLED = """
import os, sys
from pathlib import Path
from cache_entries import events, key
from atune.workers.storage.result_cache import ResultCache
os.replace = lambda *_: os.kill(os.getpid(), 9)
ResultCache(sys.argv[1]).put(key(), events(1.0))
"""


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path, shared: Path) -> None:
    assert script(KILLED, tmp_path / "a").wait(60) == -9
    [part] = (path for path in shared.rglob("*") if path.is_file())
    assert part.suffix == ".part"
    assert host(tmp_path, "b").find(key()) is None
    host(tmp_path, "b").put(key(), events(1.0))
    assert host(tmp_path, "c").find(key()) is not None


WRITER = """
import sys
from cache_entries import events, key
from atune.workers.storage.result_cache import ResultCache
me = sys.argv[2]
for i in range(20):
    own, all = key(problem={"M": [int(me), i]}), key(problem={"M": i})
    for cache, wanted in ((ResultCache(f"{sys.argv[1]}/{me}"), own), (ResultCache(f"{sys.argv[1]}/{me}"), all)):
        cache.put(wanted, events(1.0, 2.0))
        found = ResultCache(f"{sys.argv[1]}/{me}-{i}").find(wanted)
        assert found is not None and found.latency_ms == 1.0
"""


def test_four_processes_write_the_same_and_other_keys(tmp_path: Path, shared: Path) -> None:
    writers = [script(WRITER, tmp_path / "hosts", i) for i in range(4)]
    assert [writer.wait(100) for writer in writers] == [0] * 4
    files = [path for path in shared.rglob("*") if path.is_file()]
    assert len(files) == 4 * 20 + 20 and not [path for path in files if path.suffix]


READER = """
import sys, warnings
from cache_entries import events, key
from atune.workers.storage.result_cache import ResultCache
cache = ResultCache(sys.argv[1])
print(cache.find(key()).latency_ms)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for i in range(3):
        cache.put(key(problem={"M": i}), events(1.0))
print([str(warning.message).partition(": ")[2] for warning in seen])
print(len(cache.entries()))
"""


def heed_modes() -> None:
    """Have root, too, heed the modes of files once it starts another program."""
    pr_capbset_drop, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override)


def test_a_read_only_folder_is_read_and_said_once(tmp_path: Path, shared: Path) -> None:
    host(tmp_path, "a").put(key(), events(1.0))
    for folder in (shared, *shared.iterdir()):
        folder.chmod(0o555)
    try:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        run = subprocess.run(
            [sys.executable, "-c", READER, str(tmp_path / "b")],
            env=env, preexec_fn=heed_modes, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    finally:
        for folder in (shared, *shared.iterdir()):
            folder.chmod(0o755)
    assert run.stdout.splitlines() == ["1.0", "['Permission denied. The run goes on without it']", "4"]


def test_a_missing_folder_is_said_once_and_not_made(tmp_path: Path, shared: Path) -> None:
    shared.rmdir()
    cache = host(tmp_path, "a")
    with pytest.warns(RuntimeWarning, match="cannot read the shared cache .*No such file") as seen:
        assert cache.find(key()) is None and cache.find(key()) is None
    cache.put(key(), events(1.0))
    assert len(seen) == 1 and not shared.exists() and cache.find(key()) is not None


class Memory:
    """A store of the user's own."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value


def test_a_store_of_ones_own(tmp_path: Path, shared: Path) -> None:
    memory = Memory()
    atune.set_shared_cache(memory)
    host(tmp_path, "a").put(key(), events(1.0))
    assert list(memory.values) == [key().text] and not list(shared.iterdir())
    assert host(tmp_path, "b").find(key()) is not None
    atune.set_shared_cache(None)
    assert host(tmp_path, "c").find(key()) is None
    atune.set_shared_cache(shared)
    host(tmp_path, "a").put(key(), events(1.0))
    assert list(shared.iterdir())
    with pytest.raises(UsageError, match="an object with get and put"):
        atune.set_shared_cache(42)  # type: ignore[arg-type]


def test_a_store_that_raises_costs_no_run(tmp_path: Path, shared: Path) -> None:
    class Broken(Memory):
        def get(self, key: str) -> bytes | None:
            raise ConnectionError("refused")

        put = get  # type: ignore[assignment]

    atune.set_shared_cache(Broken())
    with pytest.warns(RuntimeWarning, match="cannot read the shared cache .*ConnectionError: refused"):
        assert host(tmp_path, "a").find(key()) is None


def test_a_store_that_returns_no_bytes_costs_no_run(tmp_path: Path, shared: Path) -> None:
    class Text(Memory):
        def get(self, key: str) -> bytes | None:
            return "of a client that decodes"  # type: ignore[return-value]

    atune.set_shared_cache(Text())
    with pytest.warns(RuntimeWarning, match="cannot read the shared cache .*TypeError: .* not 'str'"):
        assert host(tmp_path, "a").find(key()) is None


def test_a_store_that_hangs_is_left_alone(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    end = threading.Event()

    class Slow(Memory):
        def get(self, key: str) -> bytes | None:
            asked.append(key)
            end.wait(60)
            return None

    monkeypatch.setattr(shared_cache, "DEADLINE_S", 0.05)
    atune.set_shared_cache(Slow())
    try:
        with pytest.warns(RuntimeWarning, match=r"did not answer within 0.05 s, and is not used any more"):
            assert host(tmp_path, "a").find(key()) is None
        assert host(tmp_path, "a").find(key()) is None and len(asked) == 1
    finally:
        end.set()

"""The artifact store: compiled once, used again, checked, bounded, and safe for several programs at once."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from decorated import QUICK, workload

import atune
from atune.journal.events import ArtifactBuilt, Event, Warned
from atune.model.artifact import STORED, Artifact, KernelParam, Lowered, source_path
from atune.model.candidate import Candidate, config_key
from atune.model.jobs import BuildJob, FindJob, LowerJob
from atune.model.settings import CompileSettings
from atune.reporting.summary import summary_text
from atune.workers.artifact_store import (
    ArtifactStore,
    StateCheck,
    contents_of,
    key_in,
    recall,
    remember,
    state_of,
)
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tests" / "workloads.py"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
SOFTMAX = {"block_rows": 4, "threads": 128}


def artifact(folder: Path, name: str, size: int = 100) -> Artifact:
    path = folder / f"{name}.so"
    path.write_bytes(name.encode().ljust(size, b"."))
    Path(source_path(str(path), name)).write_text(f"source of {name}")
    params = (KernelParam(dtype="float32", shape=(4,)),)
    return Artifact(index=0, path=str(path), symbol=name, params=params, target="c")


def age(*paths: Path, seconds: float = 100_000) -> None:
    """Have files been written and used so many seconds ago."""
    for path in paths:
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the runs of this module."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATUNE_CACHE_DIR", str(folder / "atune"))
        yield folder


@pytest.fixture
def own_store(home: Path) -> Path:
    """The artifact store of the test's runs, with nothing in it."""
    store = home / "atune" / "artifacts"
    shutil.rmtree(store, ignore_errors=True)
    return store


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "built"
    folder.mkdir()
    return folder


def test_a_damaged_library_is_not_used(tmp_path: Path, built: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    store.put("a" * 32, artifact(built, "one"))
    (library,) = (tmp_path / "store").glob("*.so")
    library.write_bytes(b"something else")
    assert store.find("a" * 32, 0) is None
    assert not library.exists()
    store.put("a" * 32, artifact(built, "one"))
    assert store.find("a" * 32, 0) is not None and (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_an_index_cannot_lead_outside(tmp_path: Path, built: Path) -> None:
    """Whatever the index file says, only a library in the store with the right content is loaded."""
    store = ArtifactStore(tmp_path / "store")
    store.put("a" * 32, artifact(built, "one"))
    outside = artifact(tmp_path, "evil")
    (code,) = (tmp_path / "store" / "codes").glob("*.json")
    code.write_text(code.read_text().replace(next((tmp_path / "store").glob("*.so")).name, outside.path))
    assert store.find("a" * 32, 0) is None


def test_it_is_cut_back_to_its_size_and_spares_what_was_used_within_a_day(tmp_path: Path, built: Path) -> None:
    folder = tmp_path / "store"
    for i in range(5):
        ArtifactStore(folder).put(f"{i}" * 32, artifact(built, f"k{i}", 1000))
    libraries = {p.read_bytes()[:2].decode(): p for p in folder.glob("*.so")}
    torn = folder / ".k9.so.abc.part"
    torn.write_bytes(b"half")
    age(*folder.rglob("*"), seconds=90_000)
    for i, path in enumerate([torn, *(libraries[f"k{i}"] for i in range(5))]):
        age(path, seconds=100_000 - i)
    assert ArtifactStore(folder).find("0" * 32, 0) is not None  # which counts as a use
    total = sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert ArtifactStore(folder, max_bytes=total - 1500).evict() == 2
    assert {p.read_bytes()[:2].decode() for p in folder.glob("*.so")} == {"k0", "k3", "k4"} and not torn.exists()
    assert ArtifactStore(folder).find("1" * 32, 0) is None
    assert ArtifactStore(folder, max_bytes=0).evict() == 0  # once a day
    age(folder / "swept")
    assert ArtifactStore(folder, max_bytes=0).evict() == 2 and libraries["k0"].exists()


def test_nothing_is_kept_where_the_disk_is_almost_full(
    tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is for journals."""
    monkeypatch.setattr("atune.workers.artifact_store.space_is_short", lambda folder: True)
    with pytest.raises(OSError, match="No space left on device"):
        ArtifactStore(tmp_path / "store").put("k" * 64, artifact(built, "a"))
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.parametrize("method", ["put", "find", "put_lowered"])
def test_a_store_that_fails_once_is_used_on_and_the_run_says_so_once(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    real, calls = getattr(ArtifactStore, method), list[bool]()

    def fails_at_first(*given: Any) -> Any:
        calls.append(len(calls) < 2)
        if calls[-1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "a library")
        return real(*given)

    monkeypatch.setattr(ArtifactStore, method, fails_at_first)
    one_by_one = CompileSettings(workers=1, group_size=1)
    result = atune.run(workload(), target="c", benchmark=QUICK, compile=one_by_one, progress=False)
    assert (result.measured, len(calls) > 2) == (2, True)
    said = [one for one in result.warnings if "the artifact store could not be used" in one]
    assert len(said) == 1 and "Input/output error: 'a library'" in said[0]
    assert len([*(tmp_path / "cache" / "artifacts" / "codes").iterdir()]) >= (2 if method == "put" else 4)


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A disk whose files cannot be run."""
    (folder := tmp_path / "noexec").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=200m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_cache_that_is_mounted_noexec_serves_every_run(noexec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries are found and loaded, by the devices' processes and by this one."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(noexec / "cache"))
    for seen in ([], found := list[Event]()):
        result = atune.run(workload(), target="c", benchmark=QUICK, progress=False, on_event=seen.append)
        assert result.best_config is not None and result.best_config["factor"] == 2 and result.measured == 2
        assert torch.equal(result.kernel(x := torch.randn(256)), 2 * x)
        assert not [text for text in result.warnings if "noexec" in text]
    assert {event.why for event in found if isinstance(event, ArtifactBuilt)} == {STORED}
    for _ in range(2):
        again = atune.run(workload(), target="c", benchmark=QUICK, progress=False, cached=True)
        assert torch.equal(again.kernel(x), 2 * x)


def test_a_folder_for_temporary_files_that_is_mounted_noexec_is_named_before_anything_is_compiled(
    noexec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(noexec))
    monkeypatch.setattr(tempfile, "tempdir", None)
    seen: list[Event] = []
    result = atune.run(workload(), target="c", benchmark=QUICK, progress=False, on_event=seen.append)
    assert result.measured == 2 and torch.equal(result.kernel(x := torch.randn(256)), 2 * x)
    [said] = [one.seq for one in seen if isinstance(one, Warned) and f"TMPDIR ({noexec}) is mounted" in one.message]
    assert said < min(one.seq for one in seen if isinstance(one, ArtifactBuilt))


def test_several_programs_at_once(tmp_path: Path, built: Path) -> None:
    """Writers of the same and of different libraries, readers, and one that evicts: never a wrong answer."""
    folder = tmp_path / "store"
    artifacts = [artifact(built, f"k{i}", 5000) for i in range(8)]

    def work(seed: int) -> int:
        store, hits = ArtifactStore(folder, max_bytes=20_000), 0
        for round in range(30):
            i = (seed * 7 + round) % 8
            store.put(f"{i}" * 32, artifacts[i])
            found = store.find(f"{i}" * 32, i)
            if found is not None:
                assert Path(found.path).read_bytes() == Path(artifacts[i].path).read_bytes()
                hits += 1
            store.evict()
        return hits

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 180
    assert not list(folder.rglob("*.part"))


@pytest.mark.usefixtures("own_store")
def test_a_second_run_compiles_nothing() -> None:
    builds: list[list[ArtifactBuilt]] = []
    for settings in (
        atune.CompileSettings(),
        atune.CompileSettings(),
        atune.CompileSettings(store=False),
    ):
        events: list[Event] = []
        result = atune.run(f"{WORKLOADS}:SCALE", target="c", compile=settings, on_event=events.append)
        assert (result.measured, result.failed) == (2, 4)
        builds.append([e for e in events if isinstance(e, ArtifactBuilt)])
        reused = "reused     6 of 6 kernel libraries, from the artifact store" in summary_text(result)
        assert reused == (len(builds) == 2)
        assert "* 2.0" in result.kernel_source and "* 3.0" not in result.kernel_source
    assert all(e.seconds > 0 and e.compiler == "g++" for e in builds[0])
    assert [len(e.indices) for e in builds[1]] == [1] * 6
    assert all(e.seconds == 0 and e.why == "from the artifact store" for e in builds[1])
    assert all(e.seconds > 0 for e in builds[2])
    flags = atune.CompileSettings(flags=("-O1",))
    events = []
    atune.run(f"{WORKLOADS}:SCALE", target="c", compile=flags, on_event=events.append)
    assert all(e.seconds > 0 for e in events if isinstance(e, ArtifactBuilt))  # other flags are other code


@pytest.mark.anyio
@pytest.mark.parametrize("target", ["c", pytest.param("sm_90a", marks=needs_nvcc)])
async def test_a_second_run_lowers_nothing(own_store: Path, target: str) -> None:
    """What it needs to know of a kernel is kept with the library; without that library it is lowered anew."""
    file, config = (
        (WORKLOADS, {"factor": 2, "block": 16}) if target == "c" else (ROOT / "examples" / "softmax.py", SOFTMAX)
    )
    name = "SCALE" if target == "c" else "WORKLOAD"
    candidate = Candidate(0, config_key(config), config)

    async def lowered(build: bool = True, **settings: Any) -> Lowered:
        compile = CompileSettings(workers=1, **settings)
        devices = ("all",) if target == "c" else ()
        machine = LocalMachine(FileRef(str(file), name), target=target, devices=devices, compile=compile)
        async with machine.open():
            await machine.discover()
            (worker,) = machine.compile_workers()
            answer = await worker.run(LowerJob(candidate))
            assert isinstance(answer, Lowered), answer
            if build:
                known = await worker.run(FindJob(answer))
                [built] = await worker.run(BuildJob((answer,))) if known is None else [known]
                assert isinstance(built, Artifact) and ("store" in built.why) != bool(answer.blob), built
            return answer

    first, second = await lowered(), await lowered()
    assert first.blob and not second.blob
    assert msgspec.structs.replace(second, blob=first.blob, seconds=first.seconds) == first
    assert (await lowered(build=False, store=False)).blob
    flags = ("-O1",) if target == "c" else ("-DMARK",)
    assert (await lowered(build=False, flags=flags)).ir_key != first.ir_key
    for library in own_store.glob("*.so"):
        library.write_bytes(b"damaged")
    assert (await lowered()).blob


# Compiler states


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
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

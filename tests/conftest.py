"""What every test has: an event loop, folders of its session's own, and a GPU where it asks for one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import light
import precompiled
import pytest
import tiers

os.environ.setdefault("ATUNE_WARM", "off")  # importing the drop-in here starts nothing; test_warm_servers shows it


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped where NVML finds none")
    config.addinivalue_line("markers", "newest: one of those that run with the newest versions of all packages")
    config.addinivalue_line("markers", "asked: long, or times the engine; runs only where asked for")
    keep_out_of_the_users_cache(config)
    if config.getoption("--durations-file") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(tiers.Durations())


def keep_out_of_the_users_cache(config: pytest.Config) -> None:
    """Give the session a cache folder of its own, before modules are collected: a decorated kernel keeps its folder."""
    folder = tempfile.TemporaryDirectory(prefix="atune-cache-", ignore_cleanup_errors=True)
    os.environ["XDG_CACHE_HOME"] = folder.name
    os.environ.pop("ATUNE_CACHE_DIR", None)
    config.add_cleanup(folder.cleanup)


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)
    parser.addoption("--light", action="store_true", help="run what needs neither tilelang nor torch (make test-light)")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--light"):
        light.refuse_other_environments()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--light") and light.needs_tilelang(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select(config, items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (why := why_no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=why))


def why_no_gpu() -> str:
    """Return why no GPU test can run here; empty when they can. Asks NVML: no CUDA context is made."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return f"no CUDA GPU: {error}"
    with suppress(Exception):
        count: int = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        return "" if count else "no CUDA GPU: NVML finds none"
    return "no CUDA GPU: NVML does not answer"


@pytest.fixture(autouse=True)
def all_warnings() -> None:
    """Each test is warned by the drop-in as if it were a program of its own."""
    if (environment := sys.modules.get("atune.compat.tilelang.environment")) is not None:
        environment._warned.clear()


@pytest.fixture
def with_a_terminal() -> Iterator[None]:
    """Programs that are started meanwhile end at SIGHUP and SIGINT, also where tests run under nohup or as a job."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hangup)
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture(params=["asyncio"])  # with trio, too: tests/processes, and modules that import fake_runs' own
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture
def configured() -> Iterator[list[Any]]:
    """The entries of the program's own structlog."""
    import structlog

    structlog.configure(processors=[capture := structlog.testing.LogCapture()])
    yield capture.entries
    structlog.reset_defaults()


def same_environment() -> None:
    """Drop pytest's own variable: it is another one in each test, and a server of another environment is not taken.

    A run leaves its fork server, with tilelang imported, to the next run of the same environment. Tests that follow
    each other use one, then, and import tilelang once; test_warm shows what is another server's.
    """
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    same_environment()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    same_environment()


@pytest.fixture(scope="session", autouse=True)
def folder_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep leftovers of tests out of the user's temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("tmpdir")
        os.chmod(folder, 0o700)
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)  # it remembers the folder that it found first
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_compiler(folder_of_our_own: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with precompiled.compiler(tmp_path_factory.mktemp("compiler")) as folder, pytest.MonkeyPatch.context() as patch:
        if folder is not None:
            patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield

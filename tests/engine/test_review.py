"""Defects that a review found, each with the test that would have."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import anyio
import pytest

import atune
from atune.errors import UsageError
from atune.journal.events import ArtifactBuilt, Event, RunFinished
from atune.model.folders import run_folder

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tests" / "workloads.py"


def test_a_link_in_place_of_the_run_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lead the sweep of old runs to somebody's files."""
    home, tmp = tmp_path / "home", tmp_path / "tmp"
    (home / "run-mine").mkdir(parents=True)
    home.chmod(0o700)
    tmp.mkdir()
    (tmp / f"atune-{os.getuid()}").symlink_to(home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp))
    with pytest.raises(UsageError, match="yours alone"), run_folder():
        pass
    assert (home / "run-mine").exists()


@pytest.mark.anyio
async def test_a_cancellation_while_the_server_is_left_warm_ends_the_run() -> None:
    """The run has finished, and its workers are being reaped."""
    finished = anyio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, RunFinished):
            finished.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            async def tune() -> None:
                await atune.tune(f"{WORKLOADS}:SCALE", target="c", on_event=on_event)

            tasks.start_soon(tune)
            await finished.wait()
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


KERNEL = """
    import atune
    import tilelang.language as T

    def forward(n: int, factor: int = 2):
        @T.prim_func
        def main({first}: T.Tensor((n,), "float32"), {second}: T.Tensor((n,), "float32")):
            with T.Kernel(1) as bx:
                for i in T.serial(n):
                    B[i] = A[i] * factor
        return main

    WORK = atune.Workload(forward, {{"factor": [2]}}, arguments={{"n": 67}}, reference=lambda A: A * 2, out_idx={out})
"""


def test_parameters_in_another_order_are_other_code(tmp_path: Path) -> None:
    """The C function is the same; how it is called is not."""
    built: list[ArtifactBuilt] = []

    def listen(event: Event) -> None:
        if isinstance(event, ArtifactBuilt):
            built.append(event)

    for first, second, out in (("A", "B", 1), ("B", "A", 0)):
        file = tmp_path / f"{first}.py"
        file.write_text(textwrap.dedent(KERNEL).format(first=first, second=second, out=out))
        assert atune.run(f"{file}:WORK", target="c", on_event=listen).measured == 1
    assert [event.why for event in built] == ["", ""]  # neither is from the artifact store


def test_a_cache_folder_that_cannot_be_used_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the folder would be: nobody may write there, root neither."""
    (tmp_path / "atune").mkdir()
    (tmp_path / "atune" / "artifacts").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = atune.run(f"{WORKLOADS}:SCALE", target="c")
    assert result.measured == 2
    assert any("could not be kept" in warning for warning in result.warnings)
    with pytest.raises(atune.errors.AtuneError, match="could not be kept"):
        _ = result.kernel

"""tilelang's environment variables, read-only homes, backends and host targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tilelang
import torch
from drop_in_tuners import cpu_tuner
from guide_kernels import few_blocks

from atune.compat.tilelang import CompatWarning, CompileArgs, ProfileArgs, autotune
from atune.compat.tilelang.environment import plan
from atune.errors import UsageError
from atune.workers.local.workers import process_folders
from atune.workers.storage.result_cache import ResultCache

pytestmark = pytest.mark.timeout(170)
ROOT = Path(__file__).parents[2]
"""A home in which nobody, root too, can make a folder."""


def tuned(n: int, target_host: Any = None) -> Any:
    return cpu_tuner(n=n).set_compile_args(out_idx=[-1], target="c", target_host=target_host).run()


def codes(cache: Path) -> set[str]:
    return {file.name for file in (cache / "artifacts" / "codes").glob("*.json")}


# ---- variables


def test_workers_get_no_variable_that_tilelang_does_not_know(tmp_path: Path) -> None:
    given = {name for name in process_folders(str(tmp_path)) if name.startswith("TILELANG_")}
    assert given == {"TILELANG_CACHE_DIR"}


def test_tilelangs_cache_folder_moves_results_and_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(own))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(theirs))
    first = tuned(192)
    assert len(codes(theirs / "atune")) == 2 and len(ResultCache(theirs / "atune").entries()) == 1
    assert not own.exists()
    assert Path(first.tuning.artifact.path).is_relative_to(theirs)
    again = tuned(192)
    assert again.tuning.cache_hit
    A = torch.randn(192)
    assert torch.equal(again.tuning.kernel(A), A * 2), "found again, and loaded when the tuning was over"


def test_libraries_in_tilelangs_cache_folder_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILELANG_AUTO_TUNING_DISABLE_CACHE", "1")
    tuned(224)
    before = {file: file.stat().st_ino for file in (tmp_path / "atune" / "artifacts" / "codes").iterdir()}
    tuned(224)
    assert before == {file: file.stat().st_ino for file in before}, "nothing was compiled and kept again"
    assert len(before) == 2
    assert ResultCache(tmp_path / "atune").entries() == []


def test_a_disabled_cache_keeps_nothing_of_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "atune"))
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    found = tuned(160)
    assert codes(tmp_path / "atune") == set() and ResultCache(tmp_path / "atune").entries() == []
    A = torch.randn(160)
    assert torch.equal(found.kernel(A), A * 2)


# ---- backends and host targets


@pytest.mark.parametrize("host", ["c", {"kind": "c"}, tilelang.tvm.target.Target("c")], ids=["text", "dict", "target"])
def test_a_host_target_is_handed_to_the_engine_as_a_text(host: Any) -> None:
    asked = plan(CompileArgs(target="sm_90a", target_host=host), ProfileArgs(), {})["run"]["compile"].target_host
    assert asked is not None and tilelang.tvm.target.Target(asked).kind.name == "c"


def test_a_host_target_reaches_the_candidates() -> None:
    assert tuned(64, target_host={"kind": "c"}).tuning.measured == 2
    with pytest.raises(UsageError, match="target_host must be a target such as 'c' or 'llvm', got 'no_such_host'"):
        tuned(64, target_host="no_such_host")


def test_what_tilelang_compiles_itself_gets_backend_and_host_target(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled(Exception):
        pass

    def compiles(function: Any, **options: Any) -> Any:
        raise Compiled(options["execution_backend"], options["target_host"])

    jit = tilelang.jit(target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="nvrtc", target_host="c")
    kernel = autotune(configs=[{"blocks": 1}])(jit(few_blocks))
    monkeypatch.setattr(tilelang, "compile", compiles)
    counts, nothing = (
        pytest.warns(CompatWarning, match=message) for message in ("counts for as_tilelang", "nothing is tuned")
    )
    with counts, nothing, pytest.raises(Compiled) as asked:
        kernel(1 << 10, 2.0, blocks=4)
    assert asked.value.args == ("nvrtc", "c")

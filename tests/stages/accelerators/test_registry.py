"""Which accelerators are used: by settings, by environment, and by what they find here; and off means off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import wrong_accelerators
from stage_runs import session_of

from atune.errors import UsageError
from atune.model.device import Target
from atune.model.settings import ACCELERATE, ACCELERATORS, CompileSettings
from atune.stages.accelerators import registry
from atune.stages.accelerators.registry import Accelerator, Host
from atune.stages.compile.codegen import build
from atune.stages.compile.lowering import lower
from atune.workload.workload import FileRef

HOPPER = Host("cuda", "sm_90a", "0.1.15", "/usr/bin/gcc")
KERNELS = Path(__file__).parents[2] / "accelerated_kernels.py"
SPY, NEWER = "wrong_accelerators:Spy", "wrong_accelerators:NewerSpy"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def names_of(active: tuple[str, ...]) -> list[str]:
    return [one.partition("@")[0] for one in active]


def test_the_settings_and_the_registry_have_the_same_names() -> None:
    assert set(registry._PLACES) == set(ACCELERATORS)
    for name in ACCELERATORS:
        assert registry.named(name).name == name and registry.named(name).version >= 1


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("auto", list(ACCELERATORS)),
        ("off", []),
        ("cicc", ["cicc"]),
        ("auto,-cicc", [name for name in ACCELERATORS if name != "cicc"]),
    ],
)
def test_settings_switch_all_or_each(text: str, used: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ACCELERATE, raising=False)
    active, unused = registry.chosen(CompileSettings(accelerate=text).acceleration, HOPPER)
    assert names_of(active) == used
    assert unused == {name: "it is switched off" for name in ACCELERATORS if name not in used}


def test_the_environment_decides_in_place_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACCELERATE, "off")
    assert not CompileSettings().acceleration.may("cicc")
    assert CompileSettings(accelerate="cicc").acceleration.may("cicc")
    monkeypatch.setenv(ACCELERATE, "ciccc")
    with pytest.raises(UsageError, match="ATUNE_ACCELERATE 'ciccc': use auto, off, names from"):
        _ = CompileSettings().acceleration


@pytest.mark.parametrize("name", ACCELERATORS)
def test_another_tilelang_and_the_cpu_are_left_alone(name: str) -> None:
    accelerator = registry.named(name)
    assert accelerator.applies(HOPPER) == ""
    for version in ("0.2.0", "0.1.14"):
        host = Host("cuda", "sm_90a", version, "/usr/bin/gcc")
        assert f"tilelang {version} is not known" in accelerator.applies(host)
    assert "it is for CUDA" in accelerator.applies(Host("c", "", "0.1.15", "/usr/bin/gcc"))
    without = accelerator.applies(Host("cuda", "sm_90a", "0.1.15", ""))
    assert ("gcc is missing" in without) == (name == "cicc")


def test_a_library_is_plain_unless_an_accelerator_wraps_its_build() -> None:
    assert registry.compose(()).plain_builds and registry.compose(("swizzle_lowering",)).plain_builds
    assert not registry.compose(ACCELERATORS).plain_builds and not registry.compose((SPY,)).plain_builds


@needs_nvcc
def test_off_asks_none_and_a_name_asks_one_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every accelerator that there is notes each call while nothing but the plain steps is asked for."""
    asked = list[str]()
    for name in ACCELERATORS:
        for step in ("lower", "compile"):

            def note(self: Accelerator, job: object, plain: object, name: str = name) -> object:
                asked.append(name)
                return plain(job)  # type: ignore[operator]

            monkeypatch.setattr(type(registry.named(name)), step, note)
    ref = FileRef(str(KERNELS), "PLUS")
    with session_of(ref, tmp_path) as candidates:
        for names in ((), (SPY,)):
            wrong_accelerators.CALLS.clear()
            composed = registry.compose(names)
            build([lower(one, composed) for one in candidates], str(tmp_path / "group.so"), composed)
            wanted = ["lower"] * len(candidates) + ["compile"]
            assert (wanted if names else []) == wrong_accelerators.CALLS
        assert asked == []
        composed = registry.compose(ACCELERATORS)
        build([lower(one, composed) for one in candidates], str(tmp_path / "group.so"), composed)
        assert set(asked) == set(ACCELERATORS)


def test_a_bumped_version_is_another_key(tmp_path: Path) -> None:
    """So that an accelerator's bug does not outlive its fix in the artifact store."""
    with session_of(FileRef(str(KERNELS), "PLUS"), tmp_path, Target("c")) as (candidate, *_):
        bare, first, fixed = (lower(candidate, registry.compose(names)) for names in ((), (SPY,), (NEWER,)))
    assert len({bare.store_key, first.store_key, fixed.store_key}) == 3
    assert (
        bare.code_key == first.code_key == fixed.code_key
    )  # it is the same code, for duplicates and for a resumed run
    assert len({bare.ir_key, first.ir_key, fixed.ir_key}) == 3

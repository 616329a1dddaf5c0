"""What TileLang's pull request 1906 promises of `autotune`: kernels in eager style, `compile`, and kept results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import tilelang
import tilelang.language as T
import torch
from decorated import scale, shift
from drop_in_tuners import BLOCKS, ON_CPU, cpu_tuner, lazy, saved_by_tilelang
from guide_kernels import doubled
from tilelang.autotuner.param import AutotuneResult as Theirs
from tilelang.autotuner.param import CompileArgs as TheirArgs

import atune
import atune.compat.tilelang as compat
from atune.compat.tilelang import AutotuneResult, CompileArgs, set_autotune_inputs
from atune.errors import UsageError, WorkloadError
from atune.frontends import winners
from atune.frontends.cli.main import main

pytestmark = pytest.mark.timeout(170)
QUICK = {"warmup": 1, "rep": 5}
TENSORS = (("tensor", "torch.float32", (64,), (1,)),), ()


@tilelang.jit(target="c", execution_backend="cython")
def twice(A, B, block: int = 16):
    n = T.dynamic("n")
    A: T.Tensor[[n], T.float32]
    B: T.Tensor[[n], T.float32]
    with T.Kernel(T.ceildiv(n, block)) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] * 2.0


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """`tilelang.autotune` is atune's, for all tests here."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture(scope="module")
def tuned() -> SimpleNamespace:
    """An eager and a lazy kernel, each called for 64 numbers, and the arguments that their configurations got."""
    asked: list[Any] = []

    def configs(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        asked.append((args, kwargs))
        return BLOCKS

    eager, made, A = tilelang.autotune(configs=configs, **QUICK)(shift), lazy(configs), torch.randn(64)
    return SimpleNamespace(eager=eager, lazy=made, A=A, out=eager(A), kernel=made(64), asked=asked)


def test_e1_a_kernel_in_eager_style_is_tuned_by_its_first_call(tuned: SimpleNamespace) -> None:
    """The first call of an eager kernel tunes the kernel. The first and all later calls return the outputs."""
    assert torch.equal(tuned.out, tuned.A + 1)
    known = len(tuned.eager.results)
    assert torch.equal(tuned.eager(torch.ones(64)), torch.full((64,), 2.0)) and len(tuned.eager.results) == known


def test_e2_compile_gives_the_tuned_kernel(tuned: SimpleNamespace) -> None:
    """`compile` takes sizes or tensors, tunes for them, and returns the tuned kernel without running it."""
    kernel, A = tuned.eager.compile(n=128, by=4), torch.randn(128)
    assert isinstance(kernel, tilelang.JITKernel) and torch.equal(kernel(A), A + 4)
    assert torch.equal(tuned.eager.compile(tuned.A)(tuned.A), tuned.out)


def test_e3_a_call_may_ask_for_the_kernel(tuned: SimpleNamespace) -> None:
    """A lazy kernel returns the compiled kernel. An eager kernel returns the compiled kernel only on request."""
    assert isinstance(tuned.kernel, tilelang.JITKernel) and torch.equal(tuned.kernel(tuned.A), tuned.A * 2)
    assert tuned.lazy(64, __return_kernel=True) is tuned.kernel is tuned.lazy(64, __return_kernel=False)
    found = tuned.eager(tuned.A, __return_kernel=True)
    assert isinstance(found, tilelang.JITKernel) and tuned.eager.compile(tuned.A) is found


def test_e4_symbolic_dimensions_are_tuned_on_both_paths() -> None:
    """A kernel with a symbolic dimension is tuned by a call or by `compile`. The tuned kernel takes other sizes."""
    in_place, named = (tilelang.autotune(configs=BLOCKS, **QUICK)(kernel) for kernel in (twice, shift))
    A, B, longer, out = torch.randn(64), torch.zeros(64), torch.randn(96), torch.zeros(96)
    with set_autotune_inputs([A, B]):
        in_place(A, B)
        in_place.compile(A, B)(longer, out)
    with set_autotune_inputs([A]):
        kernel = named.compile(n=T.dynamic("n"))
    assert torch.equal(B, A * 2) and torch.equal(out, longer * 2) and torch.equal(kernel(longer), longer + 1)


def test_e5_a_kernel_is_kept_with_its_configuration(tuned: SimpleNamespace) -> None:
    """The cache of a tuned function keeps each kernel together with the configuration chosen for it."""
    assert tuned.lazy._tuner_cache[((64,), ())] == (tuned.kernel, tuned.kernel.config) and tuned.kernel.config in BLOCKS
    found = tuned.eager.compile(tuned.A)
    assert tuned.eager._tuner_cache[TENSORS] == (found, found.config)


def test_e6_a_saved_result_keeps_its_outputs(tmp_path: Path) -> None:
    """A saved result's `out_idx.json` tells TileLang and atune which outputs the loaded kernel returns."""
    A, folder = torch.randn(64), tmp_path / "ours"
    cpu_tuner(ref_prog=doubled).run().save_to_disk(folder)
    saved = json.loads((folder / "out_idx.json").read_text())
    assert saved == {"out_idx": [1], "target": "c", "execution_backend": "cython"}
    theirs = Theirs.load_from_disk(folder, TheirArgs(target="c", execution_backend="cython"))
    ours = AutotuneResult.load_from_disk(folder, CompileArgs())
    assert ours is not None and torch.equal(ours.kernel(A), A * 2) and torch.equal(theirs.kernel(A), A * 2)


def test_e7_a_result_without_that_file_is_loaded(tmp_path: Path) -> None:
    """Results that an older TileLang saved without `out_idx.json` can be loaded if the caller names the outputs."""
    saved_by_tilelang(tmp_path)
    (tmp_path / "out_idx.json").unlink()
    A, found = torch.randn(64), AutotuneResult.load_from_disk(str(tmp_path), dataclasses.replace(ON_CPU, out_idx=[-1]))
    assert found is not None and torch.equal(found.kernel(A), A * 2)


def test_e8_arguments_may_be_written_in_any_form(tuned: SimpleNamespace) -> None:
    """Equal calls have the same key, however they are written. Dtype, shape and strides of tensors are in the key."""
    assert tuned.lazy(n=64) is tuned.kernel is tuned.lazy(64, factor=2.0)
    assert next(iter(tuned.eager._tuner_cache)) == TENSORS


def test_e9_configurations_are_asked_for_with_each_calls_own_arguments(tuned: SimpleNamespace) -> None:
    """A function that returns configurations gets the call's arguments, and is called again for other arguments."""
    [first, *_] = tuned.asked
    assert first[0][0] is tuned.A and first[1] == {}
    tuned.lazy.call_of((32,), {})
    assert tuned.asked[-1] == ((32,), {}) and callable(tuned.lazy.configs)

    def space(*args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        tuned.asked.append((args, kwargs))
        yield from ({"block": b} for b in (16, 32) if b <= args[0].shape[0])

    own = atune.autotune(shift, space=space)
    assert [len(own.call_of((A,), {"by": 2}).space.listed) for A in (tuned.A[:16], tuned.A)] == [1, 2]
    assert tuned.asked[-1][0][0] is tuned.A and tuned.asked[-1][1] == {"by": 2}


def test_e10_another_program_finds_what_was_tuned(tuned: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are kept on disk, so another program that decorates the same kernel tunes nothing."""
    monkeypatch.setattr(winners, "tune_work", None)  # nothing may be tuned
    again = tilelang.autotune(configs=BLOCKS, **QUICK)(shift)
    assert torch.equal(again(tuned.A), tuned.out) and again.compile(tuned.A).config in BLOCKS


def test_e11_the_configurations_count_in_the_key(tuned: SimpleNamespace) -> None:
    """A result's key includes the configurations, whether a list or a function gives them."""
    same, other = (tilelang.autotune(configs=one, **QUICK)(shift) for one in (BLOCKS, BLOCKS[:1]))
    own, listed, fewer = (one.call_of((tuned.A,), {}).tuned.work.key for one in (tuned.eager, same, other))
    assert own == listed and own.space != fewer.space


def test_e12_given_tensors_are_tuned_on(tuned: SimpleNamespace) -> None:
    """Inside `set_autotune_inputs`, an eager kernel is checked and timed on the given tensors."""
    kernel = tilelang.autotune(configs=BLOCKS, ref_prog=lambda A: A + A.unique(), **QUICK)(shift)
    with set_autotune_inputs(torch.ones(64)):
        assert torch.equal(kernel(tuned.A), tuned.out)
    assert [result.tuning.failed for result in kernel.results.values()] == [0]


def test_e13_every_door_takes_a_decorated_kernel_or_says_what_to_give(tmp_path: Path, capsys: Any) -> None:
    """The command line takes a tuned kernel by file and name. For other functions, an error says what to pass."""
    file = tmp_path / "kernel.py"
    file.write_text("import atune\nfrom decorated import shift\nK = atune.autotune(shift, space={'block': [16, 32]})\n")
    command = [f"{file}:K", "--arg", "n=64", "--target", "c", "--json"]
    for options, config in (([], {}), (["--config", "block=32", "--source"], {"block": 32})):
        assert main(["explain", *command, *options]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["config"] == config and told["target"] == "c" and (not config or "kernel" in told["source"])
    assert main(["tune", *command, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["candidates"] == 2
    kernel = atune.autotune(scale, space={"block": [16, 32]})
    configs, sizes = [{"block": 16}], [{"n": 64}]
    why = r"a decorated kernel; call it, .* For a Workload, pass its \.kernel"
    for door in (atune.Workload, atune.compile_all):
        with pytest.raises(WorkloadError, match=f"^Workload: the kernel is {why}"):
            door(kernel, configs)
    for door in (atune.Tuner, atune.run, lambda it: atune.run_set(it, sizes), lambda it: anyio.run(atune.tune, it)):
        with pytest.raises(UsageError, match=f"^workload: this is {why}"):
            door(kernel)
    assert atune.Workload(kernel.kernel, {"block": [16]}).name == "scale"


def test_e14_a_cleared_cache_has_the_next_call_ask_again(tuned: SimpleNamespace) -> None:
    """A tuned function's cache can be cleared as in TileLang. The next call then looks the kernel up again."""
    known = len(tuned.asked)
    tuned.eager._tuner_cache.clear()
    assert len(tuned.eager._tuner_cache) == 0
    tuned.eager(tuned.A)
    assert len(tuned.asked) == known + 1 and [*tuned.eager._tuner_cache] == [TENSORS]

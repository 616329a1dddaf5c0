"""What an output is, and that what was checked is what is handed out: every kind of kernel, through every door."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import output_kernels as kernels
import pytest
import tilelang
import torch
from output_kernels import ROWS, N

import atune
import atune.bundle
from atune.errors import NoWinner, UsageError, WorkloadError
from atune.model.artifact import Roles
from atune.model.settings import BenchmarkSettings

BLOCKS = {"block": [8, 16]}
FEW = BenchmarkSettings(n_repeat=3, n_final=0)
HALVES: list[dict[str, int]] = [{"low": 0, "high": N // 2}, {"low": N // 2, "high": N}]
WHOLE = {"low": 0, "high": N}


def tuned(kernel: Any, space: Any = BLOCKS, **options: Any) -> atune.TuneResult:
    workload = atune.Workload(kernel, space, **options)
    return atune.run(workload, target="c", benchmark=FEW, progress=False, cached=False)


def decorated(kernel: Any, space: Any = BLOCKS, **options: Any) -> Any:
    return atune.autotune(kernel, space=space, target="c", tuning="quick", cache=False, **options)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


# What is an output


@pytest.mark.parametrize("reference", [None, lambda X: (torch.full((N,), -1, dtype=torch.int8), X > 0)])
def test_what_looks_like_poison_may_be_written(reference: Any) -> None:
    """-1 of eight bits, and any bool."""
    result, X = tuned(kernels.signs, reference=reference), drawn(N)
    M, P = result.kernel(X)
    assert result.roles == Roles((1, 2)) and result.failed == 0
    assert (M == -1).all() and torch.equal(P, X > 0)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("reference", [None, lambda X: X.clone()])
def test_an_output_of_which_something_was_not_written_is_a_failure(dtype: str, reference: Any) -> None:
    """Halves look right together: what one leaves there, the other was given."""
    inputs = [torch.full((N,), -1).to(getattr(torch, dtype))]  # all bits ones, in an integer
    options = {"arguments": {"dtype": dtype}, "reference": reference, "inputs": inputs}
    with pytest.raises(NoWinner, match="32 of 64 elements were not written"):
        tuned(kernels.partly, HALVES, default=HALVES[0], **options)
    result = tuned(kernels.partly, [*HALVES, WHOLE], **options)
    assert result.best_config == WHOLE and {failure.kind for failure in result.failures} == {"unwritten"}


def test_what_may_stay_as_it_is_is_an_input_or_begins_as_zeros() -> None:
    options: dict[str, Any] = {"arguments": {"dtype": "float32"}, "default": HALVES[0]}
    assert tuned(kernels.partly, HALVES[:1], restore=[1], **options).roles == Roles(writes=(1,))
    result, X = tuned(kernels.partly, HALVES[:1], zero=[1], **options), drawn(N)
    assert torch.equal(result.kernel(X), torch.cat([X[: N // 2], torch.zeros(N // 2)]))


def test_no_tensor_that_the_kernel_reads_is_overwritten() -> None:
    """Its length is that of its last tensor: over none of its elements, both modes would be as fast."""
    kernel, X, L = decorated(kernels.walked, {"mode": [0, 1]}, inputs="call"), drawn(2000), torch.tensor([2000])
    result = kernel.tune(X, L.to(torch.int32))
    slow, fast = (next(r.latency_ms for r in result.records if r.config["mode"] == mode) for mode in (0, 1))
    assert result.best_config == {"mode": 1} and slow > 3 * fast and result.roles == Roles(writes=(0,))


def write(X: torch.Tensor, P: torch.Tensor) -> None:
    X.mul_(P[:, None])


IN_PLACE: dict[str, Callable[..., Any]] = {
    "returns what it wrote into": lambda X, P: X.mul_(P[:, None]),
    "writes": write,
    "returns": lambda X, P: X * P[:, None],
}


@pytest.mark.parametrize("out_idx", [None, []])
@pytest.mark.parametrize("way", IN_PLACE)
def test_every_way_to_write_the_reference_of_a_kernel_in_place(way: str, out_idx: Any) -> None:
    kernel = decorated(kernels.scaled_rows, {"block": [16, 32]}, reference=IN_PLACE[way], out_idx=out_idx)
    X, P = drawn(ROWS, N), drawn(ROWS)
    wanted = X * P[:, None]
    kernel(X, P)
    assert torch.equal(X, wanted)
    wrong = decorated(kernels.scaled_rows, {"block": [16]}, reference=lambda X, P: X * P[:, None] + 1, out_idx=out_idx)
    with pytest.raises(NoWinner, match=r"parameter 0: .* elements differ"):
        wrong(X, P)


@pytest.mark.parametrize("returned", [True, False])
def test_a_reference_that_changes_an_input_that_the_kernel_only_reads_is_at_fault(returned: bool) -> None:
    def reference(X: torch.Tensor, P: torch.Tensor) -> torch.Tensor | None:
        P.add_(1)
        X.mul_(P[:, None])
        return X if returned else None

    kernel = decorated(kernels.scaled_rows, {"block": [16, 32]}, reference=reference)
    said = r"reference changed its input parameter 1, which the kernel does not write\. Let .* copy"
    with pytest.raises(WorkloadError, match=said):
        kernel(drawn(ROWS, N), drawn(ROWS))


@pytest.mark.parametrize("checked", [True, False])
def test_a_reference_may_change_inputs_that_nobody_compares(checked: bool) -> None:
    def reference(X: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
        P.add_(1)
        return X * P[:, None]

    judge: dict[str, Any] = {"check": lambda given, expected: True} if checked else {}
    tuning = {"n_repeat": 3, "n_final": 0, "check": checked}
    options: dict[str, Any] = {"target": "c", "cache": False, "tuning": tuning, "reference": reference, **judge}
    X, P = drawn(ROWS, N), drawn(ROWS)
    scaled = X * P[:, None]
    atune.autotune(kernels.scaled_rows, space={"block": [16, 32]}, **options)(X, P)
    torch.testing.assert_close(X, scaled)


def test_a_reference_may_begin_with_what_the_kernel_adds_to() -> None:
    assert tuned(kernels.added, reference=lambda X, S: S + X.sum(0)).roles == Roles(writes=(1,))


# Parameters that differ by configuration

SPLIT: list[dict[str, Any]] = [{"parts": 1}, {"parts": 2}, {"parts": 3, "first": True}]


def doubled_input(*inputs: torch.Tensor) -> torch.Tensor:
    return 2 * next(one for one in inputs if one.dim() == 1)


@pytest.mark.parametrize("default", SPLIT)
@pytest.mark.parametrize("named", [{}, {"out_idx": -1}, {"zero": [-1]}])
def test_roles_are_those_of_each_configurations_own_parameters(named: dict[str, Any], default: dict[str, Any]) -> None:
    result = tuned(kernels.split, SPLIT, reference=doubled_input, default=default, **named)
    assert [one.message for one in result.all_records if one.status != "measured"] == []


def test_a_kernel_takes_the_parameters_of_its_configuration_and_makes_its_outputs() -> None:
    X = drawn(N)
    compiled = atune.compile_all(kernels.split, SPLIT, target="c", out_idx=-1)
    unnamed = atune.compile_all(kernels.split, SPLIT, target="c")
    for i, given in enumerate(([X], [X, drawn(2, N)], [drawn(3, N), X])):
        kernel = decorated(kernels.split, SPLIT[i : i + 1], default=SPLIT[i], reference=doubled_input, out_idx=[-1])()
        for call in (kernel, compiled[i], unnamed[i], kernel.as_tilelang()):
            assert torch.equal(call(*given), 2 * X)


def test_another_size_of_a_key_may_have_other_parameters() -> None:
    X, kernel = drawn(N), decorated(kernels.split_by_size, {"block": [1, 2]}, key=lambda size: "all", out_idx=-1)
    for size, given in ((N, [X]), (N // 2, [X, drawn(2, N)])):
        assert torch.equal(kernel(size)(*given), 2 * X)


def test_roles_follow_a_winner_of_other_parameters(tmp_path: Path) -> None:
    """In the result, its replay, its bundle and the decorated kernel, where the default has other ones; and in the
    artifact store, where an earlier run named other outputs."""
    slow: list[dict[str, Any]] = [{"parts": 200, "first": True}, {"parts": 1}]
    for options in ({"out_idx": [0, -1]}, {}, {"out_idx": -1}):
        reference = doubled_input if options != {"out_idx": [0, -1]} else None
        for space in (slow, slow[::-1]):
            rest: dict[str, Any] = {"reference": reference, "default": slow[0], **options}
            with suppress(NoWinner):  # where it names its input
                result = tuned(kernels.split, space, **rest)
    X = drawn(N)
    result.save_bundle(tmp_path / "bundle")
    assert result.best_config == slow[1] and result.roles == Roles((1,)) and result.journal is not None
    kernel = decorated(kernels.split, slow, reference=doubled_input, out_idx=-1, default=slow[0])
    calls = result.kernel, atune.replay(result.journal).kernel, atune.bundle.load(tmp_path / "bundle"), kernel()
    assert all(torch.equal(call(X), 2 * X) for call in calls)


def test_outputs_may_stand_elsewhere_and_may_not_be_left_out() -> None:
    result = tuned(kernels.split, [{"parts": 1}, {"swapped": True}], reference=lambda X: 2 * X)
    assert not result.failures and result.measured == 2
    for reference in (None, lambda A: A.clone()):
        result = tuned(kernels.lazy, {"writes": [True, False]}, reference=reference)
        assert [one.kind for one in result.failures] == ["unwritten"] and result.best_config == {"writes": True}


# What is handed out


def right(call: Callable[..., Any], *, given: bool = False) -> None:
    """Call three times, among dirty memory: each sum begins with zeros, which are the caller's where it gives them."""
    X, dirty = drawn(ROWS, N), [torch.full((N,), 7.0) for _ in range(20)]
    del dirty
    for _ in range(3):
        S = torch.zeros(N)
        found = call(X, S) if given else call(X)
        torch.testing.assert_close(S if given else found, X.sum(0))


@pytest.mark.parametrize("options", [{"zero": [1]}, {"zero": [1], "out_idx": -1}])
def test_a_result_adds_to_zeros_as_its_check_did(options: Any, tmp_path: Path) -> None:
    result = tuned(kernels.added, reference=lambda X: X.sum(0), **options)
    assert result.roles == Roles((1,), (1,))
    right(result.kernel), right(result.kernel, given=True)
    right(result.kernel.as_op(f"atune_tests::added{len(options)}"))
    assert result.journal is not None
    right(atune.replay(result.journal).kernel)
    result.save_bundle(tmp_path / "bundle")
    bundle = atune.bundle.load(tmp_path / "bundle")
    right(bundle), right(bundle, given=True)


@pytest.mark.parametrize("jit", [False, True])
def test_a_decorated_kernel_adds_to_zeros_as_its_check_did(jit: bool) -> None:
    function = tilelang.jit(kernels.added, out_idx=[-1], target="c") if jit else kernels.added
    kernel = decorated(function, zero=[1], reference=lambda X: X.sum(0))
    for made in (kernel(), kernel.compile(), kernel().as_tilelang(), kernel().as_op(f"atune_tests::lazily{jit}")):
        right(made)
    right(kernel(), given=True)
    right(decorated(function, zero=[1], on_miss="default")())  # nothing was tuned


@pytest.mark.parametrize("jit", [False, True])
def test_a_plain_function_is_handed_out_with_the_outputs_that_it_was_tuned_with(jit: bool) -> None:
    """Also in place of a `@tilelang.jit` kernel without outputs; there, every parameter may be given, too."""
    function = tilelang.jit(kernels.doubled, target="c") if jit else kernels.doubled
    kernel, X, Y = decorated(function, reference=lambda X: X * 2), drawn(N), torch.zeros(N)
    made = kernel()
    for call in (made, kernel.compile(), kernel.tune().kernel, made.as_op(f"atune_tests::doubled{jit}")):
        assert torch.equal(call(X), X * 2)
    made(Y, X)
    assert torch.equal(Y, X * 2)


def test_an_input_that_is_set_to_zero_is_so_in_every_call(tmp_path: Path) -> None:
    options: dict[str, Any] = {"zero": [1], "out_idx": 2, "reference": lambda X, W: X + W}
    result, kernel, X = tuned(kernels.counted, **options), decorated(kernels.counted, **options), drawn(N)
    result.save_bundle(tmp_path / "bundle")
    ops = result.kernel.as_op("atune_tests::counted"), kernel().as_op("atune_tests::counted_too")
    for call in (result.kernel, atune.bundle.load(tmp_path / "bundle"), kernel(), kernel().as_tilelang(), *ops):
        W = torch.tensor([5], dtype=torch.int32)
        assert all(torch.equal(call(X, W), X) for _ in range(2)) and W.item() in (8, 16)


def test_what_setup_changed_is_not_handed_out(tmp_path: Path) -> None:
    """A result that is read again refuses, too. A setup that changes nothing is no reason."""

    def begin(X: torch.Tensor, W: torch.Tensor) -> None:
        W.zero_()

    options: dict[str, Any] = {"setup": begin, "reference": lambda X, W: X + W}
    result, kernel = tuned(kernels.counted, **options), decorated(kernels.counted, **options)
    assert result.roles == Roles((2,), writes=(1,), set_up=(1,)) and result.journal is not None
    for door in (
        lambda: result.kernel,
        lambda: atune.replay(result.journal).kernel,
        lambda: result.save_bundle(tmp_path / "bundle"),
        kernel,
        kernel.compile,
    ):
        with pytest.raises(UsageError, match="setup changed input 1 before the kernel was checked"):
            door()
    W = torch.zeros(1, dtype=torch.int32)
    harmless = tuned(kernels.counted, **{**options, "setup": lambda X, W: None}, inputs=[drawn(N), W])
    assert harmless.kernel(drawn(N), W).shape == (N,)

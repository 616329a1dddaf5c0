"""`atune.pick` and `atune pick`: the prior's choices, of what can run, without a GPU and without a compiler."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atune
from atune.errors import UsageError
from atune.frontends.cli.main import main

TESTS = Path(__file__).parents[1]
KERNELS = f"{TESTS / 'work_kernels.py'}"


@pytest.fixture(scope="module", autouse=True)
def without_a_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have no compiler be found; in one environment, so that the tests' runs share a fork server."""
    empty = str(tmp_path_factory.mktemp("empty"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", empty)
        patch.setenv("CUDA_HOME", empty)
        yield


def configs(found: Any) -> list[dict[str, Any]]:
    return [choice.config for choice in found.choices]


def test_choices_come_by_their_estimate_without_what_cannot_run() -> None:
    found = atune.pick(f"{KERNELS}:PICKED", n=9, gpu="H100")
    assert (found.gpu, found.candidates, found.unfit, found.why) == ("H100", 6, 3, "")
    assert {(one["block_M"], one["num_stages"]) for one in configs(found)} == {(64, 0), (64, 3), (256, 0)}
    estimates = [choice.estimate_ms for choice in found.choices]
    assert all(estimates) and estimates == sorted(estimates)
    assert configs(atune.pick(f"{KERNELS}:PICKED", gpu="H100", n=1)) == configs(found)[:1]


def test_a_board_with_less_shared_memory_takes_less() -> None:
    found = {gpu: atune.pick(f"{KERNELS}:PICKED", n=9, gpu=gpu).unfit for gpu in ("h100-pcie", "rtx4090")}
    assert found["h100-pcie"] < found["rtx4090"]


@pytest.mark.parametrize(("of", "gpu", "why"), [("BY_VALUE", "A100", "cannot read"), ("PICKED", None, "knows nothing")])
def test_where_the_prior_knows_nothing_it_says_so_and_picks_the_default(of: str, gpu: str | None, why: str) -> None:
    found = atune.pick(f"{KERNELS}:{of}", gpu=gpu)
    assert why in found.why and found.choices[0].estimate_ms is None
    assert configs(found) == [{"BY_VALUE": {"tile": 128}, "PICKED": {"block_M": 64, "num_stages": 2}}[of]]


def test_what_no_board_can_run_and_what_raises_are_errors() -> None:
    with pytest.raises(UsageError, match="none of 2 candidates can run on RTX 4090"):
        atune.pick(f"{KERNELS}:TOO_LARGE", gpu="RTX 4090")
    with pytest.raises(UsageError, match="none of 2 candidates can run on H100: ValueError: no such tile: 96"):
        atune.pick(f"{KERNELS}:RAISING", gpu="H100")
    with pytest.raises(UsageError, match=r"gpu 'H1000' is not known; known are H200, .* \(did you mean 'H100'\?\)"):
        atune.pick(f"{KERNELS}:PICKED", gpu="H1000")
    with pytest.raises(UsageError, match="this device, and there is no default: tile has no default value"):
        atune.pick(atune.Workload(lambda N, tile: None, {"tile": [8]}, arguments={"N": 8}))
    with pytest.raises(UsageError, match="no configuration satisfies the constraints"):
        empty = atune.Space(tile=[8], where=lambda tile: tile > 8)
        atune.pick(atune.Workload(lambda N, tile: None, empty, arguments={"N": 8}), gpu="H100")
    with pytest.raises(UsageError, match="n must be"):
        atune.pick(f"{KERNELS}:PICKED", n=0, gpu="H100")


HANGING = """
import atune
import work_kernels as kernels

def kernel(block_M, num_stages=2):
    while block_M >= {least}:
        pass
    return kernels.picked(block_M, num_stages=num_stages)

W = atune.Workload(kernel, kernels.PICKED.space)
"""


def test_a_kernel_function_that_hangs_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atune.frontends.pick.PATIENCE_S", 8.0)
    for least in (1, 256):
        (tmp_path / f"w{least}.py").write_text(HANGING.format(least=least))
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"in 9 s the kernel function did not return for 6 of 6 .*--compile-timeout"):
        atune.pick(f"{tmp_path}/w1.py:W", gpu="H100")
    assert time.monotonic() - began < 60
    assert main(["pick", f"{tmp_path}/w256.py:W", "--gpu", "H100", "-n", "9"]) == 0
    printed = capsys.readouterr().out
    assert "did not answer in time" in printed and "block_M=64" in printed and "block_M=256" not in printed


def test_the_command_prints_what_python_returns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["choices"]) == 2 and found["unfit"] == 3 and found["gpu"] == "H100"
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("space      6 candidates, 3 of which cannot run;") and "choice 2   about" in lines[-1]
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "--arg", "M=1,2"]) == 2


def test_it_says_how_many_others_may_be_as_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atune.engine.prior.ERROR", 99.0)
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "-n", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alike"] == 2
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "-n", "2"]) == 0
    assert "2 others are as good within its error, 5%: tune --budget 5%" in capsys.readouterr().out
    assert main(["pick", f"{KERNELS}:PICKED", "--gpu", "H100", "-n", "3"]) == 0
    assert "as good" not in capsys.readouterr().out

"""A default outside of the space, at every door: where it is all that works, and where a constraint refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import default_kernels
import pytest
from decorated import QUICK, TUNING
from default_kernels import ALONE, ALONE_REFUSED, LISTED, REFUSED, TIMES, alone_jit, doubled, more, repeated_jit

import atune
from atune.compat.tilelang import autotune as drop_in
from atune.errors import CacheMiss, NoWinner, UsageError
from atune.frontends.cli.main import main
from atune.results import save_bundle

FILE = default_kernels.__file__
TOLD = "nothing in the space worked, but your default did: times=1 ("
WHY = f"; the constraint more (default_kernels.py, line {more.__code__.co_firstlineno}) refuses it"
SHORT: dict[str, Any] = {"target": "c", "benchmark": QUICK}


def decorated(kernel: Any, where: Any = (), **options: Any) -> Any:
    return atune.autotune(
        kernel, **{"space": atune.Space(TIMES, where=where), "tuning": TUNING, "reference": doubled, **options}
    )


DOORS: dict[str, Callable[[atune.Workload], Any]] = {
    "run": lambda work: atune.run(work, **SHORT),
    "cached": lambda work: atune.run(work, cached=True, **SHORT),
    "a set": lambda work: atune.run_set(work, [{"n": 256}], **SHORT),
    "a decorated kernel's call": lambda work: decorated(alone_jit, work.space.where)(256),
    "a decorated kernel's tune": lambda work: decorated(alone_jit, work.space.where).tune(256),
    "a decorated kernel's best_config": lambda work: decorated(alone_jit, work.space.where).best_config(256),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("workload", "why"), [(ALONE, ""), (ALONE_REFUSED, WHY)])
def test_where_the_default_alone_works_no_door_returns_it(door: str, workload: atune.Workload, why: str) -> None:
    for _ in range(2):  # the second call knows what the first one measured
        with pytest.raises(NoWinner) as raised:
            DOORS[door](workload)
        assert TOLD in str(raised.value) and f"ms){why}" in str(raised.value)
        result = raised.value.result
        assert result.best_config is None and result.default is not None and result.default.config == {"times": 1}
        with pytest.raises(UsageError, match="has no winner: there is nothing to put into a bundle"):
            save_bundle("bundle", [result])


def test_the_drop_in_raises_what_tilelangs_tuner_raises() -> None:
    kernel = drop_in(configs=[{"times": 40}, {"times": 80}], warmup=1, rep=3, ref_prog=doubled)(alone_jit)
    with pytest.raises(RuntimeError, match=r"Auto-tuning failed: nothing in the space worked, .* times=1 \("):
        kernel(256)


def test_the_drop_in_returns_what_is_listed_and_compares_it_with_the_default() -> None:
    configs = [{"times": 40}, {"times": 80}]
    with pytest.warns(RuntimeWarning, match="the default is chosen if it is listed, else the first configuration"):
        assert drop_in(configs=configs, tuning="pick")(repeated_jit).tune(512).config == {"times": 40}
    found = drop_in(configs=configs, warmup=1, rep=3, ref_prog=doubled)(repeated_jit).tune(256)
    assert found.config == found.kernel.config == {"times": 40}
    assert found.tuning.default.config == {"times": 1} and found.tuning.default_ratio < 1
    assert "The default is not returned: it is outside the space, and configs does not list it" in str(found.tuning)
    passes = {"times": 1, "pass_configs": {"tl.disable_safe_memory_legalize": False}}  # the code of the default
    assert drop_in(configs=[passes], warmup=1, rep=3, ref_prog=doubled)(repeated_jit).tune(256).config == passes


@pytest.mark.parametrize(("name", "why"), [("ALONE", ""), ("ALONE_REFUSED", WHY)])
def test_the_command_line_says_so_first_and_returns_1(name: str, why: str, tmp_path: Path, capsys: Any) -> None:
    journal = str(tmp_path / "j")
    tune = ["tune", f"{FILE}:{name}", "--target", "c", "--rep", "3", "--quiet", "--journal"]
    for command in ([*tune, journal], ["replay", journal], ["resume", journal]):
        assert main(command) == 1
        out = capsys.readouterr().out
        first = out.splitlines()[0]
        assert first.startswith(TOLD) and first.endswith(f"ms){why}") and out.count(TOLD) == 1
        assert "2 failed to lower" in out and "candidates 2: 2 failed" in out
        assert main([*command, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["warnings"] == [first] and found["best_config"] is found["latency_ms"] is None
        assert found["default_ms"] > 0 and found["failed"] == 2
    assert main(["report", journal]) == 0 and "Nothing in the space worked" in Path(f"{journal}.html").read_text()
    assert main(["bundle", journal, "-o", str(tmp_path / "b")]) != 0 and not (tmp_path / "b").exists()


def test_a_set_returns_1_where_one_problem_has_a_default_alone(tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "s")
    tune = ["tune", f"{FILE}:ALONE", "--target", "c", "--rep", "3", "--quiet", "--arg", "n=64,256", "--journal", folder]
    assert main([*tune, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [one["best_config"] for one in problems] == [None, None]
    assert [any(TOLD in text for text in one["warnings"]) for one in problems] == [False, True]
    assert main(["replay", folder]) == 1
    out = capsys.readouterr().out
    assert "0 of 2 have a winner" in out and f"failed     n=256: {TOLD}" in out and out.count(TOLD) == 1


def test_a_refused_default_is_not_served_by_what_was_kept_of_a_space_that_admits_it(tmp_path: Path) -> None:
    """Both spaces have the same configurations, so that their results have the same key."""
    assert atune.run(LISTED, cached=True, **SHORT).best_config == {"times": 1}
    again = atune.run(LISTED, cached=True, **SHORT)
    assert again.cache_hit and again.best_config == {"times": 1}
    refused = atune.run(REFUSED, cached=True, **SHORT)
    assert not refused.cache_hit and refused.best_config == {"times": 40} and not refused.warnings
    kernel = decorated(repeated_jit, cache=tmp_path / "cache")
    assert kernel(256).config == {"times": 1} and decorated(repeated_jit, cache=tmp_path / "cache").tune(256).cache_hit
    same = decorated(repeated_jit, more, cache=tmp_path / "cache")
    assert same.best_config(256, on_miss="tune") == {"times": 40} and same(256).config == {"times": 40}


def test_a_shipped_result_of_a_refused_default_is_not_served(tmp_path: Path) -> None:
    kernel = decorated(repeated_jit, cache=tmp_path / "cache")
    assert kernel.best_config(256) == {"times": 1}
    (tmp_path / "shipped.json").write_bytes(kernel.options.cache.export())
    options: dict[str, Any] = {"cache": False, "shipped": str(tmp_path / "shipped.json")}
    known, same = decorated(repeated_jit, **options), decorated(repeated_jit, more, **options)
    assert known.best_config(256, on_miss="error") == {"times": 1}
    with pytest.raises(CacheMiss):
        same.best_config(256, on_miss="error")

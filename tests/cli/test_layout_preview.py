"""What ``--layouts`` keeps, told by ``--dry-run`` and ``--compile-only``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atune import Space, layout
from atune.engine.run_state import Run
from atune.engine.screen import layout_choice
from atune.frontends.api.compile_all import compiled
from atune.frontends.cli.main import main
from atune.frontends.cli.preview import LayoutRows, layout_lines, layout_rows
from atune.model.artifact import Artifact, Failure, StaticFacts
from atune.model.candidate import Candidate, config_key
from atune.model.layouts import NARROW, REDUNDANT, FragmentFacts, Layouts, LoopFacts
from atune.testing import FakeMachine, Script

EXAMPLES = Path(__file__).parents[2] / "examples"
FACTS = {"compiler": (60, 128), "vector2": (0, 32), "vector8": (0, 128)}


def facts(config: dict[str, Any]) -> StaticFacts:
    redundant, bits = FACTS[config["loop"]]
    loop = LoopFacts((512,), 4 + redundant, redundant=redundant, access_bits=bits)
    return StaticFacts(layouts=Layouts((FragmentFacts("s", "float32", (4,), 4),), (loop,)))


async def chosen(builds: bool) -> tuple[dict[int, Artifact | Failure], tuple[LayoutRows, ...]]:
    machine = FakeMachine(Space(x=[1, 2], loop=layout.loops(2, 8)), Script(facts=facts, fails={5: ("lower", "lower")}))
    async with machine.open():
        spec = await machine.describe()
        candidates = [Candidate(index, config_key(config), config) for index, config in enumerate(spec.configs)]
        layouts, run = layout_choice(spec, {one.index: one for one in candidates}, 1), Run()
        assert layouts is not None
        answers = await compiled(machine, candidates, run, layouts=layouts, builds=builds)
    failures = {index: one for index, one in answers.items() if isinstance(one, Failure)}
    return answers, layout_rows(candidates, run, layouts, failures)


@pytest.mark.anyio
@pytest.mark.parametrize("builds", [True, False])
async def test_each_configuration_says_what_is_kept_and_why_the_rest_is_not(builds: bool) -> None:
    answers, (one, two) = await chosen(builds)
    assert one.config == {"x": 1} and two.config == {"x": 2}
    [kept] = one.kept
    assert (kept.index, kept.layout, kept.registers, kept.access_bits) == (2, {"loop": "vector8"}, 4, 128)
    assert {row.index: (row.instead, row.why) for row in one.passed} == {0: (2, REDUNDANT), 1: (2, NARROW)}
    assert [row.index for row in two.kept] == [4] and [row.index for row in two.invalid] == [5]
    assert [index for index, one in answers.items() if isinstance(one, Artifact)] == ([2, 4] if builds else [])
    text = list(layout_lines([one, two]))
    assert text[0] == "layouts    x=1" and "kept    2: loop='vector8' (0 redundant, 4 registers, 128 bits)" in text[1]


def test_a_dry_run_lowers_and_a_compile_only_builds_what_is_kept(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "rows.py"
    file.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import atune\nfrom atune import layout\nfrom layout_broadcast import scaled\n"
        "WORKLOAD = atune.Workload(scaled, atune.Space(block_rows=[2], threads=[128], loop=layout.loops(2, 8)), "
        "arguments={'rows': 64, 'columns': 1024})\n"
    )
    asked = ("tune", f"{file}:WORKLOAD", "--target", "sm_90a", "--layouts", "1", "--json")
    for how in ("--dry-run", "--compile-only"):
        main([*asked, how])
        found = json.loads(capsys.readouterr().out)
        [row] = found["layouts"]
        assert [one["layout"]["loop"] for one in row["kept"]] == ["vector8"]
        assert {one["layout"]["loop"] for one in row["passed"]} == {"compiler", "vector2"}
    assert (found["compiled"], found["passed"], found["failed"]) == (1, 2, 0)

"""What TileLang's pull request 1559 promises of layouts: the least replication, and a user who sees why."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from contract_kernels import MODES
from fake_runs import finish
from stage_runs import session_of

import atune
from atune import layout
from atune.engine.run_state import Run
from atune.errors import SpaceError
from atune.frontends.cli import preview
from atune.frontends.cli.main import main
from atune.journal.reader import replay
from atune.journal.result import Record
from atune.model import layouts as model
from atune.model.artifact import Lowered, StaticFacts
from atune.model.candidate import numbered
from atune.model.layouts import Alternative, FragmentFacts, Layouts, LayoutSelection, LoopFacts, choose
from atune.reporting.export import facts_of, rows
from atune.reporting.report import card
from atune.reporting.summary import layouts_line, summary_text
from atune.stages.codegen import Blob
from atune.stages.lowering import lower
from atune.testing import FakeMachine, Script
from atune.workload.pickling import FileRef
from atune.workload.source_locations import detail_of, place_of

TESTS = Path(__file__).parents[1]
KERNELS, BROADCAST = TESTS / "layout_kernels.py", TESTS.parent / "examples" / "layout_broadcast.py"
STORED, PAGE = TESTS.parent / "bench" / "results" / "layouts", TESTS.parent / "docs" / "layout.md"


def lowered(folder: Path, file: Path = KERNELS, name: str = "WEIGHTED", **config: Any) -> Lowered:
    """Lower one configuration, by default of the document's kernel, for sm_90a. Raises what tilelang raises."""
    with session_of(FileRef(str(file), name), folder):
        return lower(numbered([config])[0])


def layouts_in(one: Lowered) -> Layouts:
    assert one.facts.layouts is not None
    return one.facts.layouts


def source_of(one: Lowered) -> str:
    return msgspec.msgpack.decode(one.blob, type=Blob).source


def told(found: Layouts) -> list[str]:
    """Return the text that `atune explain` prints about layouts."""
    record = Record(index=0, key="k", config={}, status="measured", facts=StaticFacts(layouts=found))
    return [f"{name}: {text}" for name, text in facts_of(record, "sm_90a")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def inferred(folder: Path) -> Lowered:
    """The document's kernel with the layouts that inference chooses."""
    return lowered(folder)


@pytest.fixture(scope="module")
def replicated(folder: Path) -> Lowered:
    """The document's kernel with a layout in which every thread holds all of B."""
    return lowered(folder, held="replicated")


def test_l1_explain_shows_the_layout_that_inference_chose(inferred: Lowered) -> None:
    """For each fragment and each parallel loop, `atune explain` shows the layout that inference chose."""
    found = layouts_in(inferred)
    assert {one.name: one.replication for one in found.fragments} == {"S_frag": 1, "A_frag": 128, "B_frag": 1}
    assert [(one.slots, one.redundant, one.width, one.uneven) for one in found.loops] == [(4, 0, 4, False)] * 2
    assert "fragment A_frag: 4 float32: 4 slots per thread, each element in 128 threads" in told(found)
    assert told(found)[-1] == "loop 1: 128×4: 4 iterations per thread, 4 wide, stores out (global)"


def test_l2_three_fragments_have_four_slots_a_thread(inferred: Lowered) -> None:
    """Threads that all hold a fragment share the loop over it: each thread does 4 iterations instead of 512."""
    slots = dict(re.findall(r"float (\w+_frag)\[(\d+)\];", source_of(inferred)))
    assert slots == {"S_frag": "4", "A_frag": "4", "B_frag": "4"}
    assert re.search(r"__launch_bounds__\(128\b", source_of(inferred))


def test_l3_repeated_work_is_counted_before_a_kernel_runs(replicated: Lowered) -> None:
    """Lowering finds loops whose work is repeated by all threads, and counts the repeated iterations."""
    found = [(loop.slots, loop.redundant, loop.replication) for loop in layouts_in(replicated).loops]
    assert found == [(512, 508, 128)] * 2


def test_l4_a_declared_layout_takes_fewer_registers_and_less_time() -> None:
    """A declared layout can replace a slow inferred layout: each thread then has 56 registers instead of 250."""
    own, *others = replay(STORED / "wide.jsonl").records
    declared = next(one for one in others if one.config == {**own.config, "held": "replicated"})
    assert own.machine is not None and declared.machine is not None and own.latency_ms is not None
    assert (own.machine.registers, declared.machine.registers) == (250, 56)
    assert declared.latency_ms is not None and own.latency_ms / declared.latency_ms > 20


def test_l5_both_candidates_can_be_declared(inferred: Lowered, folder: Path) -> None:
    """A space can have axes for both layouts that inference considers: an even share, and a fragment's layout."""
    axes = atune.Space(held=layout.fragments(), loop=layout.loops(2, 4)).axes
    assert axes == {"held": ("compiler", "replicated"), "loop": ("compiler", "vector2", "vector4")}
    pairs, share = (lowered(folder, loop=how).code_key for how in ("vector2", "vector4"))
    assert share == inferred.code_key != pairs


def test_l6_explain_shows_the_candidate_that_inference_did_not_take(inferred: Lowered, replicated: Lowered) -> None:
    """If a loop reads a fragment, `atune explain` shows the cost of the layout that inference rejected."""
    loops = ([line for line in told(layouts_in(one)) if "loop " in line[:5]] for one in (inferred, replicated))
    [taken, same], [other, _] = loops
    assert "not laid out as A_frag (512 per thread)" in taken
    assert "laid out as A_frag, not evenly (4 per thread)" in other
    assert "laid out" not in same  # both candidates cost the same


def layouts(threads: Iterable[int], slots: int = 4, *, held: int = 4, loops: int = 1) -> Layouts:
    """Return loops of 512 iterations among 128 threads, where `threads` do each, and a fragment of `held` slots."""
    loop = LoopFacts((128, 4), slots, len([*threads]), slots - 4, threads=(model.mask_of(threads),) * 3)
    return Layouts((FragmentFacts("held", "float32", (128, 4), held),), (loop,) * loops)


ALL, OWN, ONE, OTHER = layouts(range(128), 512), layouts(range(4), 16), layouts([0]), layouts([64])
MANY, FEW_LONG = layouts([64], held=16), layouts([0], 32)
THIN, WIDE = (Layouts(loops=(LoopFacts((512,), 4, access_bits=bits),)) for bits in (32, 128))
REPEATED = Layouts(loops=(LoopFacts((512,), 8, redundant=4, access_bits=128),))
LONGER = Layouts(OWN.fragments, (LoopFacts((512,), 16, 4, 12),))


def chosen(*found: Layouts | None, most: int = 1, own: int | None = None) -> LayoutSelection:
    """Return the choice, and check that it does not depend on the order."""
    alternatives = [Alternative(index, one, own=index == own) for index, one in enumerate(found)]
    [choice] = {
        str(made): made for order in itertools.permutations(alternatives) for made in [choose(order, most)]
    }.values()
    return choice


def better(kept: int, why: str, *found: Layouts, own: int | None = None) -> bool:
    return chosen(*found, own=own) == LayoutSelection((kept,), {1 - kept: model.RejectedLayout(kept, why)})


def test_l7_a_layout_that_does_not_validate_is_never_chosen() -> None:
    """A layout that does not lower, or that the device cannot launch, is never chosen."""
    found = [Alternative(0, ALL, own=True), Alternative(1, ONE, valid=False)]
    assert choose(found) == LayoutSelection((0,), {})


def test_l8_a_layout_that_contains_another_is_passed_over() -> None:
    """A layout is rejected if, in every examined iteration, another layout needs only some of the same threads."""
    assert better(1, model.CONTAINED, ALL, ONE, own=0) and better(0, model.CONTAINED, ONE, ALL, own=1)
    assert better(1, model.CONTAINED, OWN, FEW_LONG)  # FEW_LONG has few threads, with more iterations each


def test_l9_where_none_contains_the_other_the_least_work_decides() -> None:
    """Among the layouts that are not rejected, the layout with the least redundant work is preferred."""
    assert better(1, model.REDUNDANT, OWN, OTHER, own=0) and better(0, model.REDUNDANT, THIN, REPEATED)
    for other in (layouts(range(4), 16, loops=2), LONGER):  # other loops are compared by work alone
        assert chosen(other, ONE).rejected[0].why == model.REDUNDANT


def test_l10_where_work_is_equal_registers_accesses_and_the_compiler_decide() -> None:
    """Among layouts with equal work, fewer registers decide, then wider accesses, then the compiler's choice."""
    assert better(1, model.REGISTERS, MANY, ONE, own=0) and better(1, model.NARROW, THIN, WIDE, own=0)
    assert better(1, model.TIED, ONE, OTHER, own=1) and better(0, model.TIED, ONE, OTHER)
    fragments = (FragmentFacts("a", "float16", (64,), 3), FragmentFacts("b", "bool", (4,), 4))
    assert Layouts(fragments).registers == 2 + 1  # counted in bits


def test_l11_where_none_validates_the_compilers_own_is_left() -> None:
    """If a configuration has no valid layout, the compiler's own layout is tried, so you see why it fails."""
    found = [Alternative(0, ONE, valid=False), Alternative(1, ALL, valid=False, own=True)]
    assert choose(found) == LayoutSelection((1,), {})


def test_l12_of_threads_that_hold_the_same_element_one_stores_it(tmp_path: Path) -> None:
    """If several threads hold copies of an element, only one of the threads stores it, so nothing is added twice."""
    with session_of(FileRef(str(TESTS / "contract_kernels.py"), "MOODY_GPU"), tmp_path) as candidates:
        code = source_of(lower(candidates[MODES.index("replicated")]))
    assert "float held[1];" in code and re.search(r"__launch_bounds__\(128\b", code)
    [guarded] = re.findall(r"if \(+\(int\)threadIdx\.x\) >> 4\) == 0\) \{(.*?)\n  \}", code, re.S)
    added = re.compile(r"total\[[^\n]*= [^\n]*held\[0\]")
    assert len(added.findall(guarded)) == len(added.findall(code)) == 2


@pytest.mark.gpu
def test_l13_a_kernel_with_less_replication_is_right_on_a_gpu() -> None:
    """On a GPU, a kernel whose loop is shared among the threads computes the same values as its reference."""
    result = atune.run(f"{KERNELS}:WEIGHTED", target="cuda", devices=["0"])
    assert result.measured == 1 and result.measurements[0].checked


def test_l14_choosing_before_measuring_finds_the_winner_of_all() -> None:
    """If only the best layout of each configuration is measured, the winner is as fast as when all are measured."""
    every, one = (replay(STORED / f"uneven_{name}.jsonl") for name in ("all", "one"))
    assert one.total == every.total == 72 and one.measured < every.measured / 3 + 1 and one.wall_s < every.wall_s
    assert one.latency_ms is not None and every.latency_ms is not None and one.latency_ms / every.latency_ms < 1.02
    assert any(record.instead is not None for record in one.records)
    assert one.devices[0].name.split()[1] in (STORED / "README.md").read_text()


@pytest.mark.parametrize("how", ["--dry-run", "--compile-only"])
def test_l15_a_preview_says_which_layouts_are_kept_and_why(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If `--layouts` is given, `--dry-run` and `--compile-only` show which layouts are kept or rejected, and why."""
    by_loop = {"compiler": ALL, "vector2": OWN, "vector8": ONE}
    script = Script(facts=lambda config: StaticFacts(layouts=by_loop[config["loop"]]), fails={4: "lower"})
    machine = FakeMachine(atune.Space(x=[1, 2], loop=layout.loops(2, 8)), script)

    @asynccontextmanager
    async def compilers(*_: Any) -> AsyncGenerator[tuple[FakeMachine, Run], None]:
        async with machine.open():
            yield machine, Run()

    monkeypatch.setattr(machine, "discovery", SimpleNamespace(target="sm_90a", fallback=""), raising=False)
    monkeypatch.setattr(preview, "compilers", compilers)
    monkeypatch.setattr(preview, "counted", lambda *_: machine.describe())
    command = ["tune", f"{KERNELS}:WEIGHTED", "--layouts", "1", how]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    to_2, to_5 = (f"passed over for candidate {index}: {model.CONTAINED}" for index in (2, 5))
    outcomes = [to_2, to_2, "kept", to_5, "failed to lower: scripted to fail: lower", "kept"]
    assert [one["outcome"] for one in found["layouts"]] == outcomes
    assert [one["instead"] for one in found["layouts"]] == [2, 2, None, 5, None, None]
    assert len([*itertools.chain(*machine.groups)]) == (0 if how == "--dry-run" else 2)
    assert main(command) == 0
    assert f"layouts    for sm_90a\n           0  x=1, loop='compiler'  {to_2}\n" in capsys.readouterr().out


def test_l16_layouts_of_ones_own_are_fragments(folder: Path) -> None:
    """Your own layouts are functions that return a `T.Fragment`. A function that returns anything else is refused."""
    pairs, rows = lowered(folder, held="pairs"), lowered(folder, held="rows")
    assert FragmentFacts("B_frag", "float32", (128, 4), 8, 2) in layouts_in(pairs).fragments
    assert pairs.code_key != rows.code_key
    with pytest.raises(AssertionError, match="for Fragment B_frag, layout must be a Fragment"):
        lowered(folder, held="plain")
    with pytest.raises(ValueError, match=r"unknown layout 'missing'; use .*'replicated', 'rows', 'pairs'"):
        lowered(folder, held="missing")


def test_l17_layouts_that_conflict_cost_one_candidate(folder: Path) -> None:
    """Layouts that contradict each other fail with tilelang's message, which names both layouts."""
    with pytest.raises(
        Exception, match=r"(?s)conflict between B_frag .*loop Fragment.*fragment Fragment.*replicate: 128"
    ):
        lowered(folder, held="replicated", loop="vector4")


def test_l18_a_layout_that_does_not_fit_is_refused_at_the_loops_line(folder: Path) -> None:
    """If a layout does not suit a shape, the error names the loop's line and the numbers that do not fit."""
    [head] = [n for n, line in enumerate(BROADCAST.read_text().splitlines(), 1) if "in layout.parallel(" in line]
    with pytest.raises(ValueError, match="256 threads cannot evenly share 2 rows of 320 vectors of 8") as raised:
        lowered(folder, BROADCAST, "UNEVEN", block_rows=2, loop="vector8")
    place = place_of(raised.value)
    assert place is not None and (place.file, place.line) == (str(BROADCAST), head)
    assert place.source.startswith("for r, c in layout.parallel(")
    assert f"line {head}, in main" in detail_of(raised.value)


def test_l19_widths_that_tilelang_replaces_are_refused_or_told(folder: Path) -> None:
    """A `coalesced_width` must be a power of two. The page on layouts names the widths that tilelang replaces."""
    with pytest.raises(ValueError, match="coalesced_width 3 is not a power of two: give 1, 2, 4 or 8"):
        layout.parallel("compiler", 4, 64, threads=32, coalesced_width=3)
    narrow = {"block_rows": 2, "threads": 64, "held": "replicated"}
    code = {width: lowered(folder, BROADCAST, "UNEVEN", **narrow, coalesced=width).code_key for width in (0, 2, 16)}
    assert code[16] == code[0] != code[2] and "for float16, a width of 16 becomes 8" in PAGE.read_text()


@pytest.mark.parametrize("width", [3, 0, True, "2"])
def test_l20_a_vector_divides_its_loop(width: Any) -> None:
    """Widths of `layout.loops` must be powers of two that divide the last extent of the loop."""
    with pytest.raises(SpaceError, match=f"layout.loops: width {width!r} is not a power of two"):
        layout.loops(2, width)
    with pytest.raises(ValueError, match=r"vectors of 8 elements do not divide .* 100"):
        layout.loop("vector8", 4, 100, threads=256)


@pytest.mark.parametrize(
    ("slots", "stores", "warns"),
    [(64, "Out (global)", True), (64, "s (local.fragment)", False), (7, "Out (global)", False)],
)
def test_l21_repeated_work_is_warned_of(slots: int, stores: str, warns: bool) -> None:
    """`atune explain`, `atune show` and the page warn of a loop that stores values which many threads compute."""
    found = Layouts(loops=(LoopFacts((512,), slots, redundant=slots - 4, stores=(stores,)),))
    warning = "warning: loop 0: each thread does 16 times an even share of the iterations, and stores Out (global)"
    assert (warning in told(found)) is warns


@pytest.mark.anyio
async def test_l22_a_summary_says_how_much_slower_the_compilers_own_layouts_are() -> None:
    """A run's summary, replay and page show the slowdown of the compiler's own layouts, and refer to `explain`."""
    result = replay(STORED / "wide.jsonl")
    first = {one.index: one.timing.latency_ms for one in result.measurements}  # 24 was not in the final
    line = f"he compiler's own layouts are at least {first[24] / first[28]:.2f} times slower; "
    line += f"to see the difference: atune explain {STORED / 'wide.jsonl'} 24 28"
    assert f"layouts    t{line}\n" in summary_text(result) and f"T{line}" in card(result)["notes"]
    for gain, says in ((1.1, False), (3.0, True), (0.5, False)):
        latency = {"compiler": gain, "vector2": 1.0, "vector8": 1.0}
        script = Script(latency_ms=lambda c, ms=latency: ms[c["loop"]], facts=lambda c: StaticFacts(layouts=ONE))
        run = await finish(FakeMachine(atune.Space(loop=layout.loops(2, 8)), script))
        assert bool(layouts_line(run.result)) is says


def test_l23_the_best_few_layouts_come_best_first() -> None:
    """The best N layouts of a configuration are kept, best first. Layouts with an unknown cost are also kept."""
    assert chosen(ALL, OWN, OTHER, most=2) == LayoutSelection((2, 1), {0: model.RejectedLayout(2, model.CONTAINED)})
    assert chosen(ALL, OWN, ONE, most=5).kept == (2, 1, 0)
    assert chosen(ALL, None, ONE) == LayoutSelection((2, 1), {0: model.RejectedLayout(2, model.CONTAINED)})


def test_l24_a_candidate_says_for_which_layout_it_was_passed_over() -> None:
    """`atune show` says which candidates have a worse or a better layout than the shown candidate, and why."""
    passed = Record(index=0, key="k", config={}, status="pruned", message="likely: too much", instead=2)
    records = [passed, *(Record(index=index, key="k", config={}, status="measured") for index in (1, 2))]
    said = [dict(facts_of(record, "", records)).get("choice") for record in records]
    assert said == ["passed over for candidate 2: too much", None, "preferred to candidate 0"]


def test_l25_a_layout_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on layouts shows how tilelang's `plot_layout` draws a layout."""
    [program] = [one for one in re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S) if "plot_layout" in one]
    pyplot = MagicMock(**{"subplots.return_value": (MagicMock(), MagicMock())})
    stand_ins = {"matplotlib": MagicMock(pyplot=pyplot), "matplotlib.pyplot": pyplot, "matplotlib.patches": MagicMock()}
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert str(pyplot.savefig.call_args.args[0]) == "vector2.svg"


def test_l26_journals_keep_the_layouts_of_each_candidate() -> None:
    """A journal keeps the layouts of each candidate that was lowered, as `Record.facts.layouts`."""
    for record in replay(STORED / "wide.jsonl").records:
        assert record.facts is not None and record.facts.layouts is not None
        assert [one.name for one in record.facts.layouts.fragments] == ["s"] and len(record.facts.layouts.loops) == 1


def test_l27_every_candidate_can_be_compared_by_what_its_layout_costs() -> None:
    """Tables and exports show a candidate's redundant iterations and fragment registers beside its latency."""
    found = [row for row in rows(replay(STORED / "wide.jsonl")) if row["latency_ms"]]
    lean = [row["latency_ms"] for row in found if row["redundant"] == 0 and row["fragment_registers"] == 4]
    assert len(lean) > 20 and min(row["latency_ms"] for row in found if row["redundant"]) > 4 * max(lean)

"""Why the winner wins, as far as facts tell: those in which it differs from the next candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from atune.model.occupancy import Occupancy, occupancy_of

if TYPE_CHECKING:
    from atune.journal.result import Record
    from atune.model.device import Target

RIVALS = 3
"""Number of next candidates with other code that the winner is compared with."""
MOST = 4
"""Maximum of reported facts."""
Reads = Callable[["Record", str], Any]


def wins_by(winner: Record, rivals: Sequence[Record], target: Target | None) -> str | None:
    """Say in which facts `winner` differs from each of `rivals`, which are sorted by latency; None without rivals.

    A number between others' does not count. If no fact differs from all rivals, the text has those that differ from the
    next one. These facts correlate with winning; nothing shows that they cause it.
    """
    next_one = next(iter(rivals), None)
    if next_one is None or winner.latency_ms is None or next_one.latency_ms is None:
        return None
    arch = "" if target is None else target.arch
    slower = next_one.latency_ms / winner.latency_ms - 1 if winner.latency_ms else 0.0
    lead = f"candidate {next_one.index}, {f'{slower:.1%}' if slower > 0 else 'no'} slower"
    for others in (rivals, rivals[:1]):
        if told := _differences(winner, others, arch):
            whom = "the next one," if len(others) == 1 else f"the next {len(others)}, of which the first is"
            return f"{', '.join(told)} (beside {whom} {lead})"
    return f"nothing that is known: no fact tells it from the next one, {lead}"


def _differences(winner: Record, others: Sequence[Record], arch: str) -> list[str]:
    """Return the facts that all have and in which the winner is unlike every other, the most informative first."""
    told: list[str] = []
    for say, read in FACTS:
        mine, theirs = read(winner, arch), [read(other, arch) for other in others]
        if mine is None or any(one is None or one == mine for one in theirs) or _between(mine, theirs):
            continue
        told.append(say(mine, list(dict.fromkeys(theirs))))
    return told[:MOST]


def _between(mine: Any, theirs: Sequence[Any]) -> bool:
    """Tell whether a number has others on both sides. Then more or less of it explains nothing."""
    return isinstance(mine, int) and min(theirs) < mine < max(theirs)


def _against(name: str) -> Callable[[Any, Sequence[Any]], str]:
    return lambda mine, theirs: f"{name} {mine} against {_either(theirs)}"


def _either(values: Sequence[Any]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _stack(mine: int, theirs: Sequence[int]) -> str:
    own = f"{mine} bytes of stack a thread" if mine else "no stack and no spills"
    return f"{own} against {_either(theirs)}{'' if mine else ' bytes of stack a thread'}"


def resident_blocks(record: Record, arch: str) -> int | None:
    """Return how many blocks of a candidate a multiprocessor of `arch` holds at once; None where that is not known."""
    facts, machine = record.facts, record.machine
    if facts is None or machine is None or not facts.threads:
        return None
    smem_bytes = (facts.smem_bytes or 0) + machine.static_smem_bytes
    found: Occupancy | None = occupancy_of(arch, facts.threads, machine.registers, smem_bytes)
    return None if found is None else found.blocks


def _of_facts(name: str) -> Reads:
    return lambda record, _: getattr(record.facts, name, None)


def _of_work(name: str) -> Reads:
    return lambda record, _: getattr(getattr(record.facts, "work", None), name, None)


def _of_layouts(name: str) -> Reads:
    return lambda record, _: getattr(getattr(record.facts, "layouts", None), name, None)


def _of_machine(name: str) -> Reads:
    return lambda record, _: getattr(record.machine, name, None)


def _tile(record: Record, _: str) -> str | None:
    work = None if record.facts is None else record.facts.work
    return "×".join(map(str, (work.gemms[0].m, work.gemms[0].n, work.gemms[0].k))) if work and work.gemms else None


def _traffic(record: Record, _: str) -> str | None:
    """Return the bytes that all blocks move to and from global memory, without caches."""
    facts = record.facts
    if facts is None or facts.work is None or not facts.grid:
        return None
    blocks = facts.grid[0] * facts.grid[1] * facts.grid[2] if len(facts.grid) == 3 else 0
    n_bytes = blocks * (facts.work.read_bytes + facts.work.write_bytes)
    return f"{n_bytes / 1e6:.3g} MB" if n_bytes else None


def _order(record: Record, _: str) -> str | None:
    work = None if record.facts is None else record.facts.work
    return None if work is None else work.block_order or "plain"


FACTS: tuple[tuple[Callable[[Any, Sequence[Any]], str], Reads], ...] = (
    (_stack, _of_machine("stack_bytes")),
    (_against("redundant iterations of a thread"), _of_layouts("redundant")),
    (_against("occupancy"), resident_blocks),
    (_against("pipeline stages"), _of_work("stages")),
    (_against("global traffic"), _traffic),
    (_against("tile"), _tile),
    (_against("block order"), _order),
    (_against("threads"), _of_facts("threads")),
    (_against("fragment slots a thread"), _of_layouts("slots")),
    (_against("registers"), _of_machine("registers")),
    (_against("shared memory bytes"), _of_facts("smem_bytes")),
    (_against("code bytes"), _of_machine("code_bytes")),
)
"""The text of each fact, and how to read it from a record on an architecture; the most informative first."""

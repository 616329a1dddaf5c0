"""Whether a library holds tilelang's own code of a candidate: compared with what the plain steps make of it."""

from __future__ import annotations

import time
from pathlib import Path

from atune.model.artifact import Artifact, Proof
from atune.model.candidate import Candidate
from atune.stages.compile import elf
from atune.stages.compile.codegen import build
from atune.stages.compile.lowering import lower
from atune.stages.compile.steps import Steps


def prove(candidate: Candidate, measured: Artifact, path: str) -> Proof:
    """Elaborate, lower, generate, compile and link `candidate` by the plain steps, and compare with `measured`.

    Raises what lowering raises and what the compilers say.
    """
    started = time.perf_counter()
    plain = Steps()
    lowered = lower(candidate, plain)
    (built,) = build([lowered], path, plain)
    seconds = round(time.perf_counter() - started, 4)
    return Proof(candidate.index, difference(measured, built), built, seconds)


def difference(measured: Artifact, plain: Artifact) -> str:
    """Say in what two libraries of one candidate differ; empty where sources and code sections are the same.

    For target ``c`` the source decides: both are compiled by g++ alone, which nothing wraps.
    """
    if measured.source_key != plain.source_key:
        return "the generated source"
    if plain.target != "cuda" or plain.backend:
        return ""
    kernel = f"{plain.symbol}_kernel"
    own, other = (elf.kernel_sections(Path(one.path).read_bytes(), kernel) for one in (measured, plain))
    if not other:
        return "the place of its code: the plain library has none under its name"
    if own.keys() != other.keys():
        return f"sections of its code: {', '.join(sorted(own)) or 'none'}, and plain {', '.join(sorted(other))}"
    wrong = [name for name in other if own[name] != other[name]]
    return f"the code of {', '.join(sorted(wrong))}" if wrong else ""

"""Compares a library with the result of the plain steps, to prove that it holds tilelang's own code."""

from __future__ import annotations

import time
from pathlib import Path

from atune.model.artifact import Artifact, Failure, Lowered, Proof
from atune.model.candidate import Candidate
from atune.stages.compile import elf
from atune.stages.compile.codegen import answer
from atune.stages.compile.lowering import as_plain, lower
from atune.stages.compile.steps import Steps


def prove(candidate: Candidate, measured: Artifact, path: str, lowered: Lowered | None = None) -> Proof | Failure:
    """Elaborate, lower, generate, compile and link `candidate` by the plain steps, and compare with `measured`.

    If the plain steps lowered it before, to `lowered`, only compiling and linking are left. Raises what elaborating and
    lowering raise. Returns a `Failure` if compilers refuse the plain source.
    """
    started, plain = time.perf_counter(), Steps()
    (built,) = answer([as_plain(lowered) or lower(candidate, plain)], path, plain)
    if isinstance(built, Failure):
        return built
    return Proof(candidate.index, difference(measured, built), built, round(time.perf_counter() - started, 4))


def difference(measured: Artifact, plain: Artifact) -> str:
    """Say how two libraries of one candidate differ; empty if sources and code sections are the same.

    Sources are those of device and host. For target ``c`` they decide alone, because g++ compiles both and nothing
    wraps it. The host's half of a CUDA library is compared only by its source.
    """
    if measured.source_key and measured.source_key != plain.source_key:  # an old journal has none
        return "the generated source"
    if plain.target != "cuda":
        return ""
    own, other = (elf.kernels_code(Path(one.path).read_bytes(), one.symbol) for one in (measured, plain))
    if not other:
        return "the place of its code: the plain library has none under its name"
    if not own:
        return "the place of its code: the measured library has none under its name"
    for code in own:  # tvm decides which of several is loaded
        if code.keys() != other[0].keys():
            return f"sections of its code: {', '.join(sorted(code.keys() ^ other[0].keys()))}"
        if wrong := sorted(name for name in code if code[name] != other[0][name]):
            return f"the code of {', '.join(wrong)}"
    return ""

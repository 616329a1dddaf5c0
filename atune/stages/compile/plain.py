"""One candidate compiled as tilelang does, by the plain steps: to prove a library, or to explain a configuration."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from atune.model.artifact import Artifact, Failure, Lowered, Proof, source_path
from atune.model.candidate import Candidate
from atune.model.device import occupancy_of
from atune.model.jobs import Explained, ExplainJob
from atune.stages.compile import elf
from atune.stages.compile.codegen import answer
from atune.stages.compile.inferred_layouts import Seen
from atune.stages.compile.lowering import as_plain, lower
from atune.stages.compile.steps import Steps
from atune.stages.session.session import session


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
    if measured.source_key != plain.source_key:
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


VERBOSE = "TILELANG_VERBOSE"
"""Options that make tilelang ask ptxas for its figures, and log them."""
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def explain(job: ExplainJob) -> Explained | Failure:
    """Lower and compile a configuration by the plain steps, and read its facts. Raises what lowering raises."""
    seen, plain = Seen(job.picture), Steps()
    lowered = lower(job.candidate, plain, seen=seen)
    with ptxas_log() as log:
        (built,) = answer([lowered], job.path, plain)
    if isinstance(built, Failure):
        return built
    target, machine, facts = session().target, built.machine, lowered.facts
    source = Path(source_path(built.path, built.symbol)).read_text(errors="replace")
    explained = Explained(
        config=job.candidate.config,
        target=str(target),
        facts=facts,
        source=source.replace(f"{built.symbol}_kernel", "kernel").replace(built.symbol, "kernel"),
        machine=machine,
        picture=seen.picture,
    )
    if machine is None:
        return explained
    stores, loads = spills("\n".join(log)) or (None, None)
    smem_bytes = (facts.smem_bytes or 0) + machine.static_smem_bytes
    occupancy = occupancy_of(target.arch, facts.threads or 0, machine.registers, smem_bytes)
    return msgspec.structs.replace(explained, spill_bytes=stores, spill_load_bytes=loads, occupancy=occupancy)


def spills(log: str) -> tuple[int, int] | None:
    """Return bytes of spill stores and loads from ``ptxas -v``, of the kernel with most of them; None without
    figures."""
    return max(((int(stores), int(loads)) for stores, loads in _SPILLS.findall(log)), default=None)


@contextmanager
def ptxas_log() -> Iterator[list[str]]:
    """Collect tilelang's log messages within the block, including the figures of ptxas."""
    from tilelang import logger

    lines: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, level, before = Collecting(logging.INFO), logger.level, os.environ.get(VERBOSE)
    os.environ[VERBOSE] = "1"
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        if before is None:
            del os.environ[VERBOSE]
        else:
            os.environ[VERBOSE] = before

"""The events of a run: past-tense frozen structs decoded through one union.

The journal is these events, one a line; `atune.journal.result.Result` is a pure fold over them. Every event
carries its sequence number, wall-clock and monotonic time, and the worker or device on which it happened.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atune.model.artifact import Artifact, FailureKind, MachineFacts, Roles, StaticFacts
from atune.model.candidate import Advice
from atune.model.device import DeviceInfo, Target
from atune.model.measurement import FinalEntry, Timing
from atune.model.ranges import Index, Latency, Moment, PathText, Quantity, Seconds, Whole

SCHEMA = 1
"""Version of the event union, 1 with the first release. A reader refuses a higher one; a lower one stays readable."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False):
    """The fields of every event. `seq` counts from 0 without a gap within a run.

    These fields mean the same in all events that have them. `index`, `indices`: candidates, by their number in the
    space. `device`: the id of a device, such as ``0`` or ``cpu``. `seconds`: wall seconds of the step in its worker.
    `timing`: its samples, µs, and their median, ms. `kind`: why a candidate failed. `message`, `reason`: one sentence
    for people. `detail`: the last lines that the compiler, the device or the worker wrote. `printed`: what the user's
    functions printed.

    Plain data without cycles, which the garbage collector need not look at: a run may have millions.
    """

    seq: Whole
    time: Moment
    """Wall clock, seconds since the Unix epoch."""
    mono: Seconds
    """Seconds since the run started, from a monotonic clock."""
    worker: str = "engine"
    """The worker or device on which it happened."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """The header: what is tuned, where it came from, how, and with which versions.

    `schema`: version of the format, `SCHEMA`. `workload`: its name. `total`: number of candidates. `arguments`: the
    problem. `target`, `devices`: what code is generated for, and the devices' ids. `strategy`: its name. `settings`:
    ``compile``, ``benchmark``, ``pipeline``, ``seed`` and ``budget`` as they were given, and the ``command`` that was
    typed. `versions`: by package. `layout_axes`: names of the axes of layouts; None in older journals.
    """

    schema: int
    workload: str
    origin: PathText
    """``FILE.py:NAME`` where the workload came from a file, else empty."""
    fingerprint: str
    """SHA-256 of kernel source and closure, problem arguments and checks."""
    code: str = ""
    """`fingerprint` without the problem."""
    problem: Any = None
    """Identity of the problem: the arguments with the kernel's defaults, or a decorated kernel's key."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without the defaults of what the space sets."""
    space: str
    """SHA-256 of the candidates' keys in order, without those that are advised."""
    total: Whole
    points: int | None = None
    """Points of a large space, before its constraints, of which the seed drew the candidates."""
    default: Index | None = None
    """Index of the default configuration. `BASELINE` where the space does not list it; None where there is none."""
    baseline: dict[str, Any] | None = None
    """The default configuration, where the space does not list it."""
    refused: str = ""
    """Why the baseline must not win: which constraint refuses it; empty where none does."""
    no_default: str = ""
    """Why there is no default configuration; empty where there is."""
    arguments: dict[str, Any]
    layout_axes: tuple[str, ...] | None = None
    asks: tuple[str, ...] = ()
    """Arguments that the space's functions take, such as its constraints."""
    target: Target
    devices: tuple[str, ...]
    models: tuple[str, ...] = ()
    """The devices' models, each once."""
    strategy: str
    settings: dict[str, Any]
    versions: dict[str, str]
    flops: Quantity | None = None
    """Operations of one call at least, as the user says."""
    bytes: Quantity | None = None
    """Bytes that one call moves to and from memory at least, as the user says."""
    torch: dict[str, Any] = {}
    """What the program's torch computes by, by name, where it is not torch's default and counts for checks."""
    advice: tuple[Advice, ...] = ()
    """Advice from other runs, as the strategy got it."""

    def __post_init__(self) -> None:
        groups = (self.settings.get(name, {}) for name in ("compile", "benchmark", "budget"))
        if not all(isinstance(group, dict) for group in groups) or type(self.settings.get("seed", 0)) is not int:
            raise ValueError("settings of another kind")


class CandidateProposed(Event, frozen=True, kw_only=True, tag="candidate_proposed"):
    """The strategy proposed a candidate. `key`: 16 hex digits of the configuration. `config`: its values by axis."""

    index: Index
    key: str
    config: dict[str, Any]
    surveyed: bool = False
    """Whether no strategy proposed it: it was found to fail when the space was surveyed, and counts for no budget."""
    further_layout: bool = False
    """Whether it is another layout of a configuration that was proposed, to choose from: it counts for no budget."""


class SpaceSurveyed(Event, frozen=True, kw_only=True, tag="space_surveyed"):
    """Facts of the space for the strategy, in addition to its axes: columns with a value for each of `indices`.

    `prior`: estimates, in ms or any other unit in which less is better. `facts`: numbers that a model may learn from.
    All are rounded to six digits; None is an unknown value.
    """

    indices: tuple[Index, ...]
    prior: tuple[Quantity | None, ...] = ()
    facts: dict[str, tuple[Quantity | None, ...]] = {}
    seconds: Seconds = 0.0
    """Seconds that it took, on all compile workers at once."""


class CandidateLowered(Event, frozen=True, kw_only=True, tag="candidate_lowered"):
    """A candidate was lowered. `code_key`: equal for equal code, `source_key` for equal sources, `ir_digest` for equal
    kernels as they were elaborated; empty if unknown. `facts`: what is known of it before it is compiled."""

    index: Index
    code_key: str
    source_key: str = ""
    ir_digest: str = ""
    facts: StaticFacts
    seconds: Seconds
    deferred: str = ""
    """Why the screen put it last in line; empty when it did not."""
    printed: str = ""


class CandidatePruned(Event, frozen=True, kw_only=True, tag="candidate_pruned"):
    """Not compiled: over a hard limit of the device, or `likely` to lose, which a run under a budget skips."""

    index: Index
    reason: str
    likely: bool = False
    instead: Index | None = None
    """The layout of the same configuration that was preferred, where a run chooses layouts."""


class CandidateAliased(Event, frozen=True, kw_only=True, tag="candidate_aliased"):
    """Compiles to the same code as `same_as`; measured once, credited to both."""

    index: Index
    same_as: Index


class ArtifactBuilt(Event, frozen=True, kw_only=True, tag="artifact_built"):
    """One library was compiled, with every candidate of `indices` in it. `file`: its name in the run's folder."""

    indices: tuple[Index, ...]
    file: str
    seconds: Seconds
    reason: str = ""
    """Why the group had this size."""
    compiler: str = ""
    """``nvcc``, ``cicc`` (nvcc with the headers parsed once) or ``g++``."""
    why: str = ""
    """Why that compiler."""
    machine: tuple[MachineFacts | None, ...] = ()
    """Registers, stack and code of each of `indices`; empty for target ``c``."""


class BuildFailed(Event, frozen=True, kw_only=True, tag="build_failed"):
    """A candidate failed in lowering or compiling."""

    index: Index
    kind: FailureKind
    message: str
    detail: str = ""
    printed: str = ""


class GroupSplit(Event, frozen=True, kw_only=True, tag="group_split"):
    """A group failed as a whole and is built again in parts, until the culprit stands alone."""

    indices: tuple[Index, ...]
    message: str


class CompileRepeated(Event, frozen=True, kw_only=True, tag="compile_repeated"):
    """Candidates are lowered or compiled again, because their worker was lost through no fault of theirs."""

    indices: tuple[Index, ...]
    reason: str


class DeviceReady(Event, frozen=True, kw_only=True, tag="device_ready"):
    """A device can measure. `device`: what it is.

    `start_s`: seconds that took; after a loss with its inputs made and its reference run. `stream`: the handle of the
    CUDA stream on which its process makes inputs, launches and times; 0 on the CPU. Only calls that wait for the device
    are timed on the default stream, as the `Timing.method` then says.
    """

    device: DeviceInfo
    start_s: Seconds = 0.0
    stream: Whole = 0


class DeviceLost(Event, frozen=True, kw_only=True, tag="device_lost"):
    """A device's process died or was killed; `final` when it will not be started again."""

    device: str
    reason: str
    final: bool = False
    kill_s: Seconds = 0.0
    """Seconds from the deadline, or from the error's report, until the process was reaped."""


class DeviceExcluded(Event, frozen=True, kw_only=True, tag="device_excluded"):
    """A device is slower than the others. Its measurements do not count, and other devices repeat them."""

    device: str
    reason: str


class ReferenceMeasured(Event, frozen=True, kw_only=True, tag="reference_measured"):
    """The reference was timed on a device."""

    device: str
    timing: Timing


class BenchmarkStarted(Event, frozen=True, kw_only=True, tag="benchmark_started"):
    """A candidate went to a device, to be loaded, checked and timed."""

    index: Index
    device: str


class BenchmarkRepeated(Event, frozen=True, kw_only=True, tag="benchmark_repeated"):
    """A candidate is measured again, because its failure may not be its fault, or its latency is implausible."""

    index: Index
    device: str
    reason: str


class CandidateMeasured(Event, frozen=True, kw_only=True, tag="candidate_measured"):
    """A candidate was timed. `checked`: its outputs were compared with the reference's before.

    `max_error`: largest absolute difference over all outputs; None when not compared.
    """

    index: Index
    device: str
    timing: Timing
    checked: bool
    max_error: float | None = None
    seconds: Seconds = 0.0
    writes: tuple[Whole, ...] = ()
    """Input parameters that the kernel writes into, restored before each timed call."""
    set_up: tuple[Whole, ...] = ()
    """Input parameters that the workload's `setup` changed."""
    printed: str = ""
    bits: str = ""
    """Digest of its outputs for the check's inputs: equal for equal bits."""
    repeats: bool = True
    """Whether two calls on the same inputs gave the same bits."""
    memory_bytes: Whole = 0
    """Device memory that the device's process has used at most so far; 0 on the CPU."""


class BenchmarkFailed(Event, frozen=True, kw_only=True, tag="benchmark_failed"):
    """A candidate failed on a device."""

    index: Index
    device: str
    kind: FailureKind
    message: str
    detail: str = ""
    printed: str = ""


class BestChanged(Event, frozen=True, kw_only=True, tag="best_changed"):
    """A candidate is the fastest so far, by first timings. `latency_ms`: its median."""

    index: Index
    latency_ms: Latency


class BitsCompared(Event, frozen=True, kw_only=True, tag="bits_compared"):
    """Finalists were called on inputs drawn with further seeds. `differ`: those without the default's bits on some.

    `seeds`: on how many draws of the inputs the bits of the others are the default's, the check's among them.
    """

    seeds: Whole
    differ: tuple[Index, ...] = ()


class FinalStarted(Event, frozen=True, kw_only=True, tag="final_started"):
    """The best few and the default, `indices`, are timed in turn, without compiles."""

    device: str
    indices: tuple[Index, ...]


class FinalOrdered(Event, frozen=True, kw_only=True, tag="final_ordered"):
    """The best few and the default, timed again in turn, without compiles.

    `entries`: index and timing of each, fastest first. `reference`: its timing in the same rounds; None without one.
    """

    device: str
    entries: tuple[FinalEntry, ...]
    reference: Timing | None = None
    ties: tuple[Index, ...] = ()
    """Finalists that are statistically tied with the winner, or are as fast."""
    memory_bytes: Whole = 0
    """See `CandidateMeasured`."""


class Warned(Event, frozen=True, kw_only=True, tag="warned"):
    """Something the user asked for works differently here, or may explain a surprise."""

    message: str


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run has found, for readers of a journal's last line alone.

    `tried`: candidates that need no more work. `whole`: the run searched all that its header asks for, and has a
    winner. `winner`, `config`, `latency_ms`, `ir_digest`: the winner's. `reference_ms`: the reference's latency.
    """

    tried: Whole = 0
    whole: bool = False
    winner: Index | None = None
    config: dict[str, Any] | None = None
    latency_ms: Latency | None = None
    reference_ms: Latency | None = None
    ir_digest: str = ""


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    """The run, or a part of it, ended in order."""

    wall_s: Seconds
    """Seconds of this part of the run; a resumed run has several."""
    reason: str
    """``exhausted``, ``budget``, ``enough`` (by the budget ``auto``) or ``stopped``; ``unlowered`` where the first
    candidates all failed to lower, for one reason; ``mismatched`` where the default and the first all differ from the
    reference; ``merged`` where journals were merged."""
    kernel: Artifact | None = None
    """The winner's place in its library, which is kept in the cache folder: all that loading it needs."""
    roles: Roles = Roles()
    """Which parameters are outputs, and what a call does with the others."""
    found: Found | None = None
    """What the run has found; None in older journals, of which the other events tell it."""


class RunInterrupted(Event, frozen=True, kw_only=True, tag="run_interrupted"):
    """The run was cut short. `wall_s`: seconds of this part. `reason`: by what."""

    wall_s: Seconds
    reason: str


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A further part of the run began, with the work that earlier parts left. `versions`: of this part."""

    part: Whole
    """Counts from 1; the run's first part is 0."""
    versions: dict[str, str]
    accepted: tuple[str, ...] = ()
    """Accepted differences from earlier parts, a sentence each."""


class JournalRepaired(Event, frozen=True, kw_only=True, tag="journal_repaired"):
    """A half-written last line, of `cut_bytes` bytes, was cut off before the journal was continued."""

    cut_bytes: Whole


class Retired(Event, frozen=True, kw_only=True, tag="winner_proven"):
    """An event of older journals, which says nothing any more."""


AnyEvent = (
    RunStarted | SpaceSurveyed | CandidateProposed | CandidateLowered | CandidatePruned | CandidateAliased
    | ArtifactBuilt | BuildFailed | GroupSplit | CompileRepeated | DeviceReady | DeviceLost | DeviceExcluded
    | ReferenceMeasured | BenchmarkStarted | BenchmarkRepeated | CandidateMeasured | BenchmarkFailed
    | BestChanged | BitsCompared | FinalStarted | FinalOrdered | Warned | RunFinished | RunInterrupted | RunResumed
    | JournalRepaired
)  # fmt: skip
"""The union that `decode` reads."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent | Retired)


def encode(event: Event) -> bytes:
    """Return `event` as one line of JSON, without its newline."""
    return _encoder.encode(event)


def decode(line: bytes | msgspec.Raw) -> AnyEvent:
    """Return the event that `encode` made. Raises `msgspec.MsgspecError` on anything else; executes nothing."""
    found: AnyEvent = _decoder.decode(line)
    return found

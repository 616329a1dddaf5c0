"""The events of a run: frozen structs, named in the past tense, which `decode` reads as one union.

A journal has an event per line, and `atune.journal.result.Result` is a pure fold over them. Every event carries its
sequence number, its wall-clock and monotonic time, and the worker or device on which it happened.
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
"""Version of the event union. The first release has version 1. Readers refuse higher versions and accept lower ones."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False):
    """The fields of every event. `seq` counts from 0 without a gap within a run.

    These fields mean the same in all events that have them. `index`, `indices`: candidates, by their number in the
    space. `device`: the id of a device, such as ``0`` or ``cpu``. `seconds`: wall seconds of the step in its worker.
    `timing`: samples in µs, and their median in ms. `kind`: the kind of failure. `message`, `reason`: a sentence for
    people. `detail`: the last lines that the compiler, the device or the worker wrote. `printed`: output of the user's
    functions.

    Events have no cycles, so the garbage collector skips them: a run may have millions.
    """

    seq: Whole
    time: Moment
    """Wall clock, seconds since the Unix epoch."""
    mono: Seconds
    """Seconds since the run started, from a monotonic clock."""
    worker: str = "engine"
    """The worker or device on which the event happened."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """The header: the workload, its origin, the settings of the run, and the versions in use.

    `schema`: version of the format, `SCHEMA`. `workload`: its name. `total`: number of candidates. `arguments`: the
    problem. `target`: the target of code generation. `devices`: ids of the devices. `strategy`: its name. `settings`:
    ``compile``, ``benchmark``, ``pipeline``, ``seed`` and ``budget`` as they were given, and the ``command`` that was
    typed. `versions`: by package. `layout_axes`: names of the axes of layouts; None in older journals.
    """

    schema: int
    workload: str
    origin: PathText
    """``FILE.py:NAME`` if the workload came from a file, else empty."""
    fingerprint: str
    """SHA-256 of kernel source and closure, problem arguments and checks."""
    code: str = ""
    """`fingerprint` without the problem."""
    problem: Any = None
    """Identity of the problem: the arguments with the kernel's defaults, or a decorated kernel's key."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of parameters that the space sets."""
    space: str
    """SHA-256 of the candidates' keys in order, without candidates that other runs advised."""
    total: Whole
    points: int | None = None
    """Number of points of a large space, counted before constraints. The seed drew the candidates from them."""
    default: Index | None = None
    """Index of the default configuration; `BASELINE` if the space does not list it, None if there is none."""
    baseline: dict[str, Any] | None = None
    """The default configuration, if the space does not list it."""
    refused: str = ""
    """The reason that the baseline must not win: for example, a constraint refuses it; empty if it may win."""
    no_default: str = ""
    """The reason that there is no default configuration; empty if there is one."""
    arguments: dict[str, Any]
    layout_axes: tuple[str, ...] | None = None
    asks: tuple[str, ...] = ()
    """The problem's arguments that the space's functions take: its constraints, for example."""
    target: Target
    devices: tuple[str, ...]
    models: tuple[str, ...] = ()
    """The devices' models, without repetitions."""
    strategy: str
    settings: dict[str, Any]
    versions: dict[str, str]
    flops: Quantity | None = None
    """Least number of operations of a call, as the user gave it."""
    bytes: Quantity | None = None
    """Least number of bytes that a call moves to and from memory, as the user gave it."""
    torch: dict[str, Any] = {}
    """Settings of torch in this program that change results and differ from torch's defaults, by name."""
    advice: tuple[Advice, ...] = ()
    """Advice from other runs, as the strategy got it."""

    def __post_init__(self) -> None:
        groups = (self.settings.get(name, {}) for name in ("compile", "benchmark", "budget"))
        if not all(isinstance(group, dict) for group in groups) or type(self.settings.get("seed", 0)) is not int:
            raise ValueError("the settings must be dicts, and the seed an integer")


class CandidateProposed(Event, frozen=True, kw_only=True, tag="candidate_proposed"):
    """The strategy proposed a candidate. `key`: 16 hex digits of the configuration. `config`: its values by axis."""

    index: Index
    key: str
    config: dict[str, Any]
    surveyed: bool = False
    """Whether the survey proposed it, because it fails, and not the strategy. It does not count towards a budget."""
    further_layout: bool = False
    """Whether it was proposed only so that atune can choose among its configuration's layouts. No budget counts it."""


class SpaceSurveyed(Event, frozen=True, kw_only=True, tag="space_surveyed"):
    """Facts about candidates that the strategy gets besides the axes: columns with a value for each of `indices`.

    `prior`: estimates, in ms or any other unit in which less is better. `facts`: numbers that a model may learn from.
    All are rounded to six digits; None is an unknown value.
    """

    indices: tuple[Index, ...]
    prior: tuple[Quantity | None, ...] = ()
    facts: dict[str, tuple[Quantity | None, ...]] = {}
    seconds: Seconds = 0.0
    """Wall seconds of the survey, which all compile workers share."""


class CandidateLowered(Event, frozen=True, kw_only=True, tag="candidate_lowered"):
    """A candidate was lowered. `code_key`, `source_key`, `ir_digest`: digests of its code, its sources and its
    elaborated kernel; empty if unknown. `facts`: facts that are known before it is compiled."""

    index: Index
    code_key: str
    source_key: str = ""
    ir_digest: str = ""
    facts: StaticFacts
    seconds: Seconds
    deferred: str = ""
    """The reason that the screen put it last in line; empty if it did not."""
    printed: str = ""


class CandidatePruned(Event, frozen=True, kw_only=True, tag="candidate_pruned"):
    """A candidate is not compiled: it exceeds a device limit, or is `likely` to lose and the run may skip it."""

    index: Index
    reason: str
    likely: bool = False
    instead: Index | None = None
    """The preferred candidate, with another layout of the same configuration, if the run chooses layouts."""


class CandidateAliased(Event, frozen=True, kw_only=True, tag="candidate_aliased"):
    """A candidate compiles to the same code as `same_as`. The code is measured once, and credited to both."""

    index: Index
    same_as: Index


class ArtifactBuilt(Event, frozen=True, kw_only=True, tag="artifact_built"):
    """A library that contains all candidates of `indices` was compiled. `file`: its name in the run's folder."""

    indices: tuple[Index, ...]
    file: str
    seconds: Seconds
    reason: str = ""
    """The reason that the group of candidates has this size."""
    compiler: str = ""
    """``nvcc``, ``cicc`` (nvcc with the headers parsed once) or ``g++``."""
    why: str = ""
    """The reason that this compiler was chosen."""
    machine: tuple[MachineFacts | None, ...] = ()
    """Registers, stack and code size of each of `indices`; empty for target ``c``."""


class BuildFailed(Event, frozen=True, kw_only=True, tag="build_failed"):
    """A candidate failed to lower or to compile."""

    index: Index
    kind: FailureKind
    message: str
    detail: str = ""
    printed: str = ""


class GroupSplit(Event, frozen=True, kw_only=True, tag="group_split"):
    """A group failed to compile as a whole, and is compiled again in parts until the culprit is alone."""

    indices: tuple[Index, ...]
    message: str


class CompileRepeated(Event, frozen=True, kw_only=True, tag="compile_repeated"):
    """Candidates are lowered or compiled again, because their worker was lost through no fault of theirs."""

    indices: tuple[Index, ...]
    reason: str


class DeviceReady(Event, frozen=True, kw_only=True, tag="device_ready"):
    """A device is ready to measure. `device`: its description.

    `start_s`: seconds until it was ready; after a loss, they include making the inputs and running the reference.
    `stream`: the handle of the CUDA stream on which its process makes inputs, launches kernels and times them; 0 on the
    CPU. Only calls that wait for the device are timed on the default stream; see `Timing.method`.
    """

    device: DeviceInfo
    start_s: Seconds = 0.0
    stream: Whole = 0


class DeviceLost(Event, frozen=True, kw_only=True, tag="device_lost"):
    """A device's process died or was killed. `final`: it will not be started again."""

    device: str
    reason: str
    final: bool = False
    kill_s: Seconds = 0.0
    """Seconds from the deadline, or from the error's report, until the process was reaped."""


class DeviceExcluded(Event, frozen=True, kw_only=True, tag="device_excluded"):
    """A device is slower than the others, so its measurements do not count, and other devices repeat them."""

    device: str
    reason: str


class ReferenceMeasured(Event, frozen=True, kw_only=True, tag="reference_measured"):
    """The reference was timed on a device."""

    device: str
    timing: Timing


class BenchmarkStarted(Event, frozen=True, kw_only=True, tag="benchmark_started"):
    """A candidate was sent to a device, which loads, checks and times it."""

    index: Index
    device: str


class BenchmarkRepeated(Event, frozen=True, kw_only=True, tag="benchmark_repeated"):
    """A candidate is measured again, because it may not be at fault for a failure, or its latency is implausible."""

    index: Index
    device: str
    reason: str


class CandidateMeasured(Event, frozen=True, kw_only=True, tag="candidate_measured"):
    """A candidate was timed. `checked`: whether its outputs were first compared with the reference's.

    `max_error`: largest absolute difference over all outputs; None if they were not compared.
    """

    index: Index
    device: str
    timing: Timing
    checked: bool
    max_error: float | None = None
    seconds: Seconds = 0.0
    writes: tuple[Whole, ...] = ()
    """Input parameters that the kernel writes into. They are restored before each timed call."""
    set_up: tuple[Whole, ...] = ()
    """Input parameters that the workload's `setup` changed."""
    printed: str = ""
    bits: str = ""
    """Digest of its outputs for the check's inputs: equal for equal bits."""
    repeats: bool = True
    """Whether two calls on the same inputs gave the same bits."""
    memory_bytes: Whole = 0
    """Peak device memory of the device's process so far; 0 on the CPU."""


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
    """Finalists were called on inputs drawn with further seeds. `differ`: the finalists whose bits were not always the
    default's. `seeds`: number of draws, including the check's, on which all other finalists have the default's bits.
    """

    seeds: Whole
    differ: tuple[Index, ...] = ()


class FinalStarted(Event, frozen=True, kw_only=True, tag="final_started"):
    """The final began: a device times `indices`, the best few candidates and the default, in turn. Nothing compiles."""

    device: str
    indices: tuple[Index, ...]


class FinalOrdered(Event, frozen=True, kw_only=True, tag="final_ordered"):
    """The final ended: the best few candidates and the default were timed again, in turn.

    `entries`: each finalist's index and timing, fastest first. `reference`: the reference's timing in these rounds.
    """

    device: str
    entries: tuple[FinalEntry, ...]
    reference: Timing | None = None
    ties: tuple[Index, ...] = ()
    """Finalists that are statistically tied with the winner, or exactly as fast."""
    memory_bytes: Whole = 0
    """See `CandidateMeasured`."""


class Warned(Event, frozen=True, kw_only=True, tag="warned"):
    """The user is warned that a request works differently here, or of a fact that may explain a surprise."""

    message: str


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a run, for readers that read only a journal's last line.

    `tried`: number of candidates that need no more work. `whole`: whether the run searched all that its header asks
    for, and has a winner. `winner`: the winner's index; `config`, `latency_ms` and `ir_digest` are also the winner's.
    `reference_ms`: the reference's latency.
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
    """Wall seconds of this part of the run; a resumed run has several parts."""
    reason: str
    """``exhausted``, ``budget``, ``enough`` (by the budget ``auto``) or ``stopped``; ``unlowered`` if the first
    candidates all failed to lower, for the same reason; ``mismatched`` if the outputs of the default and of the first
    candidates all differ from the reference's; ``merged`` if journals were merged."""
    kernel: Artifact | None = None
    """The winner's place in its library. The cache folder keeps the library, and loading needs nothing else."""
    roles: Roles = Roles()
    """Roles of the kernel's parameters: which are outputs, and how a call treats the other parameters."""
    found: Found | None = None
    """The outcome of the run; None in older journals, where only other events show the outcome."""


class RunInterrupted(Event, frozen=True, kw_only=True, tag="run_interrupted"):
    """The run was cut short. `wall_s`: wall seconds of this part. `reason`: the cause."""

    wall_s: Seconds
    reason: str


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """A further part of the run began, with the work that earlier parts left. `versions`: those in use in this part."""

    part: Whole
    """Number of the part: 1 for the first resumption."""
    versions: dict[str, str]
    accepted: tuple[str, ...] = ()
    """Differences from earlier parts that the user accepted, a sentence each."""


class JournalRepaired(Event, frozen=True, kw_only=True, tag="journal_repaired"):
    """A half-written last line of `cut_bytes` bytes was cut off before the journal was continued."""

    cut_bytes: Whole


class Retired(Event, frozen=True, kw_only=True, tag="winner_proven"):
    """An event of older journals that is ignored."""


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
    """Return the event that `encode` wrote. Raises `msgspec.MsgspecError` for any other text; executes nothing."""
    event: AnyEvent = _decoder.decode(line)
    return event

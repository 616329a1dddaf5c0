"""The events of a run. Each event is a frozen struct with a name in the past tense. `decode` returns any event.

A journal has one event per line, and `atune.journal.result.Result` is computed from nothing but the events. Every event
has a sequence number, a wall-clock time, a monotonic time, and the worker or device on which it happened.
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
"""Version of the events' format. The first release writes version 1. Readers refuse higher versions."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False):
    """The fields of every event. `seq`: the events of a run are numbered 0, 1, 2 and so on, without gaps.

    The following fields mean the same in all events that have them. `index`: the number of a candidate in the space.
    `indices`: the numbers of candidates. `device`: the id of a device, such as ``0`` or ``cpu``. `seconds`: the time
    that the worker took for the step. `timing`: samples in µs, and their median in ms. `kind`: the kind of failure.
    `message` and `reason`: a sentence for the user. `detail`: the last lines that the compiler, the device or the
    worker wrote. `printed`: what the user's functions printed. Events contain no reference cycles, so the garbage
    collector skips the events of a run, which may be millions.
    """

    seq: Whole
    time: Moment
    """Wall-clock time, in seconds since the Unix epoch."""
    mono: Seconds
    """Seconds since the start of the run, measured with a monotonic clock."""
    worker: str = "engine"
    """The worker or device on which the event happened."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """The journal's header: the workload and its origin, the settings of the run, and the versions of packages.

    `schema`: the version of the format (`SCHEMA`). `workload`: the workload's name. `total`: the number of candidates.
    `arguments`: the problem's arguments. `target`: the target of code generation. `devices`: the devices' ids.
    `strategy`: the strategy's name. `settings`: ``compile``, ``benchmark``, ``pipeline``, ``seed`` and ``budget`` as
    the user gave them, and the ``command`` that the user typed. `versions`: the version of each package.
    `layout_axes`: the names of the axes whose values are layouts. None in older journals.
    """

    schema: int
    workload: str
    origin: PathText
    """``FILE.py:NAME`` if the workload came from a file, otherwise an empty string."""
    fingerprint: str
    """SHA-256 of the kernel's source and closure, the problem's arguments, and the options of the check."""
    code: str = ""
    """SHA-256 of the same data as `fingerprint`, but without the problem's arguments."""
    problem: Any = None
    """The identity of the problem: the arguments and the kernel's default values, or the key of a decorated kernel."""
    kernel: str = ""
    """SHA-256 of only the kernel's source and closure. Defaults of parameters that the space sets are left out."""
    space: str
    """SHA-256 of the candidates' keys, in order. Candidates that came as advice from other runs are left out."""
    total: Whole
    points: int | None = None
    """Number of points of a large space, before any constraint. The seed determines which points became candidates."""
    default: Index | None = None
    """The default configuration's index. `BASELINE` if the space does not list the default. None without a default."""
    baseline: dict[str, Any] | None = None
    """The default configuration if the space does not list it, otherwise None."""
    refused: str = ""
    """The reason that the baseline must not win: for example, a constraint refuses it. Empty if it may win."""
    no_default: str = ""
    """The reason that there is no default configuration. Empty if there is a default configuration."""
    arguments: dict[str, Any]
    layout_axes: tuple[str, ...] | None = None
    asks: tuple[str, ...] = ()
    """Names of the problem's arguments that functions of the space take, such as its constraints."""
    target: Target
    devices: tuple[str, ...]
    models: tuple[str, ...] = ()
    strategy: str
    settings: dict[str, Any]
    versions: dict[str, str]
    flops: Quantity | None = None
    """The smallest number of operations that a call can take. None unless the user gave this number."""
    bytes: Quantity | None = None
    """The smallest number of bytes that a call can move to and from memory. None unless the user gave this number."""
    torch: dict[str, Any] = {}
    """The values of torch settings that affect results, if they differ from torch's defaults in this program."""
    advice: tuple[Advice, ...] = ()

    def __post_init__(self) -> None:
        groups = (self.settings.get(name, {}) for name in ("compile", "benchmark", "budget"))
        if not all(isinstance(group, dict) for group in groups) or type(self.settings.get("seed", 0)) is not int:
            raise ValueError("the settings must be dicts, and the seed an integer")


class CandidateProposed(Event, frozen=True, kw_only=True, tag="candidate_proposed"):
    """The strategy proposed a candidate. `key`: 16 hex digits of the configuration's hash. `config`: values by axis."""

    index: Index
    key: str
    config: dict[str, Any]
    surveyed: bool = False
    """Whether the survey proposed the candidate, which cannot be elaborated. No budget includes the candidate."""
    further_layout: bool = False
    """Whether the candidate is another layout of a configuration, and was proposed only so that atune can choose among
    the layouts. No budget includes the candidate."""


class SpaceSurveyed(Event, frozen=True, kw_only=True, tag="space_surveyed"):
    """The survey of the candidates `indices` ended. The strategy uses the survey's facts, and also knows the axes.

    `prior`: an estimate for each candidate. A smaller estimate is better, and the unit need not be ms. `facts`: for the
    strategy's models, named columns with a number for each candidate. A number has six digits, or is None if unknown.
    """

    indices: tuple[Index, ...]
    prior: tuple[Quantity | None, ...] = ()
    facts: dict[str, tuple[Quantity | None, ...]] = {}
    seconds: Seconds = 0.0
    """Elapsed seconds of the survey, in which all compile workers took part."""


class CandidateLowered(Event, frozen=True, kw_only=True, tag="candidate_lowered"):
    """A candidate was lowered. `code_key`, `source_key` and `ir_digest`: digests of the candidate's code, sources and
    elaborated kernel, or empty if unknown. `facts`: facts about the candidate that are known before compiling."""

    index: Index
    code_key: str
    source_key: str = ""
    ir_digest: str = ""
    facts: StaticFacts
    seconds: Seconds
    deferred: str = ""
    """The reason that the candidate is compiled after all others. Empty if the candidate is not deferred."""
    printed: str = ""


class CandidatePruned(Event, frozen=True, kw_only=True, tag="candidate_pruned"):
    """A candidate is not compiled, because it exceeds a limit of the device, or because it is `likely` to lose."""

    index: Index
    reason: str
    likely: bool = False
    instead: Index | None = None
    """The candidate that is compiled instead, whose layout of the same configuration seems better; otherwise None."""


class CandidateAliased(Event, frozen=True, kw_only=True, tag="candidate_aliased"):
    """A candidate has the same code as candidate `same_as`. The code is measured once, for both candidates."""

    index: Index
    same_as: Index


class ArtifactBuilt(Event, frozen=True, kw_only=True, tag="artifact_built"):
    """A library with the candidates `indices` was compiled. `file`: the library's file name in the run's folder."""

    indices: tuple[Index, ...]
    file: str
    seconds: Seconds
    reason: str = ""
    """The reason for the number of candidates in this library."""
    compiler: str = ""
    """``nvcc``, ``g++``, or ``cicc``, which is a part of nvcc. With ``cicc``, the headers are parsed only once."""
    why: str = ""
    """The reason that this compiler was chosen."""
    machine: tuple[MachineFacts | None, ...] = ()
    """Registers, stack and code size of each candidate. Empty if the target is ``c``."""


class BuildFailed(Event, frozen=True, kw_only=True, tag="build_failed"):
    """A candidate failed to lower or to compile."""

    index: Index
    kind: FailureKind
    message: str
    detail: str = ""
    printed: str = ""


class GroupSplit(Event, frozen=True, kw_only=True, tag="group_split"):
    """A group of candidates failed to compile together. Smaller groups are now compiled, to isolate the culprit."""

    indices: tuple[Index, ...]
    message: str


class CompileRepeated(Event, frozen=True, kw_only=True, tag="compile_repeated"):
    """Candidates are lowered or compiled again, because the worker was lost and the candidates are not to blame."""

    indices: tuple[Index, ...]
    reason: str


class DeviceReady(Event, frozen=True, kw_only=True, tag="device_ready"):
    """A device is ready to measure. `device`: the device's description.

    `start_s`: seconds until the device was ready. After a process was lost, this includes making the inputs and running
    the reference. `stream`: the handle of the CUDA stream on which the device's process makes inputs, launches kernels
    and times them; 0 on the CPU. A call that waits for the device is timed on the default stream: see `Timing.method`.
    """

    device: DeviceInfo
    start_s: Seconds = 0.0
    stream: Whole = 0


class DeviceLost(Event, frozen=True, kw_only=True, tag="device_lost"):
    """The process of a device died or was killed. `final`: whether the run stops using the device."""

    device: str
    reason: str
    final: bool = False
    kill_s: Seconds = 0.0
    """Seconds from the missed deadline or the reported error until the process had ended."""


class DeviceExcluded(Event, frozen=True, kw_only=True, tag="device_excluded"):
    """A device is slower than the other devices, so its measurements are discarded, and other devices repeat them."""

    device: str
    reason: str


class ReferenceMeasured(Event, frozen=True, kw_only=True, tag="reference_measured"):
    """The reference was timed on a device."""

    device: str
    timing: Timing


class BenchmarkStarted(Event, frozen=True, kw_only=True, tag="benchmark_started"):
    """A candidate was sent to a device, which now loads, checks and times the candidate."""

    index: Index
    device: str


class BenchmarkRepeated(Event, frozen=True, kw_only=True, tag="benchmark_repeated"):
    """A candidate is measured again, because its latency is implausible, or something else may have made it fail."""

    index: Index
    device: str
    reason: str


class CandidateMeasured(Event, frozen=True, kw_only=True, tag="candidate_measured"):
    """A candidate was timed. `checked`: whether the candidate's outputs were compared with the reference's outputs, and
    were not all empty.

    `max_error`: the largest absolute difference over all outputs, or None if the outputs were not compared.
    """

    index: Index
    device: str
    timing: Timing
    checked: bool
    max_error: float | None = None
    seconds: Seconds = 0.0
    writes: tuple[Whole, ...] = ()
    """Positions of the inputs that the kernel writes into. The inputs are restored before each timed call."""
    set_up: tuple[Whole, ...] = ()
    """Positions of the inputs that the workload's `setup` changed."""
    printed: str = ""
    bits: str = ""
    """A digest of the outputs for the check's inputs. Outputs with equal bits have equal digests."""
    repeats: bool = True
    """Whether the outputs of two calls with the same inputs had the same bits."""
    memory_bytes: Whole = 0
    """Peak device memory of the device's process so far, in bytes. 0 on the CPU."""


class BenchmarkFailed(Event, frozen=True, kw_only=True, tag="benchmark_failed"):
    """A candidate failed on a device."""

    index: Index
    device: str
    kind: FailureKind
    message: str
    detail: str = ""
    printed: str = ""


class BestChanged(Event, frozen=True, kw_only=True, tag="best_changed"):
    """A candidate is the fastest so far, by its first timing. `latency_ms`: the median latency of the candidate."""

    index: Index
    latency_ms: Latency


class BitsCompared(Event, frozen=True, kw_only=True, tag="bits_compared"):
    """Finalists were called with inputs from further seeds, to compare their outputs with the default's outputs.
    `differ`: the finalists whose output bits ever differed from the default's. `seeds`: the number of draws of inputs
    that were compared, including the draw for the check."""

    seeds: Whole
    differ: tuple[Index, ...] = ()


class FinalStarted(Event, frozen=True, kw_only=True, tag="final_started"):
    """The final began. A device times `indices` in turn: the best candidates and the default. Nothing is compiled."""

    device: str
    indices: tuple[Index, ...]


class FinalOrdered(Event, frozen=True, kw_only=True, tag="final_ordered"):
    """The final ended. In the final, the best candidates and the default were timed again, in turn.

    `entries`: each finalist's index and timing, fastest first. `reference`: the reference's timing in the same rounds.
    """

    device: str
    entries: tuple[FinalEntry, ...]
    reference: Timing | None = None
    ties: tuple[Index, ...] = ()
    """The finalists that are statistically tied with the winner, or exactly as fast as the winner."""
    memory_bytes: Whole = 0
    """Peak device memory of the device's process so far, in bytes. 0 on the CPU."""


class Warned(Event, frozen=True, kw_only=True, tag="warned"):
    """The user was warned that an option works differently in this run, or that a result may be surprising, and why."""

    message: str


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a run, for programs that read only the last line of a journal.

    `tried`: the number of candidates that need no more work. `whole`: whether the run has a winner and searched
    everything that its header asks for. `winner`: the winner's index. `config`, `latency_ms` and `ir_digest` describe
    the winner. `reference_ms`: the reference's latency.
    """

    tried: Whole = 0
    whole: bool = False
    winner: Index | None = None
    config: dict[str, Any] | None = None
    latency_ms: Latency | None = None
    reference_ms: Latency | None = None
    ir_digest: str = ""


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    """The run, or a part of a resumed run, ended normally."""

    wall_s: Seconds
    """Elapsed seconds of this part of the run. A resumed run has several parts."""
    reason: str
    """The reason that the run ended. ``exhausted``: the strategy has no more candidates. ``budget``: the budget is used
    up. ``enough``: the budget ``auto`` ended the run. ``stopped``: `stop` was called. ``unlowered``: the first
    candidates all failed to lower, for the same reason. ``mismatched``: the outputs of the default and of the first
    candidates all differ from the reference outputs. ``merged``: the journal was merged from several journals."""
    kernel: Artifact | None = None
    """The winner's library in the cache folder, and the winner's symbol in this library. Loading needs nothing else."""
    roles: Roles = Roles()
    """The roles of the kernel's parameters, such as outputs, and inputs that a call sets to zero."""
    found: Found | None = None
    """The outcome of the run. None in older journals, whose outcome follows from the other events."""


class RunInterrupted(Event, frozen=True, kw_only=True, tag="run_interrupted"):
    """The run was interrupted. `wall_s`: the elapsed seconds of this part of the run. `reason`: the cause."""

    wall_s: Seconds
    reason: str


class RunResumed(Event, frozen=True, kw_only=True, tag="run_resumed"):
    """The run was resumed: a new part does the remaining work. `versions`: the package versions of this part."""

    part: Whole
    """How many times the run was resumed, including this time."""
    versions: dict[str, str]
    accepted: tuple[str, ...] = ()
    """A sentence for each difference from the earlier parts. The user accepted these differences."""


class JournalRepaired(Event, frozen=True, kw_only=True, tag="journal_repaired"):
    """An incomplete last line of `cut_bytes` bytes was removed before the journal was continued."""

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
"""The union of all types of events that `decode` returns."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent | Retired)


def encode(event: Event) -> bytes:
    """Return `event` as one line of JSON, without a newline at the end."""
    return _encoder.encode(event)


def decode(line: bytes | msgspec.Raw) -> AnyEvent:
    """Return the event that `encode` encoded. Raises `msgspec.MsgspecError` for any other line. Executes no code."""
    event: AnyEvent = _decoder.decode(line)
    return event

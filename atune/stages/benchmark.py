"""Artifact → Measurement, in the device's own process: load, check against the reference, time."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from atune.artifact import Artifact, Failure, FailureKind
from atune.device import DeviceInfo
from atune.measurement import FinalEntry, Measurement, Timing
from atune.protocol import Final, Finals
from atune.stages.inputs import Arguments, compare, expected_outputs
from atune.stages.loader import load
from atune.stages.session import session, workload
from atune.stages.timer import Timer, make_timer

_POISONED = re.compile(
    r"illegal memory|misaligned address|unspecified launch failure|device-side assert|illegal instruction|"
    r"invalid program counter|hardware stack|ECC|CUDA_ERROR_(ILLEGAL|MISALIGNED|LAUNCH_FAILED|ASSERT|HARDWARE|INVALID_PC|ECC)",
    re.IGNORECASE,
)
"""What the driver says once a context is beyond repair (CUDA driver API, «CUresult»: «This leaves the process in an
inconsistent state»)."""


class _Device:
    """This process's device: made by `prepare`, used by every call after it."""

    timer: Timer
    arguments: Arguments | None = None
    expected: list[Any] | None = None


_device = _Device()


def begin(payload: bytes) -> bytes:
    """Entry point: make the device's context, before any artifact exists. Returns a `DeviceInfo`."""
    info = msgspec.msgpack.decode(payload, type=DeviceInfo)
    if info.id != "cpu":
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        visible = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        if info.uuid and visible != info.uuid:
            raise RuntimeError(f"asked for {info.uuid}, CUDA shows {visible}")
    else:
        import torch

        torch.set_num_threads(1)  # the kernel runs on one core; so does the reference beside it
    _device.timer = make_timer("cpu" if info.id == "cpu" else "cuda")
    return msgspec.msgpack.encode(info)


def prepare(payload: bytes) -> bytes:
    """Entry point: (`Artifact`, whether to time) → `Finals` without entries: inputs made, reference run and timed."""
    artifact, timed = msgspec.msgpack.decode(payload, type=tuple[Artifact, bool])
    _make_arguments(artifact)
    reference = _time_reference() if timed and workload().reference is not None else None
    return msgspec.msgpack.encode(Finals((), reference))


def measure(payload: bytes) -> bytes:
    """Entry point: msgpack of an `Artifact` → msgpack of `Measurement` or `Failure`."""
    artifact = msgspec.msgpack.decode(payload, type=Artifact)
    started = time.perf_counter()
    if not session().benchmark.cache_inputs or _device.arguments is None or _device.arguments.params != artifact.params:
        _make_arguments(artifact)
    result: Measurement | Failure
    try:
        function = load(artifact)
    except Exception as error:
        result = Failure(artifact.index, "load", _words(error))
    else:
        try:
            result = _checked_and_timed(artifact, function, started)
        except Exception as error:
            result = Failure(artifact.index, _kind(error), _words(error))
    if isinstance(result, Failure) and result.kind == "out_of_memory":
        _release()
    return msgspec.msgpack.encode(result)


def final(payload: bytes) -> bytes:
    """Entry point: msgpack of `Final` → msgpack of `Finals`: all timed in turn, every round in another order."""
    job = msgspec.msgpack.decode(payload, type=Final)
    arguments = _device.arguments
    if arguments is None:
        _make_arguments(job.artifacts[0])
        arguments = _device.arguments
    assert arguments is not None
    values = arguments.values
    calls: list[Callable[[], Any]] = [functools.partial(load(artifact), *values) for artifact in job.artifacts]
    reference = workload().reference
    if reference is not None:
        inputs = arguments.copies()
        calls.append(lambda: reference(*inputs))
    samples = _device.timer.interleaved(calls, job.rounds, session().benchmark.n_warmup)
    method = _device.timer.method
    entries = tuple(FinalEntry(a.index, Timing.of(s, method)) for a, s in zip(job.artifacts, samples, strict=False))
    timed_reference = Timing.of(samples[-1], method) if reference is not None else None
    arguments.restore_inputs()
    return msgspec.msgpack.encode(Finals(entries, timed_reference))


def outputs(payload: bytes) -> bytes:
    """Entry point: run an `Artifact` once on poisoned outputs and return them as raw bytes, one a parameter.

    For contract tests: which member of a shared library was really called?
    """
    import torch

    artifact = msgspec.msgpack.decode(payload, type=Artifact)
    if _device.arguments is None:
        _make_arguments(artifact)
    arguments = _device.arguments
    assert arguments is not None
    arguments.poison()
    load(artifact)(*arguments.values)
    _device.timer.synchronise()
    return msgspec.msgpack.encode(
        [bytes(o.cpu().contiguous().view(torch.uint8).numpy().tobytes()) for o in arguments.outputs]
    )


def _make_arguments(artifact: Artifact) -> None:
    device = "cpu" if session().device == "cpu" else "cuda"
    _device.arguments = Arguments(workload(), artifact.params, device, session().benchmark.seed)
    _device.expected = None
    if workload().reference is not None:
        _device.expected = expected_outputs(workload(), _device.arguments)


def _time_reference() -> Timing:
    reference, arguments = workload().reference, _device.arguments
    assert reference is not None and arguments is not None
    inputs = arguments.copies()
    settings = session().benchmark
    samples = _device.timer.samples(lambda: reference(*inputs), settings.n_warmup, settings.n_repeat)
    return Timing.of(samples, _device.timer.method)


def _checked_and_timed(artifact: Artifact, function: Callable[..., None], started: float) -> Measurement | Failure:
    arguments, settings = _device.arguments, session().benchmark
    assert arguments is not None
    worst: float | None = None
    if settings.check and _device.expected is not None:
        arguments.poison()
        function(*arguments.values)
        _device.timer.synchronise()
        wrong, worst = compare(arguments.outputs, _device.expected, workload())
        if wrong is not None:
            arguments.restore_inputs()
            return Failure(artifact.index, wrong.kind, wrong.message)
    samples = _device.timer.samples(lambda: function(*arguments.values), settings.n_warmup, settings.n_repeat)
    arguments.restore_inputs()
    seconds = round(time.perf_counter() - started, 4)
    return Measurement(artifact.index, Timing.of(samples, _device.timer.method), worst is not None, worst, seconds)


def _kind(error: BaseException) -> FailureKind:
    text = f"{type(error).__name__}: {error}"
    if "out of memory" in text.lower() or "OutOfMemory" in text:
        return "out_of_memory"
    return "fault" if _POISONED.search(text) else "launch"


def _words(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:500]


def _release() -> None:
    import gc

    import torch

    _device.arguments = None
    gc.collect()
    if session().device != "cpu":
        torch.cuda.empty_cache()

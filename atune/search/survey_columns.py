"""The survey's results, as columns of an event and as fields of `Searched`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from atune.journal.events import SpaceSurveyed
from atune.model.artifact import StaticFacts
from atune.model.candidate import Config
from atune.model.device import DeviceInfo, Target
from atune.model.roofline import Peaks
from atune.search.prior import Chosen, OwnPrior, estimates, features


class Architecture(NamedTuple):
    """Figures of one multiprocessor (SM) of an architecture."""

    tensor_flops: int
    """Tensor core operations a clock in bfloat16; those of gaming boards, if server boards do more."""
    smem_bytes: int
    """Bytes of shared memory."""
    threads: int
    blocks: int
    lanes: int
    """Float32 operations a clock, one for each lane."""
    warp_groups: bool = False
    """Whether groups of four warps multiply with operands in shared memory (wgmma)."""


ARCHITECTURES = {
    "80": Architecture(2048, 164 << 10, 2048, 32, 64),  # 312 TFLOP/s of 108 at 1.41 GHz
    "86": Architecture(512, 100 << 10, 1536, 16, 128),  # 71 TFLOP/s of 82 at 1.70 GHz
    "89": Architecture(512, 100 << 10, 1536, 24, 128),  # 165 TFLOP/s of 128 at 2.52 GHz
    "90": Architecture(4096, 228 << 10, 2048, 32, 128, True),  # 989 TFLOP/s of 132 at 1.83 GHz
    "100": Architecture(8192, 228 << 10, 2048, 32, 128),  # 2.25 PFLOP/s of 148 at 1.85 GHz
    "120": Architecture(512, 100 << 10, 1536, 24, 128),  # 210 TFLOP/s of 170 at 2.41 GHz
}
"""By compute capability. An unknown one uses the next older entry."""


class Sheet(NamedTuple):
    """A board's figures from its data sheet."""

    capability: str
    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    tensor_flops: int = 0
    """Fields of `Architecture` in which this board differs."""


SHEETS = {
    "H200": Sheet("90", 132, 1.83e9, 4.8e12, 50 << 20),  # «H200 Tensor Core GPU»; the rest as the H100
    "H100 PCIE": Sheet("90", 114, 1.755e9, 2.0e12, 50 << 20),  # «H100 Tensor Core GPU», «H100 Architecture», table 3
    "H100": Sheet("90", 132, 1.83e9, 3.35e12, 50 << 20),
    "A100": Sheet("80", 108, 1.41e9, 2.039e12, 40 << 20),  # «A100 80GB», «A100 Tensor Core GPU Architecture», table 1
    "A10": Sheet("86", 72, 1.695e9, 6.0e11, 6 << 20, 1024),  # «A10 Tensor Core GPU»
    "RTX 3090": Sheet("86", 82, 1.695e9, 9.36e11, 6 << 20),  # «GA102 Architecture», table 2
    "RTX 4090": Sheet("89", 128, 2.52e9, 1.008e12, 72 << 20),  # «Ada GPU Architecture», table 2
    "L40S": Sheet("89", 142, 2.52e9, 8.64e11, 96 << 20, 1024),  # «L40S»
    "L4": Sheet("89", 58, 2.04e9, 3.0e11, 48 << 20, 1024),  # «L4 Tensor Core GPU»
    "B200": Sheet("100", 148, 1.85e9, 8.0e12, 126 << 20),  # «HGX B200», a GPU's share
    "RTX 5090": Sheet("120", 170, 2.41e9, 1.792e12, 96 << 20),  # «Blackwell GPU Architecture», appendix A
}
"""By words in a device's name; the first match counts."""
TYPICAL = {"80": "A100", "86": "RTX 3090", "89": "RTX 4090", "90": "H100", "100": "B200", "120": "RTX 5090"}
"""The sheet to use for unknown boards of a compute capability."""


class Figures(msgspec.Struct, frozen=True):
    """A device's figures for the prior. A multiprocessor is an SM."""

    sms: int
    clock_hz: float
    memory_bytes_s: float
    l2_bytes: int
    architecture: Architecture
    registers: int = 65536
    """32-bit registers of an SM, on all architectures here."""


def figures_of(device: DeviceInfo | None, arch: str = "") -> Figures | None:
    """Return the figures of `device`; without a device, those of a typical board of `arch`, such as ``sm_90a``.

    What the device reports overrides the sheet. Returns None if it is no CUDA GPU of these architectures.
    """
    capability = _capability((device.arch if device else "") or arch)
    if not capability:
        return None
    name = re.sub(r"[^A-Z0-9]+", " ", device.name.upper()) if device else ""
    named = next((sheet for words, sheet in SHEETS.items() if f" {words} " in f" {name} "), None)
    sheet = named or SHEETS[TYPICAL[capability]]
    architecture = ARCHITECTURES[capability]
    if sheet.tensor_flops:
        architecture = architecture._replace(tensor_flops=sheet.tensor_flops)
    return Figures(
        sms=(device.sms if device else 0) or sheet.sms,
        clock_hz=(device.clock_hz if device else 0.0) or sheet.clock_hz,
        memory_bytes_s=(device.memory_bytes_s if device else 0.0) or sheet.memory_bytes_s,
        l2_bytes=sheet.l2_bytes,
        architecture=architecture,
    )


def with_peaks(device: DeviceInfo) -> DeviceInfo:
    """Return `device` with its peaks by the data sheet: None for an architecture without a sheet.

    Tensor cores count with the sheet's clock, which they hold under load. Memory counts with the device's own figure.
    """
    figures, sheet = figures_of(device), figures_of(msgspec.structs.replace(device, clock_hz=0.0))
    if figures is None or sheet is None:
        return device
    flops_s = float(sheet.sms * sheet.clock_hz * sheet.architecture.tensor_flops)
    return msgspec.structs.replace(device, peaks=Peaks(flops_s=flops_s, bytes_s=figures.memory_bytes_s))


def _capability(arch: str) -> str:
    """Return the key in `ARCHITECTURES` for an arch: its own, or the next older one; empty if none is older."""
    digits = re.sub(r"\D", "", arch)
    older = [known for known in ARCHITECTURES if digits and int(known) <= int(digits)]
    return max(older, key=int, default="")


DIGITS = 6


def figures_for(target: Target | None, devices: Sequence[DeviceInfo]) -> Figures | None:
    """Return the figures that a run's prior uses; None if there are none, as for the CPU."""
    if target is None or target.kind != "cuda":
        return None
    return figures_of(devices[0] if devices else None, target.arch)


def there_is(prior: Chosen, figures: Figures | None) -> bool:
    """Tell whether a run has a prior: a user's, or that from the machine where its figures are known."""
    return isinstance(prior, OwnPrior) or (prior is not None and figures is not None)


def columns(prior: Mapping[int, float], facts: Mapping[int, StaticFacts], figures: Figures | None) -> dict[str, Any]:
    """Return the fields of `SpaceSurveyed`, by what is known of candidates; of facts those that tell them apart."""
    indices = tuple(sorted(facts))
    known = {index: features(facts[index], figures) for index in indices} if figures is not None else {}
    names = sorted({name for one in known.values() for name in one})
    table = {name: tuple(_rounded(known[index].get(name)) for index in indices) for name in names}
    return {
        "indices": indices,
        "prior": tuple(_rounded(prior.get(index)) for index in indices) if prior else (),
        "facts": {name: column for name, column in table.items() if len(set(column)) > 1},
    }


def told_of(configs: Mapping[int, Config], facts: Mapping[int, StaticFacts], figures: Figures | None) -> dict[str, Any]:
    """Return what `Searched` has of `facts`, as a run would that surveys the space."""
    known = {index: (configs[index], one) for index, one in facts.items() if index in configs}
    scores = estimates(known, figures)
    fields = columns(scores, {index: one for index, (_, one) in known.items()}, figures)
    return told(SpaceSurveyed(seq=0, time=0.0, mono=0.0, **fields)) if scores else {}


def told(surveyed: SpaceSurveyed | None) -> dict[str, Any]:
    """Return what `Searched` has of a survey: `prior` and `facts`; neither where there was none."""
    if surveyed is None:
        return {}
    prior = {index: value for index, value in zip(surveyed.indices, surveyed.prior, strict=False) if value is not None}
    facts = dict[int, dict[str, float]]()
    for name, column in surveyed.facts.items():
        for index, value in zip(surveyed.indices, column, strict=False):
            if value is not None:
                facts.setdefault(index, {})[name] = value
    return {"prior": prior or None, "facts": facts}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")

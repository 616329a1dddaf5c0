"""The machine that a bundle needs, and whether this is one."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from atune.bundle.errors import WrongMachine

X86_FEATURES = r"pni|s?sse|avx|amx|fma|f16c|bmi|abm|popcnt|v?aes|sha|gfni|v?pclmul|movbe|adx|xop|tbm|rdrand|rdseed"
"""Beginnings of those flags in /proc/cpuinfo that name instructions for ``-march=native``."""


def this_cpu() -> dict[str, Any]:
    """Return this machine's architecture, its CPU's name, and the sets of instructions that compilers take from it."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    found = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", info, re.MULTILINE))
    features = [flag for flag in found.get("flags", "").split() if re.match(X86_FEATURES, flag)]
    features = features or found.get("Features", "").split()
    return {"machine": platform.machine(), "name": found.get("model name", "CPU"), "features": sorted(features)}


def check_machine(plain: Mapping[str, Any]) -> None:
    """Raise `WrongMachine` if the bundle with the manifest `plain` cannot run here."""
    here = this_cpu()
    if plain["cpu"]["machine"] != here["machine"]:
        raise WrongMachine(f"the bundle is for {plain['cpu']['machine']}, and this machine is {here['machine']}")
    if lacking := sorted(set(plain["cpu"]["features"]) - set(here["features"])):
        raise WrongMachine(
            f"the bundle was compiled on {plain['cpu']['name']}, and this CPU, {here['name']}, lacks "
            f"{', '.join(lacking)}: tune on this CPU, or with CompileSettings(flags=('-O3',))"
        )
    for package, wanted in plain["requires"].items():
        _check_package(package, wanted)
    if plain["target"] == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise WrongMachine(f"the bundle is for CUDA devices of {plain['arch']}, and torch finds no CUDA device")


def _check_package(name: str, wanted: str) -> None:
    """Raise `WrongMachine` unless the package's version is in the range `wanted`, such as ``>=0.1.11,<0.1.13``."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise WrongMachine(f"the bundle needs {name}: pip install '{name}{wanted}'") from None
    for comparison, bound in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.]+)", wanted):
        here, there = _numbers(version), _numbers(bound)
        fits = {
            ">=": here >= there, "<=": here <= there, "==": here == there,
            "!=": here != there, "<": here < there, ">": here > there,
        }  # fmt: skip
        if not fits[comparison]:
            raise WrongMachine(f"the bundle needs {name}{wanted}, and {version} is installed")


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def check_device(arch: str, device: Any) -> None:
    """Raise `WrongMachine` if torch's CUDA device `device` does not run code for `arch`, such as ``sm_90a``.

    Machine code runs on its own major version, from its minor version on. With ``a`` it runs on that version alone
    (CUDA C++ Programming Guide, «Feature Availability»).
    """
    import torch

    wanted, suffix = re.match(r"sm_(\d+)([af]?)", arch).groups()  # type: ignore[union-attr]
    major, minor = int(wanted[:-1]), int(wanted[-1])
    there = torch.cuda.get_device_capability(device)
    if there[0] != major or there[1] < minor or (suffix == "a" and there[1] != minor):
        name = torch.cuda.get_device_name(device)
        raise WrongMachine(f"the bundle is for {arch}, and {device} is {name}, sm_{there[0]}{there[1]}: tune on it")

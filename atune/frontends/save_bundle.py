"""Write bundles for `atune.bundle` to load: the winners' libraries, and a manifest that describes them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from atune.bundle import launch
from atune.bundle.manifest import MANIFEST, MANIFEST_SCHEMA, RUNTIME, manifest_digest, named
from atune.engine.settings import check_code, check_parts
from atune.errors import UsageError
from atune.frontends.blocking import run_blocking
from atune.frontends.compile_all import plain_library
from atune.frontends.resume import options_of, origin_of, say_as_warning
from atune.journal.events import RunStarted
from atune.journal.result import Record, Result
from atune.model.artifact import Artifact
from atune.model.candidate import COMPILE_FLAGS, DYNAMIC, Candidate, is_size, with_tuples
from atune.model.settings import CPU_FLAGS, CompileSettings
from atune.workload.pickling import FileRef

Files = dict[str, bytes]
"""Contents of a bundle's files, by name."""
OTHER_CODE = "the winner's library does not have the code that the run measured: tune again"


def save_bundle(
    folder: str | os.PathLike[str],
    results: Sequence[Result],
    *,
    accept: Sequence[str] = (),
    say: Callable[[str], object] = say_as_warning,
) -> str:
    """Write the winners of `results`, which must be of the same kernel, as a bundle into the new folder `folder`.

    If the compiler state that produced a winner's library was never compared with nvcc, nvcc compiles the winner again,
    from the file that the journal names. `say` is called before this file runs.

    Returns the bundle's digest, a SHA-256 of its whole content. Raises `UsageError` if a result cannot be bundled, for
    example because its library is gone. Raises `CompileFailed`.

    Parameters
    ----------
    folder
        The bundle's folder, which must be new or empty. The folder is written completely or not at all.
    results
        Results of finished runs, each for a different problem.
    accept
        ``["settings"]`` allows settings of a journal that can run programs, such as flags.
    say
        A function that gets the message that a file is about to run. By default, the message is a warning.
    """
    check_parts(accept)
    if not results:
        raise UsageError("a bundle needs at least one result")
    _check(results)
    path = Path(folder)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists and is not empty: give a new folder")
    cpu, target, files = launch.this_cpu(), results[0].header.target, Files()
    problems = [_problem(result, files, *_library(result, accept, say)) for result in results]
    native = any(map(_is_native, results))
    if target.kind == "cuda":
        files |= _runtime()
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "kernel": results[0].header.workload,
        "target": target.kind,
        "arch": target.arch,
        "cpu": {**cpu, "features": cpu["features"] if native else []},
        "requires": {"apache-tvm-ffi": _required("apache-tvm-ffi")} if target.kind == "cuda" else {},
        "asks": sorted({n for each in results for n in each.header.asks if is_size(each.header.arguments[n])}),
        "problems": problems,
        "files": {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
    }
    plain = json.loads(json.dumps(manifest))  # as a reader gets it, with lists instead of tuples
    plain["digest"] = manifest_digest(plain)
    _write(path, {**files, MANIFEST: json.dumps(plain, indent=1).encode() + b"\n"})
    return str(plain["digest"])


def _check(results: Sequence[Result]) -> None:
    """Raise `UsageError` unless all runs have finished, share the kernel and target, and have different problems."""
    first, seen = results[0].header, set[str]()
    for result in results:
        what = f"the run of {result.journal}" if result.journal else "the run"
        if result.best is None:
            raise UsageError(f"{what} has no winner: there is nothing to put into a bundle")
        if not result.finished:
            raise UsageError(f"{what} did not finish: resume it first")
        header, problem = result.header, named(plain_problem(result.header))
        where = f" ({result.journal})" if result.journal else ""
        if header.kernel != first.kernel:
            raise UsageError(f"a bundle holds one kernel, but {problem}{where} is of a different kernel")
        if header.target != first.target:
            raise UsageError(f"the first result is for {first.target}, but {problem}{where} is for another target")
        if problem in seen:
            raise UsageError(f"two results are for the problem {problem}: leave one result out")
        seen.add(problem)


def plain_problem(header: RunStarted) -> dict[str, Any]:
    """Return a run's problem as plain data. Each dtype becomes its name, and symbolic dimensions are left out."""
    problem = {}
    for name, value in header.arguments.items():
        if not (isinstance(value, dict) and DYNAMIC in value):
            tag = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
            problem[name] = value[tag] if tag.startswith("$") else value
    return problem


def _problem(result: Result, files: Files, artifact: Artifact, data: bytes) -> dict[str, Any]:
    """Return the manifest's entry for a result, and add its library to `files`."""
    roles = result.roles.handed_out()
    if result.header.target.kind == "cuda":
        _check_calls(data)
    digest = hashlib.sha256(data).hexdigest()
    files[f"{digest}.so"] = data
    return {
        "problem": plain_problem(result.header),
        "library": digest,
        "symbol": artifact.symbol,
        "calls": artifact.calls,
        "outputs": roles.outputs,
        "zero": roles.zero,
        "params": [msgspec.to_builtins(p) | {"strides": p.strides, "shape": p.shape} for p in artifact.params],
    }


def _library(result: Result, accept: Sequence[str], say: Callable[[str], object]) -> tuple[Artifact, bytes]:
    """Return the winner's artifact, and the content of its library. Raises `UsageError` if the library is gone.

    If the compiler state that produced the library was never compared, a worker compiles the winner again, as tilelang
    alone does. The journal's compile settings must then be safe or accepted.
    """
    best, header = result.best, result.header
    assert best is not None, "_check refuses results without a winner"
    device = next((device.name for device in result.devices if device.id == best.device), "")
    if _is_native(result) and device not in ("", launch.this_cpu()["name"]):
        raise UsageError(f"the winner uses instructions of the {device} that tuned it: save the bundle on that machine")
    if (artifact := result.artifact) is None:
        raise UsageError(f"the library of {named(plain_problem(header))} is gone, or was not kept: tune again")
    if artifact.plain or artifact.compared:
        return _read(artifact, best)
    settings = options_of(header)["compile"]
    if result.replayed:
        check_code(settings, best.config, accept)
    ref = origin_of(header, "tune again", say if result.replayed else str)
    return run_blocking(_compiled, ref, header, best, settings)


async def _compiled(
    ref: FileRef, header: RunStarted, best: Record, settings: CompileSettings
) -> tuple[Artifact, bytes]:
    candidate = Candidate(0, best.key, with_tuples(best.config))
    async with plain_library(ref, candidate, header.target, settings) as (record, artifact):
        if record.code_key != best.code_key:
            raise UsageError(OTHER_CODE)
        return _read(artifact, best)


def _read(artifact: Artifact, best: Record) -> tuple[Artifact, bytes]:
    """Return `artifact` and its library's content. Raises `UsageError` if the run measured different code."""
    if artifact.source_key != best.source_key and best.source_key:
        raise UsageError(OTHER_CODE)
    return artifact, Path(artifact.path).read_bytes()


def _is_native(result: Result) -> bool:
    """Tell whether the winner was compiled for the instructions of the CPU that tuned it."""
    if result.header.target.kind != "c":
        return False
    own = (result.best_config or {}).get(COMPILE_FLAGS)
    flags = own if own is not None else result.header.settings.get("compile", {}).get("flags")
    return any("native" in flag for flag in (CPU_FLAGS if flags is None else flags))


def _check_calls(library: bytes) -> None:
    """Raise `UsageError` if a library calls functions of tilelang that bundles cannot provide."""
    called = {name.decode() for name in re.findall(rb"__tvm_(?!ffi)\w+", library)}
    if unknown := sorted(name for name in called if name.removesuffix("_packed") not in launch.PROVIDED):
        of = " for T.annotate_l2_hit_ratio" if "access_policy_window" in unknown[0] else ""
        raise UsageError(f"the kernel calls tilelang's {unknown[0]}{of}, which a bundle lacks: ship a file of results")


def _runtime() -> Files:
    """Return the libraries (with licences) that load tilelang's CUDA libraries without tilelang."""
    folder = launch.runtime_folder()
    if folder is None:
        raise UsageError(f"a bundle for CUDA needs tilelang's {launch.TVM_RUNTIME}, but tilelang is not installed here")
    runtime = (folder / launch.TVM_RUNTIME).read_bytes()
    names = sorted({name.decode() for name in re.findall(rb"libstub_\w+\.so", runtime)})
    files = {f"{RUNTIME}/{launch.TVM_RUNTIME}": runtime, f"{RUNTIME}/{launch.TENSORMAP}": _tensormap()}
    files |= {f"{RUNTIME}/{name}": (folder / name).read_bytes() for name in names if (folder / name).exists()}
    for package in ("tilelang", "apache-tvm-ffi"):  # TVM's licence, which covers the runtime, is in the latter
        for path in metadata.files(package) or ():
            if re.match(r"(LICENSE|NOTICE)", path.name):
                files[f"{RUNTIME}/{path.name}.{package}"] = Path(str(path.locate())).read_bytes()
    return files


def _tensormap() -> bytes:
    """Return the compiled ``tensormap.c``. Raises `UsageError` if there is no C compiler."""
    source = Path(launch.__file__).with_name("tensormap.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / launch.TENSORMAP
        command = [shutil.which("gcc") or "cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", b"").decode(errors="replace")
            raise UsageError(f"a bundle for CUDA needs a C compiler: {error} {output}".rstrip()) from error
        return library.read_bytes()


def _required(package: str) -> str:
    """Return the versions of `package` that the installed tilelang requires, such as ``>=0.1.11,<0.1.13``."""
    matches = (
        re.fullmatch(rf"{re.escape(package)}\s*\(?([^;)]*)\)?\s*(;.*)?", r) for r in metadata.requires("tilelang") or ()
    )
    required = next((match[1].strip() for match in matches if match), "")
    return required or f"=={metadata.version(package)}"


def _write(folder: Path, files: Files) -> None:
    """Write `files` to a new folder, and rename the new folder to `folder`. Raises `UsageError` if this fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part") as made:
            part = Path(made) / "bundle"
            for name, data in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_bytes(data)
            os.rename(part, folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error

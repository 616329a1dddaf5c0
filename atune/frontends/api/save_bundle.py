"""Writing of bundles, which `atune.bundle` loads: the winners' libraries, and a manifest that describes them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from atune.bundle import cuda
from atune.bundle.machine import this_cpu
from atune.bundle.manifest import MANIFEST, RUNTIME, SCHEMA, manifest_digest, named
from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.journal.result import Result
from atune.model.artifact import Artifact
from atune.model.candidate import COMPILE_FLAGS, Candidate, thaw
from atune.model.device import Target
from atune.model.problem import is_size
from atune.model.settings import CPU_FLAGS
from atune.reporting.sets.bundle_rule import rules, with_regret
from atune.reporting.sets.compare import of_result
from atune.reporting.sets.reading import manifest_of, plain_problem
from atune.version import installed_versions
from atune.workload.workload import Workload, ship

Files = dict[str, bytes]
"""Contents of a bundle's files, by their name in it."""


def save_bundle(
    folder: str | os.PathLike[str],
    results: Sequence[Result],
    *,
    workload: Workload | None = None,
    weights: Sequence[float] | None = None,
    add: bool = False,
) -> str:
    """Write the winners of `results`, which are of one kernel, as a bundle: the new folder `folder`.

    A library that is gone, or whose compiler state was not compared, is compiled again, in a worker.

    Returns the bundle's digest, a SHA-256 of all that is in it. Raises `UsageError` for results that make no bundle,
    and `CompileFailed`.

    Parameters
    ----------
    folder
        The folder, which appears whole or not at all. It must not exist, or be empty.
    results
        Results of runs that finished, each for another problem. The first is the bundle's default.
    workload
        What to compile again from. None takes the file that a result's journal names, and runs it.
    weights
        How often each problem occurs, for the dispatch rule. None: equally often.
    add
        Add the winners to the bundle in `folder`, if there is one, in place of those of the same problems. Its manifest
        is replaced at once, and programs that have loaded it keep what they have.
    """
    headers = [_checked(result) for result in results]
    if not headers:
        raise UsageError("a bundle needs at least one result")
    if weights is not None and len(weights) != len(results):
        raise UsageError(f"a bundle of {len(results)} results needs a weight for each, got {len(weights)}")
    path = Path(folder)
    with _alone(path) if add else nullcontext():
        before = extensible(path) if add else None
        if before is None:
            _check_new(path)
        _check_alike(results, headers, before)
        files: Files = {}
        problems = [_problem(result, header, files, workload) for result, header in zip(results, headers, strict=True)]
        for problem, weight in zip(problems, weights or [1.0] * len(problems), strict=True):
            problem["weight"] = weight
        manifest = _manifest(results, headers, with_regret(problems, results, before), files, before)
        manifest["digest"] = manifest_digest(manifest)
        _write(path, {**files, MANIFEST: json.dumps(manifest, indent=1).encode() + b"\n"}, new=before is None)
    return str(manifest["digest"])


def _manifest(
    results: Sequence[Result],
    headers: Sequence[RunStarted],
    problems: Sequence[dict[str, Any]],
    files: Files,
    before: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the manifest of `problems` without its digest. Adds a runtime to `files`, unless `before` has one."""
    cpu, target = this_cpu(), headers[0].target
    native = any(map(_is_native, results, headers))
    old = before or {"cpu": {"features": []}, "requires": {}, "files": {}}
    requires = dict(old["requires"])
    if target.kind == "cuda":
        _check_calls(files)
        if before is None:
            files |= _runtime()
            requires["apache-tvm-ffi"] = _required("apache-tvm-ffi")
    digests = old["files"] | {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    libraries = {f"{one['library']}.so" for one in problems}
    taken = [name for header in headers for name in header.asks if is_size(header.arguments[name])]
    asks = sorted({*old.get("asks", ()), *taken})
    manifest = {
        "schema": SCHEMA,
        "kernel": {"name": headers[0].workload, "fingerprint": headers[0].kernel},
        "target": target.kind,
        "arch": target.arch,
        "cpu": {**cpu, "features": sorted({*old["cpu"]["features"], *(cpu["features"] if native else ())})},
        "requires": requires,
        "versions": installed_versions(),
        "asks": asks,
        "rule": None if asks else rules(headers[0].workload, problems) or None,
        "problems": problems,
        "files": {n: digests[n] for n in sorted(digests) if n in libraries or n.startswith(f"{RUNTIME}/")},
    }
    return dict(json.loads(json.dumps(manifest)))  # as it is read again: lists, and no tuples


def extensible(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the bundle to which winners can be added here; None for a new or an empty folder.

    Raises `UsageError` for other folders, a damaged bundle, one that cannot be written, another CPU's, and one with
    another tilelang's runtime.
    """
    before = manifest_of(folder)
    if before is None:
        _check_new(folder)
        return None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written: write a new bundle")
    if (there := before["cpu"]["machine"]) != (here := this_cpu()["machine"]):
        raise UsageError(f"{folder} is for {there}, and this machine is {here}: write a new bundle")
    now, then = installed_versions().get("tilelang"), before["versions"].get("tilelang")
    if before["target"] == "cuda" and now != then:
        raise UsageError(f"{folder} has the runtime of tilelang {then}, and {now} is installed: write a new bundle")
    return before


def _check_new(folder: Path) -> None:
    """Raise `UsageError` unless a bundle can be written to `folder`."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty: give a new folder")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from adding to the bundle in `folder` at the same time. A new folder needs no lock."""
    if not folder.is_dir():
        yield
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _checked(result: Result) -> RunStarted:
    """Return the header of a result that can be in a bundle. Raises `UsageError` for others."""
    what = f"the run of {result.journal}" if result.journal else "the run"
    if result.header is None or result.best is None:
        raise UsageError(f"{what} has no winner: there is nothing to put into a bundle")
    if not result.finished:
        raise UsageError(f"{what} did not finish: resume it first")
    return result.header


def _check_alike(results: Sequence[Result], headers: Sequence[RunStarted], before: dict[str, Any] | None) -> None:
    """Raise `UsageError` unless the runs are of one kernel and target, as those of `before`, and of other problems."""
    first, seen = headers[0], set[str]()
    kernel, target, of = first.kernel, first.target, "the first result"
    if before is not None:
        kernel, target, of = before["kernel"]["fingerprint"], Target(before["target"], before["arch"]), "those in it"
    for result, header in zip(results, headers, strict=True):
        problem = named(plain_problem(header))
        where = f" ({result.journal})" if result.journal else ""
        if header.kernel != kernel:
            raise UsageError(f"a bundle holds one kernel, and {problem}{where} is of another than {of}")
        if header.target != target:
            raise UsageError(f"a bundle is for {target}, as {of}, and {problem}{where} is not")
        if problem in seen:
            raise UsageError(f"two results are of the problem {problem}: give one of them")
        seen.add(problem)


def _problem(result: Result, header: RunStarted, files: Files, workload: Workload | None) -> dict[str, Any]:
    """Return the manifest's entry for a result, and add its library to `files`."""
    assert result.best is not None, "it was checked"
    roles = result.roles.handed_out()
    artifact, data = _library(result, header, workload)
    digest = hashlib.sha256(data).hexdigest()
    files[f"{digest}.so"] = data
    run = of_result(result)
    return {
        "problem": plain_problem(header),
        "config": result.best_config,
        "latency_ms": result.latency_ms,
        "default_ms": result.default_ms,
        "reference_ms": result.reference_ms,
        "interval_ms": run.winner.interval_ms,
        "device": run.winner.device,
        "versions": header.versions,
        "code_key": run.winner.code_key,
        "source_key": run.winner.source_key,
        "layouts": run.winner.layouts,
        "library": digest,
        "symbol": artifact.symbol,
        "calls": artifact.calls,
        "outputs": roles.outputs,
        "zero": roles.zero,
        "params": [msgspec.to_builtins(p) | {"strides": p.strides, "shape": p.shape} for p in artifact.params],
    }


def _library(result: Result, header: RunStarted, workload: Workload | None) -> tuple[Artifact, bytes]:
    """Return the winner's place in its library, and the library's content. One that is gone is compiled again."""
    assert result.best is not None, "it was checked"
    device = next((device.name for device in result.devices if device.id == result.best.device), "")
    here = this_cpu()["name"]
    if _is_native(result, header) and device not in ("", here):
        raise UsageError(f"the winner has instructions of the {device} that it was tuned on: save the bundle there")
    artifact = result.artifact
    if artifact is not None and (artifact.plain or artifact.compared) and _is_of(artifact, result):
        try:
            return artifact, Path(artifact.path).read_bytes()
        except OSError:
            pass  # removed since
    now = installed_versions().get("tilelang", "")
    if (then := header.versions.get("tilelang", "")) != now:
        why = f"{named(plain_problem(header))} was tuned with tilelang {then}, and {now} is installed"
        raise UsageError(f"the winner's library is gone and cannot be compiled again: {why}; tune again")
    from atune.frontends.api.blocking import run_blocking

    return run_blocking(_compiled, result, header, workload)


async def _compiled(result: Result, header: RunStarted, workload: Workload | None) -> tuple[Artifact, bytes]:
    """Compile a winner in a worker, as tilelang alone does."""
    import anyio.to_thread

    from atune.frontends.api.compile_all import compiled, compilers, plain_settings, raise_failures
    from atune.frontends.api.resume import options_of, origin_of

    assert result.best is not None, "it was checked"
    settings = plain_settings(options_of(header)["compile"])
    ref = origin_of(header) if workload is None else ship(workload.at(thaw(header.arguments)))
    async with compilers(ref, header.target, settings) as (machine, run):
        spec = await machine.describe(seed=int(header.settings.get("seed", 0)))
        if spec.kernel != header.kernel or thaw(spec.arguments) != thaw(header.arguments):
            where = spec.origin or "the workload"
            raise UsageError(f"the winner's library is gone, and {where} is not what was tuned: it changed; tune again")
        candidate = Candidate(0, result.best.key, thaw(result.best.config))
        answers = await compiled(machine, [candidate], run)
        raise_failures([candidate], answers)
        artifact = answers[0]
        assert isinstance(artifact, Artifact), "no failure"
        if not _is_of(artifact, result):
            raise UsageError("the winner is lowered to other code now than when it was tuned: tune again")
        return artifact, await anyio.to_thread.run_sync(Path(artifact.path).read_bytes)


def _is_of(artifact: Artifact, result: Result) -> bool:
    """Tell whether a library's sources are those that the journal has of the winner; an older one has none."""
    lowered_to = "" if result.best is None else result.best.source_key
    return not lowered_to or artifact.source_key == lowered_to


def _is_native(result: Result, header: RunStarted) -> bool:
    """Tell whether the winner was compiled with the instructions of its own CPU."""
    if header.target.kind != "c":
        return False
    own = (result.best_config or {}).get(COMPILE_FLAGS)
    flags = own if own is not None else header.settings.get("compile", {}).get("flags")
    return any("native" in flag for flag in (CPU_FLAGS if flags is None else flags))


def _check_calls(files: Files) -> None:
    """Raise `UsageError` for libraries that call functions of tilelang's that no bundle has."""
    called = {name.decode() for data in files.values() for name in re.findall(rb"__tvm_(?!ffi)\w+", data)}
    if unknown := sorted(name for name in called if name.removesuffix("_packed") not in cuda.PROVIDED):
        raise UsageError(f"the kernel calls tilelang's {unknown[0]}, which a bundle lacks: ship a file of results")


def _runtime() -> Files:
    """Return the libraries that load tilelang's CUDA libraries without tilelang, and their licences."""
    folder = cuda.runtime_folder()
    if folder is None:
        raise UsageError(f"a bundle for CUDA holds tilelang's {cuda.LIBRARY}, and tilelang is not installed here")
    runtime = (folder / cuda.LIBRARY).read_bytes()
    names = sorted({found.decode() for found in re.findall(rb"libstub_\w+\.so", runtime)})
    files = {f"{RUNTIME}/{cuda.LIBRARY}": runtime, f"{RUNTIME}/{cuda.TENSORMAP}": _tensormap()}
    files |= {f"{RUNTIME}/{name}": (folder / name).read_bytes() for name in names if (folder / name).exists()}
    for package in ("tilelang", "apache-tvm-ffi"):  # the latter's licence is that of TVM, which the runtime is
        for path in metadata.files(package) or ():
            if re.match(r"(LICENSE|NOTICE)", path.name):
                files[f"{RUNTIME}/{path.name}.{package}"] = Path(str(path.locate())).read_bytes()
    return files


def _tensormap() -> bytes:
    """Return the compiled ``tensormap.c``. Raises `UsageError`."""
    source = Path(cuda.__file__).with_name("tensormap.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / cuda.TENSORMAP
        command = [shutil.which("gcc") or "cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", b"").decode(errors="replace")
            raise UsageError(f"a bundle for CUDA needs a C compiler here: {error} {output}".rstrip()) from error
        return library.read_bytes()


def _required(package: str) -> str:
    """Return the range of versions of `package` that the installed tilelang asks for, such as ``>=0.1.11,<0.1.13``."""
    found = (
        re.fullmatch(rf"{re.escape(package)}\s*\(?([^;)]*)\)?\s*(;.*)?", r) for r in metadata.requires("tilelang") or ()
    )
    asked = next((match[1].strip() for match in found if match), "")
    return asked or f"=={metadata.version(package)}"


def _write(folder: Path, files: Files, *, new: bool) -> None:
    """Write `files`, the last of which is the manifest, and rename them into `folder`. Raises `UsageError`.

    A new folder is renamed whole, unless another program has made one since. In a bundle that is there each file is,
    the manifest last: until then it is the old bundle. Files that it no longer names stay, because a program that has
    loaded it may still want them.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part") as made:
            part = Path(made) / "bundle"
            for name, data in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_bytes(data)
            if new:
                os.rename(part, folder)
                return
            for name in files:
                os.replace(part / name, folder / name)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error

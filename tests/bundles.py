"""Bundles made by hand: small C functions, and a manifest that describes them."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atune.bundle.launch import this_cpu
from atune.bundle.manifest import manifest_digest

SOURCE = """
extern "C" int by_kernel(const float *A, float *B, int n, float by) {
    for (int i = 0; i < n; i++) B[i] = by * A[i];
    return 0;
}
extern "C" int twice_kernel(const float *A, float *B, int n) { return by_kernel(A, B, n, 2); }
extern "C" int tenfold_kernel(const float *A, float *B, int n) { return by_kernel(A, B, n, 10); }
extern "C" int times_kernel(float *B, const float *A, float by, int n) { return by_kernel(A, B, n, by); }
extern "C" int fails_kernel(const float *A, float *B, int n) { return 3; }
extern "C" int sums_kernel(const float *A, int stride, float *B, int m, int n) {
    for (int i = 0; i < m; i++) { B[2 * i] = 0; for (int j = 0; j < n; j++) B[2 * i] += A[i * stride + j]; }
    return 0;
}
"""
VECTOR = {"dtype": "float32", "shape": ["n"], "strides": None}


@functools.cache
def library() -> bytes:
    """Return a library of `SOURCE`, compiled once."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        source.write_text(SOURCE)
        subprocess.run([shutil.which("g++") or "g++", "-shared", "-fPIC", "-o", made, source], check=True)
        return made.read_bytes()


def entry(symbol: str, problem: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a problem of a manifest: by default a function of a vector A and an output B of `n` elements."""
    of_vectors = {"params": [VECTOR, VECTOR], "outputs": [1], "zero": [], "calls": [0, 1, "n"]}
    return {"problem": problem, "symbol": symbol, **of_vectors, **fields}


TWO = (entry("twice", {"n": 64}), entry("tenfold", {"n": 1024}))
"""Kernels of two sizes, each of which takes any, and which tell by their results which of them ran."""


def write(
    folder: Path,
    problems: Sequence[dict[str, Any]] = TWO,
    data: bytes | None = None,
    without: str = "",
    **fields: Any,
) -> Path:
    """Write a bundle with the library `data` into `folder`. `fields`: others of the manifest; `without`: none such."""
    data = library() if data is None else data
    digest = hashlib.sha256(data).hexdigest()
    manifest: dict[str, Any] = {
        "schema": 1,
        "kernel": "toy",
        "target": "c",
        "arch": "",
        "cpu": this_cpu() | {"features": []},
        "requires": {},
        "asks": [],
        "problems": [{**problem, "library": digest} for problem in problems],
        "files": {f"{digest}.so": digest},
        **fields,
    }
    manifest.pop(without, None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{digest}.so").write_bytes(data)
    manifest["digest"] = manifest_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder

"""Bundles: tuned kernels in a folder, which a program calls without tilelang and without a compiler.

    bundle = atune.bundle.load("matmul.bundle")
    C = bundle(A, B)

`TuneResult.save_bundle`, `atune.results.save_bundle` and ``atune bundle`` write bundles. These are the files:

    manifest.json     the kernels, their problems, the machine that they need, and the digest of every file
    <sha256>.so       a library, named by the digest of its content
    runtime/          for CUDA: the libraries of tilelang's runtime, with their licences

This package imports no other part of atune. Bundles need torch, and for CUDA ``apache-tvm-ffi``. Loading a bundle
neither unpickles nor imports any part of it, but its libraries are machine code, so load only bundles that you trust.

`stages` and decorated kernels also call libraries through `launch`, so that all calls check arguments in the same way.
"""

from atune.bundle.bundle import Bundle, load
from atune.bundle.manifest import BundleError, DamagedBundle, OutsideProblems, WrongArguments, WrongMachine

__all__ = ["Bundle", "BundleError", "DamagedBundle", "OutsideProblems", "WrongArguments", "WrongMachine", "load"]

"""Bundles: tuned kernels in a folder, called without tilelang and without a compiler.

    bundle = atune.bundle.load("matmul.bundle")
    C = bundle(A, B)

`TuneResult.save_bundle`, `atune.results.save_bundle` and ``atune bundle`` write them:

    manifest.json     what the kernels are, for which problems and machine, and the digest of every file
    <sha256>.so       a library, named by its content's digest
    runtime/          for CUDA: the libraries of tilelang's runtime, with their licences

This package imports nothing else of atune. It needs torch, and for CUDA ``apache-tvm-ffi``. It unpickles and imports
nothing of a bundle. The libraries are machine code: load bundles of people whom you trust.

`stages` and decorated kernels call their own libraries by the module `launch`, too, so that all calls refuse the same.
"""

from atune.bundle.bundle import Bundle, load
from atune.bundle.manifest import BundleError, DamagedBundle, OutsideProblems, WrongArguments, WrongMachine

__all__ = ["Bundle", "BundleError", "DamagedBundle", "OutsideProblems", "WrongArguments", "WrongMachine", "load"]

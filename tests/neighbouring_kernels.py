"""Kernels with a text of their own, for the CPU and CUDA: out = `by` * a, where no other text is in the way."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune
from atune.model.candidate import config_key

N = 128
BEGINS = """
#ifdef __CUDACC__
#define ON_DEVICE __device__
#else
#define ON_DEVICE
#endif
#ifndef A_HELPER
#define A_HELPER
static inline ON_DEVICE float a_kernel(float a) { return a; }
#endif
"""
ENDS = """
#ifndef CALLED
#define CALLED
extern "C" ON_DEVICE float own_times(float a) { return OWN(a); }
#endif
"""
GUARDED = "#ifndef OWN_H\n#define OWN_H\n%s\n#endif\n"
MACRO = GUARDED % "#define OWN(a) (%by.0f * a)"
KINDS = {
    "helper": GUARDED % "static inline ON_DEVICE float OWN(float a) { return %by.0f * a; }",
    "macro": MACRO,
    "behind its own name": f"/* %symbol */\n{MACRO}",
    "behind a comment": f"// it goes on \\\n{MACRO}",
}


def times(kind: str, by: int) -> Any:
    symbol = f"atune_kernel_{config_key({'kind': kind, 'by': by})}"
    text = KINDS[kind].replace("%symbol", symbol).replace("%by", str(by))
    return calling(text, 1)


def calling(text: str, by: int) -> Any:
    text = BEGINS + text + ENDS

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1):
            T.import_source(text)
            for i in T.serial(N):
                B[i] = T.call_extern("float32", "own_times", A[i]) * T.float32(by)

    return main


def behind(kind: str, by: int) -> Any:
    """What is the user's own stands behind or in a kernel of tilelang's."""
    name, directive = f"own_{by}", f"#define OWN {by}\n__threadfence"
    function = f"static __device__ float own_times(float a) {{ return {by}.0f * a; }}\n"
    text = f'{GUARDED % function}extern "C" __global__ void {name}(float* A, float* B) {{ *B = own_times(*A); }}\n'

    @T.prim_func
    def source(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            for i in T.Parallel(N):
                B[i] = A[i]
        T.CUDASourceCodeKernel(1, threads=1, source_code_or_path=text, entry_name=name)

    @T.prim_func
    def among(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=N):
            T.evaluate(T.call_extern("void", directive))
            for i in T.Parallel(N):
                B[i] = A[i] * T.float32(by)

    return source if kind == "source" else among


def shared(by: int) -> Any:
    """All have one text."""
    return calling(MACRO.replace("%by", "1"), by)


TIMES = atune.Workload(times, atune.Space(kind=[*KINDS], by=[2, 3]), inputs=[None, None])
BEHIND = atune.Workload(behind, atune.Space(kind=["source", "among"], by=[2, 3]), inputs=[None, None])
SHARED = atune.Workload(shared, atune.Space(by=[2, 3]), inputs=[None, None])

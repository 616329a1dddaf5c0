"""What the compile stages hand on: lowered candidates, artifacts, and failures."""

from __future__ import annotations

from typing import Literal

import msgspec

from atune.model.layouts import Layouts
from atune.model.occupancy import MachineFacts

FailureKind = Literal[
    "lower", "codegen", "compile", "crash", "timeout", "load", "launch", "fault", "out_of_memory",
    "out_of_bounds", "mismatch", "non_finite", "unwritten", "worker_lost", "suspect",
]  # fmt: skip
"""Why a candidate failed.

lower: elaborating or lowering raised. codegen: source generation raised. compile: nvcc or g++ refused the source.
crash: the compile worker died. timeout: past a deadline, killed. load: the library would not load. launch: the call
raised. out_of_memory: the device had no room. fault: the device reported an error that poisons its context.
out_of_bounds: it wrote before or after a parameter. mismatch / non_finite / unwritten: outputs differ from the
reference, hold NaN or infinity, or were not written. worker_lost: its process was killed from outside, twice.
suspect: the whole program died twice while it was being measured; it is not tried a third time.
"""


class Failure(msgspec.Struct, frozen=True, tag="failure", omit_defaults=True):
    """A candidate that did not make it through a stage. `detail` is the tail of what the compiler or device said.

    `index`: the candidate's. `kind`: the stage or the reason, one of `FailureKind`. `message`: one sentence for people.
    `doubt`: why the fault may not be the candidate's own, so that it is tried once more on a fresh process; empty
    where it is. `kill_s`: seconds from the deadline, or from the error's report, until the process was reaped.
    """

    index: int
    kind: FailureKind
    message: str
    detail: str = ""
    doubt: str = ""
    kill_s: float = 0.0


class KernelParam(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel parameter. `shape`: ints, or names of symbolic dimensions; None for a scalar.

    `strides`: in elements, ints or names, of a parameter that is declared with strides of its own; None where it is
    contiguous.
    """

    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] | None = None


class Gemm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One `T.gemm` of a kernel. `m`, `n`, `k`: the shape of a call, in elements.

    `calls`: how often a block calls it, on average over the grid. `dtype`: its operands', such as ``bfloat16``.
    """

    m: int
    n: int
    k: int
    calls: float
    dtype: str
    policy: int = 0
    """How warps share the tile, as tilelang numbers it: 0 square, 1 each has whole rows, 2 each has whole columns."""
    in_registers: bool = False
    """Whether its first operand is in registers, and not in shared memory."""

    @property
    def flops(self) -> float:
        """Floating-point operations a block: a product and a sum each."""
        return 2.0 * self.m * self.n * self.k * self.calls


class Access(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a block reads or writes of one tensor at one place of the kernel.

    `n_bytes`: bytes a block, on average over the grid; tiles past the tensor's end count whole. `axes`: the axes of the
    grid (of ``xyz``) that the place depends on; blocks that differ in the others alone access the same.
    """

    n_bytes: float
    axes: str = ""
    steps: float = 1.0
    """How often a block does it."""
    width: int | None = None
    """Bytes that a thread is asked to move at once; None where tilelang chooses."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one block of a kernel does, as the kernel's own statements tell before lowering: averages over the grid."""

    gemms: tuple[Gemm, ...] = ()
    reads: tuple[Access, ...] = ()
    """Of global memory; so are `writes`."""
    writes: tuple[Access, ...] = ()
    shared_bytes: float = 0.0
    """Bytes that copies and parallel loops move into or out of shared memory; those that `gemms` read are not in it."""
    scalar_ops: float = 0.0
    """Arithmetic outside of tensor cores, operations of one element; `special_ops` are not in it."""
    special_ops: float = 0.0
    """Exponentials, roots, logarithms and quotients, of one element."""
    fragment_registers: int = 0
    """32-bit registers a thread that all fragments and local arrays would take, if they all lived at once."""
    stages: int = 0
    """Stages of the deepest `T.Pipelined` loop; 0 where none has any."""
    steps: float = 1.0
    """Iterations of that loop, or of the longest one around a copy or a product."""
    threads: int = 1
    """Threads of a block, as the kernel asks for them."""
    tensor_bytes: int | None = None
    """Bytes of all tensors together; None where a call decides."""
    block_order: str = ""
    """How blocks follow each other, as tilelang names it and its panel: ``rasterization2DRow 8``; empty for plainly."""

    @property
    def tensor_flops(self) -> float:
        """Floating-point operations that a block has tensor cores do."""
        return sum(gemm.flops for gemm in self.gemms)

    @property
    def read_bytes(self) -> float:
        """Bytes that a block reads of global memory."""
        return sum(access.n_bytes for access in self.reads)

    @property
    def write_bytes(self) -> float:
        """Bytes that a block writes to global memory."""
        return sum(access.n_bytes for access in self.writes)


class StaticFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What lowering tells about a kernel before it is compiled. None: not applicable to the target, or not known."""

    smem_bytes: int | None = None
    threads: int | None = None
    """Threads a block really has, producer warps of warp specialisation included."""
    grid: tuple[int, ...] = ()
    """Blocks along each axis; empty where a call decides."""
    accumulators: int | None = None
    """Largest fragment a thread holds, in 32-bit registers."""
    source_bytes: int | None = None
    """Length of the generated device source."""
    lacking_registers: int = 0
    """Registers that a block waits for with ``setmaxnreg`` and never gets: it would hang."""
    work: Work | None = None
    """What a block does; None where any of it depends on values that only a call has."""
    layouts: Layouts | None = None
    """What layout inference decided; None where another's lowering was taken, or an older version lowered it."""


class Elaborated(msgspec.Struct, frozen=True, tag="elaborated", gc=False):
    """What a kernel tells before it is lowered: its `facts` as they are foreseen."""

    index: int
    facts: StaticFacts


class Lowered(msgspec.Struct, frozen=True, tag="lowered", gc=False):
    """A lowered candidate. Candidates of equal `code_key` compile to the same machine code, whatever compiles it.

    `merge_key`: only candidates of equal merge_key may share a library (flags, pass configs, preamble). `blob`: the
    stage's own bytes (IR of host and device), which only `codegen` reads. It is empty if the artifact store has the
    library of the same kernel.
    """

    index: int
    code_key: str
    merge_key: str
    params: tuple[KernelParam, ...]
    facts: StaticFacts
    seconds: float
    blob: bytes
    ir_key: str = ""
    """What lowering began with: the kernel as tilelang elaborates it, and all that decides what becomes of it."""
    store_key: str = ""
    """What the artifact store has its library under: `code_key`, and all that the way to that code depends on."""
    compile_key: str = ""
    """Candidates of equal `compile_key` take one compile of their device code; empty for one that shares with none."""
    storable: bool = True
    """Whether `code_key` covers all that decides the machine code; it does not where the user's files are included."""


STORED = "from the artifact store"
"""What `Artifact.why` says of a library that an earlier run compiled."""


class Artifact(msgspec.Struct, frozen=True, tag="artifact", gc=False):
    """One candidate's place in a shared library: the file, and the symbol to call in it."""

    index: int
    path: str
    symbol: str
    params: tuple[KernelParam, ...]
    target: str
    """``cuda`` or ``c``: how to load it."""
    seconds: float = 0.0
    """Seconds that building the library took, shared by its members."""
    calls: tuple[int | str, ...] = ()
    """For target ``c``: each argument of the C function, as a parameter's position or a symbolic dimension's name."""
    compiler: str = ""
    """What compiled the device code: ``nvcc``, ``cicc`` (nvcc with the headers parsed once), ``nvrtc`` or ``g++``."""
    why: str = ""
    """Why that compiler."""
    backend: str = ""
    """For CUDA, tilelang's adapter that the library is for, ``cython`` or ``nvrtc``; empty for what groups are for."""
    words: str = ""
    """What the compilers said, where that was asked for."""
    shared: bool = False
    """Whether its device code was made for other kernels, too: then finalists are compiled again, each exactly."""
    plain: bool = False
    """Whether no accelerator had a part in it: it is tilelang's own code, and needs no proof of that."""
    store_key: str = ""
    """What the artifact store has it under, and a proof of it; empty where it may not be kept."""
    source_key: str = ""
    """SHA-256, shortened, of the generated sources of device and host, with the kernel's name replaced."""
    machine: MachineFacts | None = None
    """Its registers, stack and code; None for target ``c``, and where an older version compiled it."""

    @property
    def exact(self) -> bool:
        """Whether the device code is what tilelang's own compile makes of the kernel."""
        return not self.shared


Built = Artifact | Failure


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """What compiling a candidate with every accelerator off came to, beside the library that was measured.

    `difference`: in what its sources or code sections differ; empty where they are the same. `plain`: the library of
    the plain compile, for use where they differ; None where an earlier run left the proof.
    """

    index: int
    difference: str = ""
    plain: Artifact | None = None
    seconds: float = 0.0


def source_path(library: str, symbol: str) -> str:
    """Return where the source of one member of `library` lies: that kernel's alone, not the group's."""
    return f"{library.removesuffix('.so')}.{symbol}.source"

"""Results of the compile stages: lowered candidates, artifacts, and failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from atune.errors import UsageError
from atune.model.layouts import Layouts
from atune.model.ranges import Extent, PathText, Quantity, Whole, Word

FailureKind = Literal[
    "lower", "codegen", "compile", "crash", "timeout", "hopeless", "load", "launch", "fault", "out_of_memory",
    "out_of_bounds", "mismatch", "non_finite", "unwritten", "worker_lost", "suspect", "refused",
]  # fmt: skip
"""Why a candidate failed.

lower: elaborating or lowering raised. codegen: source generation raised. compile: nvcc or g++ refused the source.
crash: the compile worker died. timeout: the process was killed at a deadline. hopeless: its compile was killed because
it took far longer than other compiles. load: the library did not load. launch: the call raised. out_of_memory: the
device had no memory left. fault: the device reported an error that poisons its context. out_of_bounds: the kernel wrote
before or after a parameter, or changed data that the check uses. mismatch / non_finite / unwritten: outputs differ from
the reference, hold NaN or infinity, or were not written. worker_lost: its process was killed from outside, twice.
suspect: the whole program died twice while measuring it, so it is not tried again. refused: a stranger's kernel may
bring code that tilelang did not generate, or has other parameters than the task's.
"""
_WORDS = {
    "lower": "failed to lower",
    "codegen": "failed to generate code",
    "compile": "failed to compile",
    "crash": "crashed while compiling",
    "timeout": "timed out",
    "hopeless": "took too long to compile",
    "load": "failed to load",
    "launch": "failed to launch",
    "fault": "faulted on the device",
    "out_of_memory": "ran out of memory",
    "out_of_bounds": "wrote out of bounds",
    "mismatch": "gave wrong outputs",
    "non_finite": "gave NaN or infinity",
    "unwritten": "left outputs unwritten",
    "worker_lost": "lost the process",
    "suspect": "may have ended the program",
    "refused": "was refused",
}

RAN = frozenset({"mismatch", "non_finite", "unwritten", "out_of_bounds", "launch", "fault"})
"""Kinds of failures of candidates that ran on a device."""
COMMON_FAILURES = 16
"""If this many candidates fail in the same way, they are probably not at fault."""


def what_failed(kind: str) -> str:
    """Return a verb phrase for a kind of failure, such as ``timed out``. A kind of a newer atune is unchanged."""
    return _WORDS.get(kind, kind)


class Failure(msgspec.Struct, frozen=True, tag="failure", omit_defaults=True):
    """A candidate that failed in a stage. `detail` is the end of the compiler's or device's output.

    `index`: the candidate's index. `kind`: a `FailureKind`. `message`: a sentence for people. `doubt`: why the failure
    may not be the candidate's fault. If it is not empty, a fresh process tries the candidate again.
    `kill_s`: seconds from the deadline, or from the error's report, until the process was reaped.
    """

    index: int
    kind: FailureKind
    message: str
    detail: str = ""
    doubt: str = ""
    kill_s: float = 0.0
    printed: str = ""
    """See `Record.printed`."""


SERVER_LOST = "the fork server was lost"
"""The `doubt` about all candidates in progress at the time when all processes were lost together."""


class KernelParam(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel parameter. `shape`: ints, or names of symbolic dimensions; None for a scalar.

    `strides`: ints or names, in elements, if the parameter is declared with strides; None if it is contiguous.
    """

    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] | None = None


class Roles(msgspec.Struct, frozen=True, tag="roles", omit_defaults=True):
    """Roles of a kernel's parameters in a call, by position."""

    outputs: tuple[Whole, ...] = ()
    """Outputs, in order. A call allocates and returns the outputs that it is not given."""
    zero: tuple[Whole, ...] = ()
    """Parameters that a call first sets to zero: inputs, and outputs that the call allocates. Outputs that the caller
    passes are not set to zero."""
    writes: tuple[Whole, ...] = ()
    """Inputs that the kernel may write into."""
    set_up: tuple[Whole, ...] = ()
    """Inputs that the workload's `setup` changed before the kernel was checked and timed. Calls do not run `setup`."""
    unnamed: bool = False
    """Whether the user named no outputs. If so, tilelang's tuner passes all parameters to the user's functions."""

    @property
    def zero_inputs(self) -> tuple[int, ...]:
        """Inputs that a call sets to zero."""
        return tuple(i for i in self.zero if i not in self.outputs)

    def where_given(self, positions: Sequence[int]) -> Roles:
        """Return the roles for a caller that always passes, and itself prepares, the outputs among `positions`."""
        given = {*positions} & {*self.outputs}
        return msgspec.structs.replace(
            self,
            outputs=tuple(i for i in self.outputs if i not in given),
            zero=tuple(i for i in self.zero if i not in given),
            writes=tuple(sorted({*self.writes, *given})),
        )

    def handed_out(self) -> Roles:
        """Return these roles for a kernel that users call. Raises `UsageError` if a call cannot fulfil them."""
        if not self.set_up:
            return self
        raise UsageError(
            f"setup changed input {', '.join(map(str, self.set_up))} before the kernel was checked, but a call of the "
            "kernel does not run setup: make the data with inputs=, clear tensors with zero=, or do it in the kernel"
        )


def fitting(own: Roles | None, first: Roles) -> Roles:
    """Return a candidate's `own` roles if it has as many outputs as the `first` candidate; otherwise the first's roles.

    A candidate's code may lack an output or read a tensor that it should overwrite. Callers rely on the first's roles.
    """
    return first if own is None or len(own.outputs) != len(first.outputs) else own


class Gemm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A `T.gemm` of a kernel. `m`, `n`, `k`: the shape of a call, in elements.

    `calls`: calls per block, on average over the grid. `dtype`: the operands' type, such as ``bfloat16``.
    """

    m: Whole
    n: Whole
    k: Whole
    calls: Quantity
    dtype: Word
    policy: Whole = 0
    """The division of the tile among warps, in tilelang's numbers: 0 square, 1 in whole rows, 2 in whole columns."""
    in_registers: bool = False
    """Whether the first operand is in registers, not in shared memory."""
    feeds: bool = False
    """Whether the result stays in registers and becomes the first operand of another product."""
    sum_bits: Whole = 32
    """Bits per element of the result."""

    @property
    def flops(self) -> float:
        """Floating-point operations per block, counting multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.calls


class Access(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A read or a write of a tensor at one place of the kernel.

    `n_bytes`: bytes per block, on average over the grid; tiles that cross the tensor's end count whole. `axes`: axes of
    the grid (of ``xyz``) that the address depends on. Blocks that differ only in other axes access the same bytes.
    """

    n_bytes: Quantity
    axes: str = ""
    steps: Quantity = 1.0
    """Number of times that a block makes this access."""
    width: Whole | None = None
    """Bytes per instruction of a thread, as the kernel requests; None if tilelang chooses."""


class BlockWork(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Work of a kernel per block, averaged over the grid, from the kernel's statements before lowering."""

    gemms: tuple[Gemm, ...] = ()
    reads: tuple[Access, ...] = ()
    """Accesses to global memory that read; `writes` has those that write."""
    writes: tuple[Access, ...] = ()
    shared_bytes: Quantity = 0.0
    """Bytes that copies and parallel loops move into or out of shared memory, without the operands of `gemms`."""
    scalar_ops: Quantity = 0.0
    """Arithmetic outside of tensor cores, counted in operations on single elements, without `special_ops`."""
    special_ops: Quantity = 0.0
    """Exponentials, roots, logarithms and divisions, counted in operations on single elements."""
    fragment_registers: Whole = 0
    """32-bit registers per thread for all fragments and local arrays, as if all were live at the same time."""
    stages: Whole = 0
    """Largest number of stages of a `T.Pipelined` loop; 0 if no loop has stages."""
    steps: Quantity = 1.0
    """Iterations of the deepest pipelined loop, or else of the longest loop around a copy or a product."""
    threads: Whole = 1
    """Threads per block that the kernel requests."""
    tensor_bytes: Whole | None = None
    """Bytes of all tensors together; None if they depend on the call."""
    block_order: str = ""
    """Order of blocks: tilelang's name and panel width, as ``rasterization2DRow 8``; empty for the device's order."""

    @property
    def tensor_flops(self) -> float:
        """Floating-point operations per block on tensor cores."""
        return sum(gemm.flops for gemm in self.gemms)

    @property
    def read_bytes(self) -> float:
        """Bytes that a block reads from global memory."""
        return sum(access.n_bytes for access in self.reads)

    @property
    def write_bytes(self) -> float:
        """Bytes that a block writes to global memory."""
        return sum(access.n_bytes for access in self.writes)


class StaticFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Facts of a kernel that are known before it is compiled. None: unknown, or not applicable to the target."""

    smem_bytes: Whole | None = None
    threads: Whole | None = None
    """Actual threads per block, including producer warps of warp specialisation."""
    grid: Annotated[tuple[Extent, ...], msgspec.Meta(max_length=8)] = ()
    """Blocks along each axis; empty if they depend on the call."""
    accumulators: Whole | None = None
    """Size of the largest fragment, in 32-bit registers per thread."""
    source_bytes: Whole | None = None
    """Length of the generated device source."""
    lacking_registers: Whole = 0
    """Registers that a block requests with ``setmaxnreg`` but can never get. If this is not 0, the block would hang."""
    work: BlockWork | None = None
    """Work per block; None if any part of it depends on values of the call."""
    layouts: Layouts | None = None
    """Results of layout inference; None if the lowering was reused."""


class Elaborated(msgspec.Struct, frozen=True, tag="elaborated", gc=False):
    """An elaborated candidate, with its predicted `facts`.

    `ir_digest`: see `Lowered`. If the job asks for digests, the answer has this digest instead of facts.
    """

    index: int
    facts: StaticFacts = StaticFacts()
    ir_digest: str = ""


class Lowered(msgspec.Struct, frozen=True, tag="lowered", gc=False):
    """A lowered candidate. Candidates with equal `code_key` compile to the same machine code, with any compiler.

    `merge_key`: only candidates with equal merge_key may share a library, because their flags, pass configs and all
    text before the kernel are equal. `blob`: bytes that only `codegen` reads (IR of host and device); empty if the
    artifact store has the library of the same kernel.
    """

    index: int
    code_key: str
    merge_key: str
    params: tuple[KernelParam, ...]
    facts: StaticFacts
    seconds: float
    blob: bytes
    ir_key: str = ""
    """Digest of the input of lowering: the elaborated kernel, and everything else that decides the result."""
    store_key: str = ""
    """Artifact store key of its library by nvcc or g++. Depends on `code_key` and the code generators' versions."""
    use: str = ""
    """Headers and instructions that its source uses: part of cicc's compiler state. Empty if cicc cannot compile it."""
    source_key: str = ""
    """See `Artifact.source_key`."""
    ir_digest: str = ""
    """Equal for equal elaborated kernels, whatever their source. Empty if the code also depends on something else, such
    as files that the kernel includes."""
    kept_as: str = ""
    """Key of the library that the artifact store keeps together with this lowering."""
    printed: str = ""
    """See `Record.printed`."""
    roles: Roles | None = None
    """The roles of its own parameters; None if only the roles of the run's first candidate are known."""
    storable: bool = True
    """Whether `code_key` covers all that decides the machine code. It does not if the source includes user files."""


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Resources of compiled code. If a candidate has several kernels, each figure is the largest of them."""

    registers: Whole = 0
    """32-bit registers per thread."""
    stack_bytes: Whole = 0
    """Local memory per thread: arrays outside of registers, and spills."""
    code_bytes: Whole = 0
    """Machine code of all kernels together."""
    static_smem_bytes: Whole = 0
    """Shared memory per block that the launch does not request."""


CICC = "cicc"
"""`Artifact.compiler` of a library that nvcc's own programs compiled with pre-parsed headers."""
STORED = "from the artifact store"
"""`Artifact.why` of a library that an earlier run compiled."""


class Artifact(msgspec.Struct, frozen=True, tag="artifact", gc=False):
    """A candidate in a shared library: the library's file, and the symbol to call in it."""

    index: int
    path: PathText
    symbol: PathText
    params: tuple[KernelParam, ...]
    target: str
    """``cuda`` or ``c``, which decides how to load the library."""
    seconds: float = 0.0
    """Seconds that building the library took, for all members together."""
    calls: tuple[int | str, ...] = ()
    """For target ``c``: the arguments of the C function, as parameters' positions or symbolic dimensions' names."""
    compiler: str = ""
    """The compiler of the device code: ``nvcc``, ``cicc`` (nvcc with pre-parsed headers) or ``g++``."""
    why: str = ""
    """The reason for using this compiler."""
    store_key: str = ""
    """Key in the artifact store; empty if the store may not keep it."""
    source_key: str = ""
    """SHA-256, shortened, of the generated sources of device and host, with the kernel's name replaced."""
    machine: MachineFacts | None = None
    """Registers, stack and code; None for target ``c``."""
    state: str = ""
    """Key of the compiler state in which cicc built it; empty if nvcc or g++ built it."""
    compared: bool = False
    """Whether cicc's code in this state is known to equal nvcc's."""
    roles: Roles | None = None
    """See `Lowered`."""

    @property
    def plain(self) -> bool:
        """Whether it was compiled as tilelang itself compiles."""
        return self.compiler != CICC


Built = Artifact | Failure


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """Comparison of cicc's library with nvcc's. `difference`: empty if code and sources are equal."""

    index: int
    difference: str = ""


def source_path(library: str, symbol: str) -> str:
    """Return the path of the source of one kernel of `library`, without the rest of its group."""
    return f"{library.removesuffix('.so')}.{symbol}.source"

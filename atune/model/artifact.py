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

lower: elaborating or lowering the candidate raised. codegen: generating its source raised. compile: nvcc or g++ refused
the source. crash: the compile worker died. timeout: the process was killed at a deadline. hopeless: the compile was
killed because it took far longer than other compiles. load: the library did not load. launch: the call of the kernel
raised. out_of_memory: the device had no memory left. fault: the device reported an error that makes its context
unusable. out_of_bounds: the kernel wrote before or after a parameter, or changed data that the check uses. mismatch /
non_finite / unwritten: outputs differ from the reference, hold NaN or infinity, or were not written. worker_lost: the
candidate's process was killed from outside, twice. suspect: the whole program died twice while it measured the
candidate, so the candidate is not tried again. refused: the kernel of a stranger may
bring code that tilelang did not generate, or has other parameters than the task's."""
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
"""Kinds of failures after which the candidate is known to have run on a device."""
COMMON_FAILURES = 16
"""If this many candidates fail in the same way, the candidates are probably not the cause."""


def what_failed(kind: str) -> str:
    """Return a verb phrase for a kind of failure, such as ``timed out``, or the kind itself if it is unknown."""
    return _WORDS.get(kind, kind)


class Failure(msgspec.Struct, frozen=True, tag="failure", omit_defaults=True):
    """A candidate that failed in a stage. `detail` is the end of what the compiler or the device printed.

    `index`: the candidate's index. `kind`: a `FailureKind`. `message`: a sentence for people. `doubt`: the reason that
    the candidate may not be at fault, or an empty text. If there is a doubt, a fresh process tries the candidate again.
    `kill_s`: seconds from the deadline, or from the report of an error, until the process had ended.
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
"""The value of `Failure.doubt` for a candidate that was in progress when all processes were lost together."""


class KernelParam(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel parameter. `shape`: sizes as ints or as names of symbolic dimensions; None for a scalar.

    `strides`: strides in elements, as ints or names of symbolic dimensions; None for a contiguous parameter.
    """

    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] | None = None


class Roles(msgspec.Struct, frozen=True, tag="roles", omit_defaults=True):
    """Roles of a kernel's parameters in a call, by position."""

    outputs: tuple[Whole, ...] = ()
    """Outputs, in order. If a call passes no tensor for an output, the call allocates and returns the output."""
    zero: tuple[Whole, ...] = ()
    """Parameters that a call first sets to zero, unless they are outputs that the caller passes."""
    writes: tuple[Whole, ...] = ()
    """Inputs that the kernel may write into."""
    set_up: tuple[Whole, ...] = ()
    """Inputs that the workload's `setup` changed before the kernel was checked and timed. Calls do not run `setup`."""
    unnamed: bool = False
    """Whether the user named no outputs. If so, tilelang's tuner passes all parameters to the user's functions."""

    @property
    def zero_inputs(self) -> tuple[int, ...]:
        return tuple(i for i in self.zero if i not in self.outputs)

    def where_given(self, positions: Sequence[int]) -> Roles:
        """Return the roles for a caller that prepares the outputs at `positions`, and passes them in every call."""
        given = {*positions} & {*self.outputs}
        return msgspec.structs.replace(
            self,
            outputs=tuple(i for i in self.outputs if i not in given),
            zero=tuple(i for i in self.zero if i not in given),
            writes=tuple(sorted({*self.writes, *given})),
        )

    def handed_out(self) -> Roles:
        """Return these roles for calls by users. Raises `UsageError` if `setup` changed an input."""
        if not self.set_up:
            return self
        raise UsageError(
            f"setup changed input {', '.join(map(str, self.set_up))} before the kernel was checked, but a call of the "
            "kernel does not run setup: give data with inputs=, clear tensors with zero=, or set values in the kernel"
        )


def fitting(own: Roles | None, first: Roles) -> Roles:
    """Return a candidate's `own` roles if they have as many outputs as `first`; otherwise, return the roles `first`.

    A faulty candidate may omit an output, or read a tensor that it should overwrite, so callers rely on `first`.
    """
    return first if own is None or len(own.outputs) != len(first.outputs) else own


class Gemm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A `T.gemm` of a kernel. `m`, `n`, `k`: the sizes of one call's product, in elements.

    `calls`: number of calls per block, averaged over the grid. `dtype`: the operands' type, such as ``bfloat16``.
    """

    m: Whole
    n: Whole
    k: Whole
    calls: Quantity
    dtype: Word
    policy: Whole = 0
    """How warps share the tile, as tilelang's number: 0 stands for squares, 1 for whole rows, 2 for whole columns."""
    in_registers: bool = False
    """Whether the first operand is in registers instead of shared memory."""
    feeds: bool = False
    """Whether the result stays in registers and becomes the first operand of another product."""
    sum_bits: Whole = 32
    """Bits per element of the result."""

    @property
    def flops(self) -> float:
        """Floating-point operations per block, where a multiplication and an addition count as two."""
        return 2.0 * self.m * self.n * self.k * self.calls


class Access(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A place in the kernel that reads or writes a tensor.

    `n_bytes`: bytes per block, averaged over the grid. For a tile that crosses the tensor's end, the bytes of the whole
    tile are included. `axes`: the axes of the grid on which the address depends, such as ``xy``. Blocks that differ
    only in the remaining axes access the same bytes.
    """

    n_bytes: Quantity
    axes: str = ""
    steps: Quantity = 1.0
    """Number of times that a block makes this access."""
    width: Whole | None = None
    """Number of bytes that a thread accesses in one instruction, as the kernel requests; None if tilelang decides."""
    tensor_bytes: Whole | None = None
    """Bytes of the whole tensor; None if they depend on the call."""
    uneven: bool = False
    """Whether rows of a tile that is read have a number of elements that is no power of two, so that threads divide."""


class BlockWork(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The work of a block, averaged over the grid, as computed from the kernel's statements before lowering."""

    gemms: tuple[Gemm, ...] = ()
    reads: tuple[Access, ...] = ()
    """Accesses that read global memory."""
    writes: tuple[Access, ...] = ()
    shared_bytes: Quantity = 0.0
    """Bytes that copies and parallel loops move to or from shared memory, except the operands of `gemms`."""
    scalar_ops: Quantity = 0.0
    """Number of scalar operations outside of tensor cores, except `special_ops`."""
    special_ops: Quantity = 0.0
    """Number of scalar exponentials, roots, logarithms and divisions."""
    exchanges: Quantity = 0.0
    """Times that a block waits for an exchange of values between the threads that share a row of a reduction."""
    fragment_registers: Whole = 0
    """Number of 32-bit registers that a thread needs for fragments and local arrays, where most of them are alive."""
    stages: Whole = 0
    """Largest number of stages in a `T.Pipelined` loop; 0 if no loop has stages."""
    steps: Quantity = 1.0
    """Number of iterations of the deepest pipelined loop, or else of the longest loop that copies or multiplies."""
    threads: Whole = 1
    """Threads per block that the kernel requests."""
    tensor_bytes: Whole | None = None
    """Total size of all tensors in bytes; None if the size depends on the call."""
    block_order: str = ""
    """Order of blocks: tilelang's name and panel width, such as ``rasterization2DRow 8``; empty for the usual order."""

    @property
    def tensor_flops(self) -> float:
        """Floating-point operations of a block on tensor cores."""
        return sum(gemm.flops for gemm in self.gemms)

    @property
    def read_bytes(self) -> float:
        return sum(access.n_bytes for access in self.reads)

    @property
    def write_bytes(self) -> float:
        return sum(access.n_bytes for access in self.writes)


class StaticFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Facts about a kernel that are known before compilation. A fact is None if it is unknown or does not apply."""

    smem_bytes: Whole | None = None
    threads: Whole | None = None
    """Actual number of threads per block, including producer warps of warp specialisation."""
    grid: Annotated[tuple[Extent, ...], msgspec.Meta(max_length=8)] = ()
    """Number of blocks along each axis; empty if these numbers depend on the call."""
    accumulators: Whole | None = None
    """Size of the largest fragment, in 32-bit registers per thread."""
    source_bytes: Whole | None = None
    """Number of characters in the generated device source."""
    lacking_registers: Whole = 0
    """Number of requested registers (``setmaxnreg``) that a block never gets. If any are missing, the block hangs."""
    work: BlockWork | None = None
    """Work per block; None if a part of the work depends on values in the call."""
    layouts: Layouts | None = None
    """Results of layout inference; None if the lowering of an earlier run was reused."""


class Elaborated(msgspec.Struct, frozen=True, tag="elaborated", gc=False):
    """An elaborated candidate, with its predicted `facts`.

    `ir_digest`: see `Lowered`. If the job asks for digests, `ir_digest` is set instead of `facts`.
    """

    index: int
    facts: StaticFacts = StaticFacts()
    ir_digest: str = ""


class Lowered(msgspec.Struct, frozen=True, tag="lowered", gc=False):
    """A lowered candidate.

    Candidates with equal `code_key` compile to the same machine code, whichever compiler is used. Only candidates with
    equal `merge_key` may share a library, because their flags, pass configs and text before the kernel are equal.
    `blob`: the IR of the host and the device code for `codegen`; empty if the kernel was lowered by an earlier run.
    """

    index: int
    code_key: str
    merge_key: str
    params: tuple[KernelParam, ...]
    facts: StaticFacts
    seconds: float
    blob: bytes
    ir_key: str = ""
    """Digest of everything that decides the result of lowering, such as the elaborated kernel."""
    store_key: str = ""
    """Key, in the artifact store, of the library that nvcc or g++ builds. The key is made from `code_key` and the
    versions of the code generators. The key is empty if the source includes files of the user, whose contents no key
    covers."""
    use: str = ""
    """Headers and instructions that cicc's compiler state needs for the source; empty if cicc cannot compile it."""
    source_key: str = ""
    """See `Artifact.source_key`."""
    ir_digest: str = ""
    """A digest that is equal for equal elaborated kernels, even if their sources differ. The digest is empty if the
    code also depends on other things, such as files that the kernel includes."""
    printed: str = ""
    """See `Record.printed`."""
    roles: Roles | None = None
    """The roles of the candidate's own parameters; None if only the first candidate's roles are known."""


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Resources of compiled code. Each figure is the maximum over all kernels, except for `code_bytes`."""

    registers: Whole = 0
    """32-bit registers per thread."""
    stack_bytes: Whole = 0
    """Bytes of local memory per thread, for arrays outside of registers and for spills."""
    code_bytes: Whole = 0
    """Bytes of machine code, for all kernels together."""
    static_smem_bytes: Whole = 0
    """Bytes of static shared memory per block, which the launch does not request."""


CICC = "cicc"
"""The value of `Artifact.compiler` for a library that nvcc's own programs compiled with pre-parsed headers."""
STORED = "from the artifact store"
"""The value of `Artifact.why` for a library that an earlier run compiled and stored."""


class Artifact(msgspec.Struct, frozen=True, tag="artifact", gc=False):
    """A compiled candidate, given by the file of a shared library and the symbol to call in the library."""

    index: int
    path: PathText
    symbol: PathText
    params: tuple[KernelParam, ...]
    target: str
    """``cuda`` or ``c``, which decides how the library is loaded."""
    seconds: float = 0.0
    """Seconds that it took to build the library, including all other candidates in the library."""
    calls: tuple[int | str, ...] = ()
    """For target ``c``: each argument of the C function, as a parameter's position or a symbolic dimension's name."""
    compiler: str = ""
    """The compiler of the device code, which is ``nvcc``, ``cicc`` (nvcc with pre-parsed headers) or ``g++``."""
    why: str = ""
    store_key: str = ""
    """Key of the library in the artifact store; empty if the store may not keep the library."""
    source_key: str = ""
    """Shortened SHA-256 of the generated sources for device and host, after the kernel's name was replaced in them."""
    machine: MachineFacts | None = None
    """Resources that the kernel needs; None for target ``c``."""
    state: str = ""
    """Key of the compiler state in which cicc built the library; empty if another compiler built it."""
    compared: bool = False
    """Whether a comparison has shown that cicc's code in this compiler state equals nvcc's code."""
    roles: Roles | None = None
    """See `Lowered`."""

    @property
    def plain(self) -> bool:
        """Whether the library was compiled in the same way as tilelang itself compiles."""
        return self.compiler != CICC


Built = Artifact | Failure


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """The difference between cicc's library and nvcc's library, which is empty if code and sources are equal."""

    index: int
    difference: str = ""


def source_path(library: str, symbol: str) -> str:
    """Return the path of the file that has the source of one kernel in `library`, and no other kernel's source."""
    return f"{library.removesuffix('.so')}.{symbol}.source"

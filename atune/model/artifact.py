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
    "out_of_bounds", "mismatch", "non_finite", "unwritten", "worker_lost", "suspect",
]  # fmt: skip
"""Why a candidate failed.

lower: elaborating or lowering raised. codegen: source generation raised. compile: nvcc or g++ refused the source.
crash: the compile worker died. timeout: past a deadline, killed. hopeless: its compile took far longer than the run's
others, and was killed. load: the library did not load. launch: the call raised. out_of_memory: the device had no memory
left. fault: the device reported an error that poisons its context. out_of_bounds: it wrote before or after a parameter,
or changed what it is judged by. mismatch / non_finite / unwritten: outputs differ from the reference, hold NaN or
infinity, or were not written. worker_lost: its process was killed from outside, twice. suspect: the whole program died
twice while measuring it, so it is not tried again.
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
}

RAN = frozenset({"mismatch", "non_finite", "unwritten", "out_of_bounds", "launch", "fault"})
"""Kinds of failures of candidates that a device has called."""
COMMON_FAILURES = 16
"""Number of equal failures from which they are not the candidates' fault."""


def what_failed(kind: str) -> str:
    """Return what candidates with this kind of failure did, in words. A kind of a later atune stands for itself."""
    return _WORDS.get(kind, kind)


class Failure(msgspec.Struct, frozen=True, tag="failure", omit_defaults=True):
    """A candidate that failed in a stage. `detail` is the tail of the compiler's or device's output.

    `index`: the candidate's. `kind`: the stage or the reason, one of `FailureKind`. `message`: one sentence for people.
    `doubt`: why the failure may not be the candidate's fault, so that a fresh process tries it again; empty without
    doubt. `kill_s`: seconds from the deadline, or from the error's report, until the process was reaped.
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
"""The doubt about what was under way when all processes were lost together."""


class KernelParam(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel parameter. `shape`: ints, or names of symbolic dimensions; None for a scalar.

    `strides`: in elements, ints or names, if the parameter is declared with strides; None if it is contiguous.
    """

    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] | None = None


class Roles(msgspec.Struct, frozen=True, tag="roles", omit_defaults=True):
    """Roles of a kernel's parameters in a call, by position."""

    outputs: tuple[Whole, ...] = ()
    """Outputs, in order. A call that does not give them makes and returns them."""
    zero: tuple[Whole, ...] = ()
    """Parameters that a call sets to zero first: outputs that it makes, and inputs. An output that is given stays as it
    is."""
    writes: tuple[Whole, ...] = ()
    """Inputs that the kernel may write into."""
    set_up: tuple[Whole, ...] = ()
    """Inputs that the workload's `setup` changed before the kernel was checked and timed. No call does that."""
    unnamed: bool = False
    """Whether nobody names outputs to tilelang's tuner, which then gives the user's functions every parameter."""

    @property
    def zero_inputs(self) -> tuple[int, ...]:
        """Inputs that a call sets to zero."""
        return tuple(i for i in self.zero if i not in self.outputs)

    def where_given(self, positions: Sequence[int]) -> Roles:
        """Return these roles for calls that always give the outputs among `positions`, which are theirs to prepare."""
        given = {*positions} & {*self.outputs}
        return msgspec.structs.replace(
            self,
            outputs=tuple(i for i in self.outputs if i not in given),
            zero=tuple(i for i in self.zero if i not in given),
            writes=tuple(sorted({*self.writes, *given})),
        )

    def handed_out(self) -> Roles:
        """Return these roles, for a kernel that users call. Raises `UsageError` where a call cannot keep them."""
        if not self.set_up:
            return self
        raise UsageError(
            f"setup changed input {', '.join(map(str, self.set_up))} before the kernel was checked, and a call of the "
            "kernel does not: make such data with inputs=, set a tensor to zero with zero=, or do it in the kernel"
        )


def fitting(own: Roles | None, first: Roles) -> Roles:
    """Return the roles of a candidate: its `own`, from its code, if that writes as many outputs as the `first` one.

    Other code may lack an output, or read what it should overwrite, and calls of the kernel rely on the first one's.
    """
    return first if own is None or len(own.outputs) != len(first.outputs) else own


class Gemm(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One `T.gemm` of a kernel. `m`, `n`, `k`: the shape of a call, in elements.

    `calls`: how often a block calls it, on average over the grid. `dtype`: its operands' type, such as ``bfloat16``.
    """

    m: Whole
    n: Whole
    k: Whole
    calls: Quantity
    dtype: Word
    policy: Whole = 0
    """How warps share the tile, in tilelang's numbers: 0 square, 1 whole rows for each, 2 whole columns for each."""
    in_registers: bool = False
    """Whether its first operand is in registers, not in shared memory."""
    feeds: bool = False
    """Whether its result is the first operand of a product, and stays in registers until then."""
    sum_bits: Whole = 32
    """Bits of an element of its result."""

    @property
    def flops(self) -> float:
        """Floating-point operations of a block: each product and each sum counts."""
        return 2.0 * self.m * self.n * self.k * self.calls


class Access(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Bytes of one tensor that a block reads or writes at one place of the kernel.

    `n_bytes`: bytes of a block, on average over the grid; tiles past the tensor's end count whole. `axes`: axes of the
    grid (of ``xyz``) that the place depends on. Blocks that differ only in other axes access the same bytes.
    """

    n_bytes: Quantity
    axes: str = ""
    steps: Quantity = 1.0
    """How often a block makes this access."""
    width: Whole | None = None
    """Bytes that the kernel asks each thread to move at once; None if tilelang chooses."""


class BlockWork(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Work of one block of a kernel, from the kernel's statements before lowering: averages over the grid."""

    gemms: tuple[Gemm, ...] = ()
    reads: tuple[Access, ...] = ()
    """Accesses to global memory, like `writes`."""
    writes: tuple[Access, ...] = ()
    shared_bytes: Quantity = 0.0
    """Bytes that copies and parallel loops move into or out of shared memory, without those that `gemms` read."""
    scalar_ops: Quantity = 0.0
    """Arithmetic outside of tensor cores, in operations on one element, without `special_ops`."""
    special_ops: Quantity = 0.0
    """Exponentials, roots, logarithms and quotients of one element."""
    fragment_registers: Whole = 0
    """32-bit registers of a thread for all fragments and local arrays, if all lived at once."""
    stages: Whole = 0
    """Stages of the deepest `T.Pipelined` loop; 0 if no loop has any."""
    steps: Quantity = 1.0
    """Iterations of that loop, or of the longest loop around a copy or a product."""
    threads: Whole = 1
    """Threads of a block that the kernel requests."""
    tensor_bytes: Whole | None = None
    """Bytes of all tensors together; None if they depend on the call."""
    block_order: str = ""
    """The order of blocks, with tilelang's name and its panel: ``rasterization2DRow 8``; empty for the device's own."""

    @property
    def tensor_flops(self) -> float:
        """Floating-point operations of a block on tensor cores."""
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
    """Facts of a kernel that are known before it is compiled. None: not applicable to the target, or unknown."""

    smem_bytes: Whole | None = None
    threads: Whole | None = None
    """Threads that a block really has, including producer warps of warp specialisation."""
    grid: Annotated[tuple[Extent, ...], msgspec.Meta(max_length=8)] = ()
    """Blocks along each axis; empty if they depend on the call."""
    accumulators: Whole | None = None
    """Largest fragment of a thread, in 32-bit registers."""
    source_bytes: Whole | None = None
    """Length of the generated device source."""
    lacking_registers: Whole = 0
    """Registers that a block waits for with ``setmaxnreg`` and never gets, so that it would hang."""
    work: BlockWork | None = None
    """Work of a block; None if any of it depends on values of the call."""
    layouts: Layouts | None = None
    """Results of layout inference; None if the lowering was reused."""


class Elaborated(msgspec.Struct, frozen=True, tag="elaborated", gc=False):
    """Facts of a kernel before it is lowered: its `facts` as predicted.

    `ir_digest`: see `Lowered`; only where the job asks for it, in place of facts.
    """

    index: int
    facts: StaticFacts = StaticFacts()
    ir_digest: str = ""


class Lowered(msgspec.Struct, frozen=True, tag="lowered", gc=False):
    """A lowered candidate. Candidates of equal `code_key` compile to the same machine code, by any compiler.

    `merge_key`: only candidates of equal merge_key may share a library (flags, pass configs, all text before the
    kernel). `blob`: the stage's own bytes (IR of host and device), which only `codegen` reads. It is empty if the
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
    """The input of lowering: the elaborated kernel, and everything else that decides the result."""
    store_key: str = ""
    """Key of its library by nvcc or g++ in the artifact store: `code_key`, and what the way to that code depends on."""
    use: str = ""
    """Headers and instructions that its source uses: a part of cicc's compiler state. Empty: cicc cannot compile it."""
    source_key: str = ""
    """See `Artifact.source_key`."""
    ir_digest: str = ""
    """Equal for equal elaborated kernels, whatever their source. Empty where it would not cover all that decides the
    code, such as files that the kernel includes."""
    kept_as: str = ""
    """Key of the library with which the artifact store keeps this."""
    printed: str = ""
    """See `Record.printed`."""
    roles: Roles | None = None
    """The roles of its own parameters; None where only those of the run's first candidate are known."""
    storable: bool = True
    """Whether `code_key` covers everything that decides the machine code. It does not if user files are included."""


class MachineFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel's use of the machine, known after compiling. If a candidate has several kernels, the largest figures."""

    registers: Whole = 0
    """32-bit registers of a thread."""
    stack_bytes: Whole = 0
    """Local memory of a thread: arrays outside of registers, and spills."""
    code_bytes: Whole = 0
    """Machine code of all its kernels."""
    static_smem_bytes: Whole = 0
    """Shared memory of a block that the launch does not request."""


CICC = "cicc"
"""`Artifact.compiler` of a library from nvcc's programs with pre-parsed headers."""
STORED = "from the artifact store"
"""`Artifact.why` of a library that an earlier run compiled."""


class Artifact(msgspec.Struct, frozen=True, tag="artifact", gc=False):
    """One candidate's place in a shared library: the file, and the symbol to call in it."""

    index: int
    path: PathText
    symbol: PathText
    params: tuple[KernelParam, ...]
    target: str
    """``cuda`` or ``c``: how to load it."""
    seconds: float = 0.0
    """Seconds that building the library took, for all members together."""
    calls: tuple[int | str, ...] = ()
    """For target ``c``: each argument of the C function, as a parameter's position or a symbolic dimension's name."""
    compiler: str = ""
    """The compiler of the device code: ``nvcc``, ``cicc`` (nvcc with pre-parsed headers) or ``g++``."""
    why: str = ""
    """Why this compiler was used."""
    store_key: str = ""
    """Its key in the artifact store; empty if it may not be kept."""
    source_key: str = ""
    """SHA-256, shortened, of the generated sources of device and host, with the kernel's name replaced."""
    machine: MachineFacts | None = None
    """Its registers, stack and code; None for target ``c``."""
    state: str = ""
    """Key of the compiler state in which cicc built it; empty if nvcc or g++ did."""
    compared: bool = False
    """Whether code of that state was found equal to nvcc's."""
    roles: Roles | None = None
    """See `Lowered`."""

    @property
    def plain(self) -> bool:
        """Whether it was compiled as tilelang does."""
        return self.compiler != CICC


Built = Artifact | Failure


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """Comparison of a library that cicc built with one by nvcc. `difference`: empty if code and sources are equal."""

    index: int
    difference: str = ""


def source_path(library: str, symbol: str) -> str:
    """Return the source file of one member of `library`: that kernel's alone, not the group's."""
    return f"{library.removesuffix('.so')}.{symbol}.source"

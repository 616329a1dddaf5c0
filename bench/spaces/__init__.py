"""Search spaces of real kernels, with recordings of all their candidates in the same folder.

`SPACES` names them. A recording is the compressed journal of an exhaustive run, `NAME.jsonl.xz`: bench/record.py makes
it, and `opened` opens it. Importing this module imports neither torch nor tilelang.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".jsonl.xz"


class Space(NamedTuple):
    """The file and the name of a workload, and the number of configurations in its space."""

    file: str
    name: str
    total: int

    @property
    def ref(self) -> str:
        """``FILE.py:NAME``, for ``atune tune``."""
        return f"{(FOLDER / self.file).resolve()}:{self.name}"


SPACES = {
    "gemm_square": Space("gemms.py", "SQUARE", 2508),
    "gemm_tall": Space("gemms.py", "TALL", 972),
    "gemm_skinny": Space("gemms.py", "SKINNY", 461),
    "gemm_odd": Space("gemms.py", "ODD", 826),
    "gemm_unaligned": Space("gemms.py", "UNALIGNED", 864),
    "attention_causal": Space("attentions.py", "CAUSAL", 118),
    "dequant_gemm": Space("dequants.py", "INT4", 271),
    "rms_norm": Space("rms_norms.py", "WIDE", 80),
    "transpose": Space("transposes.py", "LARGE", 270),
}
"""A space, its workload and its recording have the same name."""

FAMILIES = {
    "gemm": (576, "256_4096_4096 1024_4096_4096 1024_4096_14336 4096_4096_4096 4096_14336_4096"),
    "fp8": (432, "256_4096_4096 1024_4096_4096 1024_4096_14336 4096_4096_4096 4096_14336_4096"),
    "grouped": (192, "4_15_2048_7168 8_256_2048_7168 4_512_2048_7168 3_768_7168_2048 4_531_7168_2048"),
    "attention": (240, "1_512_32_64_causal 2_2048_16_64_causal 1_4096_32_128 1_4096_32_128_causal "
                       "1_8192_16_128_causal"),
    "kda": (320, "1_1024_32 1_2048_16 2_2048_32 1_4096_64 1_8192_32"),
}  # fmt: skip
"""The number of configurations and the problems of each family in bench/families.py."""
HELD_OUT = (
    "gemm_256_4096_4096", "gemm_1024_4096_14336", "fp8_1024_4096_14336", "fp8_4096_4096_4096", "grouped_4_15_2048_7168",
    "grouped_4_531_7168_2048", "attention_2_2048_16_64_causal", "attention_1_4096_32_128_causal", "kda_1_2048_16",
    "kda_1_4096_64",
)  # fmt: skip
"""Problems that no constant of the prior has seen. They were drawn before anything was fitted."""
PROBLEMS = {
    f"{family}_{problem}": Space("../families.py", f"{family}_{problem}".upper(), total)
    for family, (total, problems) in FAMILIES.items()
    for problem in problems.split()
}


@contextmanager
def opened(recording: Path | str) -> Iterator[Path]:
    """Unpack a recording, and yield its journal in a temporary file. `recording`: a path, or a name."""
    path = FOLDER / f"{recording}{SUFFIX}" if recording in SPACES | PROBLEMS else Path(recording)
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        journal = Path(folder) / path.name.removesuffix(".xz")
        with lzma.open(path) as packed, journal.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        yield journal


@contextmanager
def journal_in(path: Path) -> Iterator[Path]:
    """Yield the journal at `path`, unpacked if it is a recording."""
    if path.suffix == ".xz":
        with opened(path) as journal:
            yield journal
    else:
        yield path

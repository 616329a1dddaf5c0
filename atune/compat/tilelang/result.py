"""`AutotuneResult`: the winner as tilelang's own `JITKernel`, and its folder on disk, in tilelang's format."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atune.compat.tilelang.arguments import CompileArgs
from atune.compat.tilelang.environment import CompatWarning, original
from atune.errors import AtuneError

if TYPE_CHECKING:
    from atune.journal.result import TuneResult

FILES = ("best_config.json", "function.pkl", "latency.json", "device_kernel.cu", "host_kernel.cu")
"""Files of a saved result. That of the parameters is missing, because its name depends on tilelang's version."""
LIBRARIES = ("executable.so", "kernel_lib.so", "kernel.cubin", "kernel.py")
OUT_IDX = "out_idx.json"


@dataclass(frozen=True)
class AutotuneResult:
    """The result of a tuning.

    `latency`, `ref_latency`: milliseconds, of the winner and of the reference; None if nothing was timed. `config`:
    the winner's configuration, as given. `libcode`: its device source. `func`: its PrimFunc. `kernel`: its
    `tilelang.JITKernel`. `tuning`: the whole record, as atune's `TuneResult`; None for a loaded result or without a
    tuning. `out_idx`: positions of the outputs that the kernel returns.
    """

    latency: float | None = None
    config: dict[str, Any] | None = None
    ref_latency: float | None = None
    libcode: str | None = None
    func: Any = None
    kernel: Any = None
    tuning: TuneResult | None = None
    out_idx: tuple[int, ...] | None = None

    def save_to_disk(self, path: Path | str, verbose: bool = False) -> None:
        """Write the folder `path` in tilelang's format. Replaces an existing one.

        The folder appears complete or not at all. Raises `AtuneError` if tilelang could not write the kernel.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        theirs = original("tilelang.autotuner.param", "AutotuneResult")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as stage:
            staged = Path(stage) / "saved" / path.name  # tilelang stages files in the parent's parent folder
            staged.parent.mkdir()
            whole = theirs(self.latency, self.config, self.ref_latency, self.libcode, self.func, _alone(self.kernel))
            whole.save_to_disk(staged, verbose)
            if missing := _missing(staged):
                raise AtuneError(f"{path} could not be saved: tilelang did not write {', '.join(missing)}; see its log")
            if self.out_idx is not None:
                (staged / OUT_IDX).write_text(json.dumps({"out_idx": list(self.out_idx)}))
            if path.exists():
                os.rename(path, Path(stage) / "replaced")
            os.rename(staged, path)

    @classmethod
    def load_from_disk(cls, path: Path | str, compile_args: CompileArgs) -> AutotuneResult | None:
        """Return the result in `path`, written by tilelang or by atune, or None if there is no complete one.

        For an incomplete folder, a warning names the missing files. Folders without ``out_idx.json`` are older; their
        outputs are `compile_args.out_idx`. Loading runs the code in the folder: load only folders that you trust.
        """
        path = Path(path)
        if not path.exists():
            return None
        if missing := _missing(path):
            warnings.warn(f"{path} is not used: it lacks {', '.join(missing)}", CompatWarning, stacklevel=2)
            return None
        recorded = None
        with contextlib.suppress(FileNotFoundError):
            recorded = json.loads((path / OUT_IDX).read_text())["out_idx"]
        out_idx = positions(compile_args.out_idx if recorded is None else recorded)  # tilelang changes its list
        found = original("tilelang.autotuner.param", "AutotuneResult").load_from_disk(path, compile_args)
        if found is None:
            warnings.warn(f"{path} is not used: it holds another backend's kernel", CompatWarning, stacklevel=2)
            return None
        return cls(
            latency=found.latency,
            config=found.config,
            ref_latency=found.ref_latency,
            libcode=found.libcode,
            func=found.func,
            kernel=found.kernel,
            out_idx=out_idx,
        )


def _missing(path: Path) -> list[str]:
    """Return the files that the folder lacks."""
    from tilelang.autotuner.param import PARAMS_PATH

    missing = [name for name in (*FILES, PARAMS_PATH) if not (path / name).is_file()]
    if not any((path / name).is_file() for name in LIBRARIES):
        missing.append(f"a library ({', '.join(LIBRARIES)})")
    return missing


def positions(out_idx: list[int] | int | None) -> tuple[int, ...] | None:
    return None if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)


def _alone(kernel: Any) -> Any:
    """Return `kernel` from a library of its own. The library of a tuning also holds other candidates."""
    return kernel.as_tilelang() if hasattr(kernel, "as_tilelang") else kernel

"""Four kinds of kernel: what `atune explain` finds in each, and whether a layout axis makes one faster.

python bench/layout_kinds.py          # compiles for sm_90a; needs nvcc
python bench/layout_kinds.py --time   # then tunes each kernel, on a GPU

The first command writes bench/results/layout_kinds.json and prints it as a table. The second adds the best latency of
each kernel to it, and the best that leaves all layouts to the compiler.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "bench" / "results" / "layout_kinds.json"
FILE = "bench/layout_kinds_kernels.py"
KINDS = ("NORM", "ATTENTION", "DEQUANTISING", "TRANSPOSE")
LAYOUTS = ("loop", "policy", "read", "write", "swizzle")
OWN = ("compiler", "Square")


def asked(command: str, *words: str) -> dict[str, Any]:
    """Return what a command of atune prints with ``--json``."""
    line = [sys.executable, "-m", "atune", command, *words, "--json"]
    said = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def own(config: dict[str, Any]) -> bool:
    """Tell whether a configuration leaves all layouts to the compiler."""
    return all(config[name] in OWN for name in LAYOUTS if name in config)


def best(records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    timed = [record for record in records if record["latency_ms"] is not None]
    return min(timed, key=lambda record: float(record["latency_ms"]), default=None)


def timed(kind: str) -> dict[str, Any] | None:
    """Return the best latency, and the best with the compiler's layouts, in µs; None where no candidate worked."""
    journal = OUT.with_suffix(f".{kind.lower()}.jsonl")
    journal.unlink(missing_ok=True)
    asked("tune", f"{FILE}:{kind}", "--journal", str(journal), "--quiet")
    from atune import replay

    records = [{"config": dict(r.config), "latency_ms": r.latency_ms} for r in replay(journal).records]
    journal.unlink()
    first, plain = best(records), best([record for record in records if own(record["config"])])
    if first is None or plain is None:
        return None
    return {
        "config": first["config"],
        "best_us": round(first["latency_ms"] * 1e3, 2),
        "own_layouts_us": round(plain["latency_ms"] * 1e3, 2),
    }


def looked_at(kind: str) -> dict[str, Any]:
    facts = asked("explain", f"{FILE}:{kind}", "--target", "sm_90a")
    return {
        "kind": kind.lower(),
        "registers": facts["registers"],
        "spill_bytes": facts["spill_bytes"],
        "smem_bytes": facts["smem_bytes"],
        "occupancy_blocks": facts["occupancy_blocks"],
        "redundant": sum(loop["redundant"] for loop in facts["loops"]),
        "widths": [loop["width"] for loop in facts["loops"]],
        "swizzled": [one["name"] for one in facts["shared"] if one["swizzled"]],
        "timed": None,
    }


def row(found: dict[str, Any]) -> str:
    times = found["timed"]
    time = "–" if times is None else f"{times['best_us']} against {times['own_layouts_us']} µs"
    cells = [
        found["kind"], f"{found['registers']}, {found['spill_bytes']}", found["smem_bytes"], found["occupancy_blocks"],
        found["redundant"], ", ".join(map(str, found["widths"])), time,
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def keep(found: Sequence[dict[str, Any]]) -> None:
    OUT.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    if "--time" in sys.argv[1:]:
        found = json.loads(OUT.read_text())
        for one in found:
            one["timed"] = timed(one["kind"].upper())
            keep(found)
    else:
        found = [looked_at(kind) for kind in KINDS]
        keep(found)
    print("| kernel | registers, spill bytes | smem | blocks | redundant | widths | timed |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(map(row, found)))


if __name__ == "__main__":
    main()

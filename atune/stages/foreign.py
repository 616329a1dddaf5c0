"""Elaborate a stranger's kernel in a sandbox, and check the elaborated kernel before a trusted process uses it.

Only `elaborate` runs a stranger's Python. The sandbox returns only the elaborated kernel, as JSON in TVM's format.
`admitted` reads this JSON, and refuses a kernel that could contain or call code that tilelang did not generate.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec

from atune.errors import AtuneError, in_one_line
from atune.model.candidate import with_tuples
from atune.model.device import Target
from atune.model.folders import TILELANG_FOLDER
from atune.stages import sandbox, tilelang
from atune.stages.codegen import context_of, load_ir
from atune.stages.frontend import elaborated, kernel_parameters
from atune.workload.fingerprint import function_of
from atune.workload.pickling import run_file
from atune.workload.source_locations import detail_of, place_of

KEPT = re.compile(r"PATH|LANG|LC_\w+|LD_LIBRARY_PATH|CUDA_\w+|(TILELANG|TL|TVM)_\w+|ATUNE_WORKER")
"""Pattern for the environment variables that a stranger gets. The values of other variables may be secrets."""
CALLS = re.compile(r"extern|packed|call_|backend|tvm_struct|static_handle|anylist|profile|param|^(?!tl\.|tirx\.)", re.I)
"""Pattern for the names of operators that can call code that tilelang did not generate."""
OWN = frozenset({"DP4A"})
"""External functions that tilelang's own frontend calls."""
NODES = re.compile(
    r"None|ffi\.(String|Array|Map|Int|Float|Bool)|(tirx|tl)\.\w+|relax\.(\w+StructInfo|expr\.ShapeExpr)"
    r"|ir\.(Span|SourceName|IntImm|FloatImm|PrimType|PointerType|TupleType|DictAttrs|Op|Range)"
)
"""Pattern for the types that a node of a kernel may have."""
TEXT = re.compile(r"[\w.:<>,* /$\[\]-]{0,200}", re.ASCII)
"""Pattern for the strings that a kernel may contain. Code generators print names and strings unchanged, so no name and
no string may form a statement."""
HOST = ("SBlock", "SBlockRealize", "SeqStmt", "Bind", "IfThenElse")
"""Kinds of statements that a kernel may contain outside of its launches."""


class Refused(AtuneError):
    """A stranger's kernel may contain or call code of its own, or its parameters differ from the task's parameters."""


def elaborate(payload: bytes) -> bytes:
    """Entry point: msgpack of (text, kernel's name or ``""``, task's name, arguments, target, own folder) → JSON.

    The answer begins with the reason why the code could not be isolated (empty if the code was isolated) and a line
    feed. Then follows the elaborated kernel, or, if elaborating failed, ``-`` and (message, detail). Raises
    `RuntimeError` if the stranger's code ends its process.
    """
    kind = tuple[str, str, str, dict[str, Any], Target, str]
    text, name, task, arguments, target, folder = msgspec.msgpack.decode(payload, type=kind)
    all_runs = os.path.dirname(os.path.dirname(folder))  # hidden, because it has sockets of other processes
    why, folder = sandbox.isolate(folder, all_runs)
    for hidden in [each for each in os.environ if not KEPT.fullmatch(each)]:
        del os.environ[hidden]
    tempfile.tempdir = os.environ["HOME"] = os.environ["TMPDIR"] = os.environ[TILELANG_FOLDER] = folder
    file = os.path.join(folder, "candidate.py")
    Path(file).write_text(text)
    return f"{why}\n".encode() + sandbox.answer_of(lambda: _elaborated(file, name, task, arguments, target))


def _elaborated(file: str, name: str, task: str, arguments: dict[str, Any], target: Target) -> bytes:
    try:
        names = vars(run_file(file))
        own = [n for n, v in names.items() if isinstance(f := function_of(v), FunctionType) and f.__globals__ is names]
        chosen = name or (own[0] if len(own) == 1 else task)
        if chosen not in names:
            raise LookupError(f"the program has no kernel function {chosen!r}" + f", but {', '.join(own)}" * bool(own))
        function = elaborated(names[chosen], with_tuples(arguments), {}, context_of(target, None).target)
        return str(tilelang.tvm.ir.save_json(function)).encode()
    except BaseException as error:
        message, place = in_one_line(error).rpartition(f"{file} cannot be loaded: ")[2].rstrip(": "), place_of(error)
        if place is not None and place.file == file and ", line " not in message:
            message += f", line {place.line} of the program"
        return b"-" + msgspec.json.encode((message, detail_of(error)))


def admitted(text: bytes, own: Any, allow: Collection[str], *, on_cpu: bool) -> Any:
    """Check and return the PrimFunc that the JSON `text` holds. Runs in a trusted process. Raises `Refused`.

    `own`: the task's kernel, whose parameters the stranger's kernel must have. `allow`: names of external functions
    that the stranger's kernel may call. The name ``source`` also allows strings that could be code.
    """
    try:
        graph = msgspec.json.decode(text)
        _check_graph(graph["nodes"], allow)
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise Refused("the program wrote into its answer") from error
    graph["root_index"] = len(graph["nodes"]) - 1
    function = load_ir(msgspec.json.encode(graph).decode())
    if not isinstance(function, tilelang.tvm.tirx.PrimFunc):
        raise Refused("its kernel is not a PrimFunc")
    params, wanted = kernel_parameters(function), kernel_parameters(own)
    if len(params) != len(wanted):
        raise Refused(f"it has {len(params)} parameters, but the task's kernel has {len(wanted)}")
    if (wrong := next((i for i, param in enumerate(params) if param != wanted[i]), None)) is not None:
        raise Refused(f"parameter {wrong} is {params[wrong]}, but must be {wanted[wrong]} as in the task")
    if not on_cpu and (outside := _outside(function.body)):  # on the CPU, all code runs on the host
        raise Refused(f"a {outside[0]} outside of T.Kernel would run on the host")
    return function


def _check_graph(nodes: list[dict[str, Any]], allow: Collection[str]) -> None:
    """Check the nodes of a kernel's JSON, because TVM reads JSON without any checks. Remove the names of source
    files."""
    for place, node in enumerate(nodes):
        kind, data = node["type"], node.get("data", "")
        if not NODES.fullmatch(kind) or not _well_formed(nodes, place):
            raise Refused(f"its node {place} is not a valid {kind[:80]!r}")
        if kind == "ir.SourceName":
            node["data"] = ""
        elif kind == "tirx.Call" and CALLS.search(name := str(nodes[data["op"]].get("data"))):
            for argument in (nodes[i] for i in reversed(nodes[data["args"]]["data"])):
                name = str(nodes[argument["data"]["value"]]["data"]) if argument["type"] == "tirx.StringImm" else name
            if name not in {*OWN, *allow}:
                raise Refused(f"it calls {name[:80]!r}, which is not part of tilelang. The judge can allow the name")
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', msgspec.json.encode(node).decode()):
            if not TEXT.fullmatch(text) and "source" not in allow:
                calls = [each["data"] for each in nodes[place:] if each["type"] == "tirx.Call"]
                own = [f" in {nodes[call['op']]['data']}" for call in calls if place + 1 in nodes[call["args"]]["data"]]
                what = f"{text[:80]!r}{''.join(own[:1])}"
                raise Refused(f"it contains {what}, which could be code. The judge can allow source text")


@functools.cache
def _type(name: str) -> tuple[set[str], dict[str, Any]]:
    """Return the name of a TVM type and its ancestors' names, and the schema of each field by the field's name."""
    assert tilelang.tvm is not None, "it registers the types"
    names, fields = set[str](), dict[str, Any]()
    info = importlib.import_module("tvm_ffi.core")._lookup_or_register_type_info_from_type_key(name)
    while info is not None:
        names.add(info.type_key)
        fields |= {field.name: msgspec.json.decode(field.metadata["type_schema"]) for field in info.fields}
        info = info.parent_type_info
    return names, fields


def _well_formed(nodes: Sequence[Mapping[str, Any]], place: int) -> bool:
    """Tell whether a node refers only to earlier nodes, and has only fields and values that the node's type allows."""
    kind, data = nodes[place]["type"], nodes[place].get("data", ())
    if kind in ("ffi.Array", "ffi.Map"):
        return all(_fits(nodes, i, place, {"type": "Any"}) for i in data)
    if not isinstance(data, dict):
        return True
    fields = _type(kind)[1]
    plain = ("int", "float", "bool", "DataType")
    return all(
        name in fields and (fields[name]["type"] in plain or _fits(nodes, value, place, fields[name]))
        for name, value in data.items()
    )


def _fits(nodes: Sequence[Mapping[str, Any]], index: Any, place: int, schema: Mapping[str, Any]) -> bool:
    """Tell whether the node `index` precedes `place` and has the type `schema`. The node may also be None, unless
    `schema` is a string."""
    if type(index) is not int or not 0 <= index < place:
        return False
    kind, data, want, parts = nodes[index]["type"], nodes[index].get("data"), schema["type"], schema.get("args", ())
    if want in ("Any", "ffi.Object") or (kind == "None" and want != "ffi.String"):
        return True
    if want in ("Optional", "Union", "Variant"):
        return any(_fits(nodes, index, place, part) for part in parts)
    if want in ("ffi.Array", "ffi.Map"):
        step = len(parts) or 1
        return kind == want and all(
            _fits(nodes, i, index, parts[n % step] if parts else {"type": "Any"}) for n, i in enumerate(data or ())
        )
    return want in _type(kind)[0]


def _outside(root: Any) -> list[str]:
    """Return the kinds of nodes that the host would execute outside of the launches, such as memory accesses."""
    kinds = list[str]()

    def look(node: Any) -> bool:
        kind, bound = type(node).__name__, getattr(node, "thread_binding", None)
        if bound is not None and str(bound.thread_tag).startswith(("blockIdx.", "threadIdx.")):
            return False
        kinds.extend([kind] if kind in ("BufferLoad", "Call") or not (kind in HOST or hasattr(node, "dtype")) else [])
        return True

    tilelang.tvm.tirx.stmt_functor.pre_order_visit(root, look)
    return kinds

"""The host's code from a template and a table: it does what the function does that tilelang prints for one kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.stages.accelerators import host_code

pytest.importorskip("tilelang")
EXAMPLES = Path(__file__).parents[3] / "examples"
KERNELS = """
import tilelang.language as T

import atune


def kernel(block, kind):
    if kind == "dynamic":
        m, n = T.dynamic("m"), T.dynamic("n")

        @T.prim_func
        def dynamic(A: T.Tensor((m, n), "float16"), B: T.Tensor((m, n), "float16"), scale: T.float32):
            with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=128) as (bx, by):
                for i, j in T.Parallel(block, block):
                    B[by * block + i, bx * block + j] = A[by * block + i, bx * block + j] * scale

        return dynamic

    @T.prim_func
    def two(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32"), C: T.Tensor((4096,), "float32")):
        with T.Kernel(4096 // block, threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] + 1.0
        with T.Kernel(4096 // block, threads=block) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = B[bx * block + i] + 1.0

    return two


WORKLOAD = atune.Workload(
    kernel, [{"block": b, "kind": k} for b in (64, 128) for k in ("dynamic", "two")], inputs=[None, None, None],
    name="kernels",
)
"""
CALL = """if True:
    import ctypes, json, math, os, sys
    import tilelang
    import msgspec, tvm_ffi
    from atune.model.candidate import Candidate, config_key
    from atune.model.device import Target
    from atune.processes.messages import Session
    from atune.model.settings import BenchmarkSettings, CompileSettings
    from atune.stages.compile import linking
    from atune.stages.compile import lowering
    from atune.stages.session.session import session
    from atune.workload.workload import FileRef

    folder, wanted = sys.argv[1], json.loads(sys.argv[2])
    blobs = []
    for n, (path, config) in enumerate(wanted):
        settings = Session(
            FileRef(path, "WORKLOAD"), Target("cuda", "sm_90a"), CompileSettings(), BenchmarkSettings(), folder
        )
        session.begin(msgspec.msgpack.encode(settings))
        lowered = lowering.lower(Candidate(n, config_key(config), config))
        blobs.append((msgspec.msgpack.decode(lowered.blob, type=lowering.Blob), lowered.params))

    class DLTensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    CODES = {"bfloat16": (4, 16), "float16": (2, 16), "float32": (2, 32)}
    sizes = {"m": 300, "n": 70000}

    def tensor(param, n):
        shape = [sizes.get(size, size) for size in param.shape]
        code, bits = CODES[param.dtype]
        array = (ctypes.c_int64 * len(shape))(*shape)
        compact = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        strides = (ctypes.c_int64 * len(shape))(*compact)
        return DLTensor(0x1000 * (n + 1), 2, 3, len(shape), code, bits, 1, array, strides, 0)

    def told(function, arguments):
        '''What a call tells the device, or raises.'''
        calls.clear()
        handles = [ctypes.c_void_p(ctypes.addressof(a)) if isinstance(a, DLTensor) else a for a in arguments]
        try:
            function(*handles)
        except Exception as error:
            return [*calls, f"{type(error).__name__}: {error}"]
        return list(calls)

    def noted(name):
        # Pointers to what lies on the stack differ.
        def call(*arguments):
            calls.append([name, *(a if isinstance(a, (int, float, type(None))) else "pointer" for a in arguments)])
        return call

    calls = []
    tvm_ffi.register_global_func("__tvm_set_device", noted("device"), override=True)
    tvm_ffi.register_global_func("__tvm_tensormap_create_tiled", noted("tiled"), override=True)
    for blob, _ in blobs:
        for kernel in ("kernel", "kernel_1"):
            tvm_ffi.register_global_func(f"{blob.symbol}_{kernel}", noted(f"{blob.symbol}_{kernel}"))

    plain = []
    for n, (blob, _) in enumerate(blobs):
        os.mkdir(f"{folder}/{n}")
        linking.link(f"{folder}/{n}.so", linking._plain(blob, f"{folder}/{n}"))
        plain.append(tvm_ffi.load_module(f"{folder}/{n}.so"))
    linking.link(f"{folder}/all.so", linking._from_tables([(b.symbol, b.host_code) for b, _ in blobs], folder))
    shared = tvm_ffi.load_module(f"{folder}/all.so")

    found = []
    for (blob, params), alone in zip(blobs, plain):
        arguments = [2.5 if p.shape is None else tensor(p, n) for n, p in enumerate(params)]
        of_each = []
        def both(arguments=arguments):
            of_each.append([told(module[blob.symbol], arguments) for module in (alone, shared)])
        both()
        both()  # what was looked up is known now
        both(arguments[:-1])
        both([None, *arguments[1:]])
        both([1, *arguments[1:]])
        one = arguments[0]
        for field, wrong in [
            ("ndim", 7), ("code", 1), ("bits", 8), ("lanes", 2), ("device_type", 1), ("device_id", 2), ("data", None),
            ("byte_offset", 8), ("shape", (ctypes.c_int64 * 2)(77, 78)), ("strides", (ctypes.c_int64 * 2)(5, 6)),
        ]:
            right = getattr(one, field)
            setattr(one, field, wrong)
            both()
            setattr(one, field, right)
        found.append([blob.symbol, blob.host_code.template, of_each])
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, list[tuple[list[Any], list[Any]]]]]:
    """Have the host's functions of kernels called, with what a device would have: each kernel's symbol, its template,
    and what the device is told, or what is raised, by tilelang's function and by ours.
    """
    folder = tmp_path_factory.mktemp("host")
    (folder / "kernels.py").write_text(KERNELS)
    gemm = {"block_N": 128, "block_K": 32, "num_stages": 2, "threads": 128, "swizzle": False}
    what = [(str(EXAMPLES / "gemm.py"), {**gemm, "block_M": size}) for size in (128, 256)]
    what += [(str(folder / "kernels.py"), {"block": b, "kind": k}) for k in ("dynamic", "two") for b in (64, 128)]
    command = [sys.executable, "-c", CALL, str(folder), json.dumps(what)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(what)
    return found


@pytest.mark.parametrize(("which", "launches"), [(0, 4), (2, 1), (4, 2)], ids=["gemm", "dynamic", "two"])
def test_a_device_is_told_the_same_and_errors_are_the_same(called: list[Any], which: int, launches: int) -> None:
    for symbol, _, of_each in called[which : which + 2]:
        for tilelangs, ours in of_each:
            assert tilelangs == ours
        (right, _), (again, _), *wrong = of_each
        assert right == again and right[0] == ["device", 2, 3]
        assert len(right) == 1 + launches and right[-1][0].startswith(f"{symbol}_kernel")
        errors = [tilelangs[-1] for tilelangs, _ in wrong]
        assert sum(isinstance(error, str) and symbol in error for error in errors) >= 8, errors


def test_kernels_that_launch_alike_share_a_template_and_others_do_not(called: list[Any]) -> None:
    templates = [template for _, template, _ in called]
    assert templates[0::2] == templates[1::2] and len(set(templates)) == 3
    launched = [str(of_each[0][0]).replace(symbol, "") for symbol, _, of_each in called]
    assert len(set(launched)) == len(launched)  # with other sizes, each


BUILD = """if True:
    import os, sys
    import tilelang
    import msgspec, tvm_ffi
    from atune.model.candidate import Candidate, config_key
    from atune.model.device import Target
    from atune.processes.messages import Session
    from atune.model.settings import BenchmarkSettings, CompileSettings
    from atune.stages.compile import codegen
    from atune.stages.accelerators import host_code
    from atune.stages.compile import lowering
    from atune.stages.session.session import session
    from atune.workload.workload import FileRef

    folder, file, known = sys.argv[1], sys.argv[2], sys.argv[3] == "known"
    target = Target("cuda", "sm_90a")
    settings = Session(FileRef(file, "WORKLOAD"), target, CompileSettings(), BenchmarkSettings(), folder)
    session.begin(msgspec.msgpack.encode(settings))
    if not known:
        host_code.parse = lambda *_: None
    candidates = session.workload().candidates()
    group = [lowering.lower(candidate) for candidate in candidates]
    built = codegen.build(group, f"{folder}/built.so")
    module = tvm_ffi.load_module(f"{folder}/built.so")
    for artifact in built:
        try:
            module[artifact.symbol]()
        except RuntimeError as error:
            print(error)
    print(len([name for name in os.listdir(folder) if name.startswith("atune_host_")]))
"""
TENSOR = """
import tilelang.language as T

import atune


def kernel(block):
    @T.prim_func
    def main(NAME: T.Tensor((4096,), "float32")):
        with T.Kernel(4096 // block, threads=block) as bx:
            for i in T.Parallel(block):
                NAME[bx * block + i] = 1.0

    return main


WORKLOAD = atune.Workload(kernel, [{"block": block} for block in BLOCKS], inputs=[None], name="tensor")
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("known", "name", "blocks", "files"),
    [(False, "A", (64, 128), 0), (True, "atune_self", (64,), 1)],
    ids=["not known", "a template that is no C"],
)
def test_what_has_no_template_is_built_as_tilelang_does(
    tmp_path: Path, known: bool, name: str, blocks: tuple[int, ...], files: int
) -> None:
    (tmp_path / "tensor.py").write_text(TENSOR.replace("NAME", name).replace("BLOCKS", str(blocks)))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    command = [sys.executable, "-c", BUILD, str(run_dir), str(tmp_path / "tensor.py"), "known" if known else ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    *said, count = done.stdout.splitlines()
    assert len(said) == len(set(said)) == len(blocks) and all("num_args should be 1" in line for line in said)
    assert int(count) == files and not list(run_dir.glob("*.part"))


SOURCE = (
    f"// a comment\n#include <stdio.h>\n{host_code._CONTEXT}static void* __tvm_set_device_packed = NULL;\n"
    "static void* atune_kernel_1f_kernel_packed = NULL;\n"
    f"{host_code._DEFINED}  BODY\n  return 0;\n}}\n"
).replace(host_code._OWN, "atune_kernel_1f")


def parsed(body: str) -> tuple[tuple[int, ...], str] | None:
    """Return the numbers of a function with this line, and the line in its template."""
    found = host_code.parse(SOURCE.replace("BODY", body), "atune_kernel_1f")
    if found is None:
        return None
    code, template = found
    assert (
        code.numbers[-1] == 0
        and code.pointers == 1
        and not code.main
        and "1f" not in template.replace(code.template, "")
    )
    (line,) = (
        line
        for n, line in enumerate(template.splitlines())
        if template.splitlines()[n + 1 :][:1] == [f"  return ((int32_t)atune_self->numbers[{len(code.numbers) - 1}]);"]
    )
    return code.numbers[:-1], line.strip()


@pytest.mark.parametrize(
    ("body", "numbers", "line"),
    [
        ("x = 5;", (5,), "x = ((int32_t)atune_self->numbers[0]);"),
        ("x = -7 + 10;", (7, 10), "x = -((int32_t)atune_self->numbers[0]) + ((int32_t)atune_self->numbers[1]);"),
        ("x = 2147483647;", (2147483647,), "x = ((int32_t)atune_self->numbers[0]);"),
        ("x = ((int64_t)2147483648);", (2147483648,), "x = ((int64_t)((int64_t)atune_self->numbers[0]));"),
        ("y[3] = 1.5f + 1e5 + 0x10 + 7LL + 010 + .5;", (), "y[3] = 1.5f + 1e5 + 0x10 + 7LL + 010 + .5;"),
        ("y[3] = 1.0e+10 - 2e-10;", (), "y[3] = 1.0e+10 - 2e-10;"),
        ("TL_ALIGN(128) TVMFFIAny stack[17];", (), "TL_ALIGN(128) TVMFFIAny stack[17];"),
        ('f("got 5", \'6\'); // 7', (), 'f("got 5", \'6\'); // 7'),
        ('f("a \\" 5", 6);', (6,), 'f("a \\" 5", ((int32_t)atune_self->numbers[0]));'),
        ("x1 = (uint8_t)4;", (4,), "x1 = (uint8_t)((int32_t)atune_self->numbers[0]);"),
        ('f("atune_kernel_1f.A");', (), 'f(atune_text(atune_self, "\\001.A"));'),
        ("g(&atune_kernel_1f_kernel_packed);", (), "g(&atune_self->pointers[0]);"),
        ("void* atune_kernel_1f_A_shape;", (), "void* atune_own_A_shape;"),
    ],
)  # fmt: skip
def test_numbers_and_names_come_from_the_table(body: str, numbers: tuple[int, ...], line: str) -> None:
    for _ in range(2):  # the second time it is known
        assert parsed(body) == (numbers, line)


def test_what_differs_in_more_than_numbers_of_the_table_has_another_template() -> None:
    bodies = [
        'x1 = 5; f("1"); y[1] = 1;',
        'x1 = 6; f("1"); y[1] = 1;',
        'x2 = 5; f("1"); y[1] = 1;',
        'x1 = 5; f("2"); y[1] = 1;',
        'x1 = 5; f("1"); y[2] = 1;',
        'x1 = 2147483648; f("1"); y[1] = 1;',
        'x1 = 7; f("1"); y[1] = 1;',
    ]
    sources = [SOURCE.replace("BODY", body) for body in bodies]
    found = [host_code.parse(source, "atune_kernel_1f") for source in sources]
    codes = [each[0] for each in found if each is not None]
    assert [code.numbers[0] for code in codes] == [5, 6, 5, 5, 5, 2**31, 7]
    names = [code.template for code in codes]
    assert names[0] == names[1] == names[6] and len(set(names)) == 5
    again = host_code.parse(sources[0].replace("atune_kernel_1f", "atune_kernel_2e"), "atune_kernel_2e")
    assert again == found[0]


@pytest.mark.parametrize(
    "source",
    [
        "",
        SOURCE.replace("BODY", "switch (x) { case 1: break; }"),
        SOURCE.replace("BODY", "static int calls = 5;"),
        SOURCE.replace("BODY", "\n#ifdef A\n  x = 1;\n#endif"),
        SOURCE.replace("BODY", 'f("\x01");'),
        SOURCE.replace("BODY", "") + "int more;\n",
        SOURCE.replace("BODY", "").replace("static void*", "static int other;\nstatic void*", 1),
        SOURCE.replace("BODY", "").replace("// a comment", "// atune_kernel_1f"),
        SOURCE.replace("BODY", "").replace(host_code._CONTEXT, ""),
        SOURCE.replace("BODY", "").replace("num_args", "n_args"),
    ],
)
def test_what_is_not_as_tilelang_prints_it_is_not_taken_apart(source: str) -> None:
    assert host_code.parse(source, "atune_kernel_1f") is None


def test_messages_are_cut_off(tmp_path: Path) -> None:
    """Of a name that is too long for a message, what fits is said."""
    found = host_code.parse(SOURCE.replace("BODY", 'puts("atune_kernel_1f is long");'), "atune_kernel_1f")
    assert found is not None
    code, template = found
    host_code.keep(code.template, template, str(tmp_path))
    main = "int main(void) { return __tvm_ffi_%s(0, 0, 0, 0); }\n"

    def says(symbol: str) -> str:
        (tmp_path / "host.c").write_text(host_code.tables([(symbol, code)]) + main % symbol)

        def compiler(arguments: list[str]) -> None:
            subprocess.run(["gcc", "-w", "-include", "stdint.h", *arguments], check=True)

        template_object = host_code.compiled(code.template, str(tmp_path), compiler)
        compiler([str(tmp_path / "host.c"), template_object, "-o", str(tmp_path / "main")])
        return subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout

    assert says("k2") == "k2 is long\n"
    assert says("k" * 1020) == "k" * 1020 + " is\n"
    assert says("k" * 2000) == "k" * 1023 + "\n"
    assert sorted(path.suffix for path in tmp_path.glob("atune_host_*")) == [".c", ".o"]

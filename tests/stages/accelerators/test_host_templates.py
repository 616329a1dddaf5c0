"""The host's code from a template and a table: what stands in the table, what in the template, and what in neither."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from atune.stages.accelerators import host_templates

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

SOURCE = (
    f"// a comment\n#include <stdio.h>\n{host_templates._CONTEXT}static void* __tvm_set_device_packed = NULL;\n"
    "static void* atune_kernel_1f_kernel_packed = NULL;\n"
    f"{host_templates._DEFINED}  BODY\n  return 0;\n}}\n"
).replace(host_templates._OWN, "atune_kernel_1f")


def parsed(body: str) -> tuple[tuple[int, ...], str] | None:
    """Return the numbers of a function with this line, and the line in its template."""
    found = host_templates.parse(SOURCE.replace("BODY", body), "atune_kernel_1f")
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
    found = [host_templates.parse(source, "atune_kernel_1f") for source in sources]
    codes = [each[0] for each in found if each is not None]
    assert [code.numbers[0] for code in codes] == [5, 6, 5, 5, 5, 2**31, 7]
    names = [code.template for code in codes]
    assert names[0] == names[1] == names[6] and len(set(names)) == 5
    again = host_templates.parse(sources[0].replace("atune_kernel_1f", "atune_kernel_2e"), "atune_kernel_2e")
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
        SOURCE.replace("BODY", "").replace(host_templates._CONTEXT, ""),
        SOURCE.replace("BODY", "").replace("num_args", "n_args"),
    ],
)
def test_what_is_not_as_tilelang_prints_it_is_not_taken_apart(source: str) -> None:
    assert host_templates.parse(source, "atune_kernel_1f") is None


def test_messages_are_cut_off(tmp_path: Path) -> None:
    """Of a name that is too long for a message, what fits is said."""
    found = host_templates.parse(SOURCE.replace("BODY", 'puts("atune_kernel_1f is long");'), "atune_kernel_1f")
    assert found is not None
    code, template = found
    host_templates.keep(code.template, template, str(tmp_path))
    main = "int main(void) { return __tvm_ffi_%s(0, 0, 0, 0); }\n"

    def says(symbol: str) -> str:
        (tmp_path / "host.c").write_text(host_templates.tables([(symbol, code)]) + main % symbol)

        def compiler(arguments: list[str]) -> None:
            subprocess.run(["gcc", "-w", "-include", "stdint.h", *arguments], check=True)

        template_object = host_templates.compiled(code.template, str(tmp_path), compiler)
        compiler([str(tmp_path / "host.c"), template_object, "-o", str(tmp_path / "main")])
        return subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout

    assert says("k2") == "k2 is long\n"
    assert says("k" * 1020) == "k" * 1020 + " is\n"
    assert says("k" * 2000) == "k" * 1023 + "\n"
    assert sorted(path.suffix for path in tmp_path.glob("atune_host_*")) == [".c", ".o"]

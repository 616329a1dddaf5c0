"""One compiled function of the host for all candidates that launch their kernels alike.

For every kernel tilelang prints a function in C that checks the arguments, makes TMA descriptors and launches: hundreds
of lines, of which candidates of one workload differ in their name and in numbers. gcc takes as long for ten of them as
cicc for a kernel. Here that function is compiled once a run, with the name and the numbers read from a table, and each
library links it with the tables of its members.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from atune.stages.accelerators.base import Accelerator, Host, unless_cuda
from atune.stages.compile import linking
from atune.stages.compile.output import CompileError
from atune.stages.compile.steps import HostHalf, LinkJob
from atune.stages.session.session import session
from atune.system.folders import whole_file

_EXTERN = '#ifdef __cplusplus\nextern "C"\n#endif\n'
_ARGUMENTS = "void* self_handle, void* args, int32_t num_args, void* result"
_CONTEXT = "void* __tvm_ffi__library_ctx = NULL;\n"
_OWN = "\x01"
"""Stands for the symbol of a kernel, where what kernels share is told from what they do not."""
_DEFINED = f"{_EXTERN}int32_t __tvm_ffi_{_OWN}({_ARGUMENTS});\n{_EXTERN}int32_t __tvm_ffi_{_OWN}({_ARGUMENTS}) {{\n"
_MAIN = (
    f"\n// CodegenC: NOTE: Auto-generated entry function\n{_EXTERN}"
    "int32_t __tvm_ffi_main(void* self, void* args,int num_args, void* result) {\n"
    f"  return __tvm_ffi_{_OWN}(self, args, num_args, result);\n}}\n"
)
_POINTER = re.compile(r"static void\* (\x01?\w+) = NULL;\n")
_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|'(?:[^'\\\n]|\\.)*'|//[^\n]*|/\*.*?\*/|\[\d+\]|TL_ALIGN\(\d+\)"  # what has to be constant stays
    r"|(?P<own>\x01\w*)"
    r"|(?P<number>(?<![\w.])(?<![eE][+-])(?:0|[1-9]\d*)(?![\w.]))",
    re.DOTALL,
)
_NO_TABLE = re.compile(r"^\s*#|\bcase\b|\bstatic\b|__attribute__|\benum\b", re.MULTILINE)
"""What a function does not have that tilelang prints, and in which numbers may have to be constants."""
_DIGITS = re.compile(r"(\d+)")
_STRUCT = "struct atune_host { const char* symbol; void** pointers; const long long* numbers; };\n"
_TEMPLATE = """\
{head}extern void* __tvm_ffi__library_ctx;
{struct}{statics}
/* A message with the kernel's name where the byte 1 stands, cut off after 1023 bytes. */
static const char* atune_text(const struct atune_host* atune_self, const char* text) {{
  static __thread char texts[4][1024];
  static __thread unsigned turn;
  char* out = texts[turn++ % 4];
  size_t n = 0;
  for (; *text && n < 1023; text++) {{
    const char* name = atune_self->symbol;
    if (*text != 1)
      out[n++] = *text;
    else
      while (*name && n < 1023)
        out[n++] = *name++;
  }}
  out[n] = 0;
  return out;
}}
__attribute__((visibility("hidden"))) int32_t atune_host_NAME({arguments}, const struct atune_host* atune_self) {{
{body}
}}
"""


class HostTemplates(Accelerator):
    """Links members with one compiled template and their tables, where tilelang prints their host's code as known."""

    name, version = "host_templates", 1

    def applies(self, host: Host) -> str:
        return unless_cuda(host) or ("" if host.gcc else "gcc is missing")

    def link(self, job: LinkJob, plain: Callable[[LinkJob], None]) -> None:
        if job.exact and len(job.hosts) == 1:
            return plain(job)
        codes = _codes(job.hosts)
        if codes is None:
            return plain(job)
        try:
            files = _files(codes, job.folder)
        except CompileError:  # a template that is no C
            if len(job.hosts) > 1:
                raise
            return plain(job)
        linking.link(job.path, [*files, _packed(job)])


def _codes(hosts: Sequence[HostHalf]) -> list[tuple[str, HostCode]] | None:
    """Take the members' host code apart; None where one is not as tilelang is known to print it."""
    found = []
    for host in hosts:
        if (parsed := parse(host.source, host.symbol)) is None:
            return None
        code, template = parsed
        try:
            keep(code.template, template, session().run_dir)
        except OSError:  # a full disk
            return None
        found.append((host.symbol, code))
    return found


def _files(codes: Sequence[tuple[str, HostCode]], folder: str) -> list[str]:
    """Write the tables of `codes`; return the files to link, compiled templates among them."""
    path = Path(folder, "host.c")
    path.write_text(tables(codes), encoding="utf-8")
    names = dict.fromkeys(code.template for _, code in codes)
    options = linking.include_options()
    return [str(path), *(compiled(name, session().run_dir, lambda a: linking.gcc([*a, *options])) for name in names)]


def _packed(job: LinkJob) -> str:
    """Write the device code for the assembler; return the file."""
    from tilelang import tvm

    # What the host's module says is not read: it only holds the device's.
    library = tvm.get_global_func("runtime.CSourceModuleCreate")("", "c", [], [])
    for device in job.devices:
        library.import_module(device)
    return linking.pack(library, False, "", job.folder)


class HostCode(msgspec.Struct, frozen=True):
    """A kernel's function of the host, less what many share and its symbol."""

    template: str
    """Name of the function that many share."""
    numbers: tuple[int, ...]
    pointers: int
    """How many variables it keeps between calls: what it looked up by the kernel's name."""
    main: bool
    """Whether it is also found under the name that tvm knows a library's only function by."""


class _Form(NamedTuple):
    """What sources have in common that are alike but for numbers."""

    constants: tuple[str, ...]
    """Digits that stand in the template as they are, such as those of names."""
    places: tuple[int, ...]
    """Which of a source's digits are numbers in the table, by position."""
    wide: tuple[bool, ...]
    """Whether each of these is of 64 bits."""
    code: HostCode
    template: str


_forms: dict[str, _Form] = {}
"""By source without digits: each worker takes apart few sources, and finds of the others that they are alike."""
_MAX_FORMS = 32


def parse(source: str, symbol: str) -> tuple[HostCode, str] | None:
    """Return the own part of a kernel's host source, and the template: C that other kernels have, too.

    None where the source is not as tilelang is known to print it.
    """
    if _OWN in source:
        return None
    source = source.replace(symbol, _OWN)
    parts = _DIGITS.split(source)
    digits, without = parts[1::2], "\0".join(parts[::2])
    form = _forms.get(without)
    if form is not None and _constants(digits, form.places) == form.constants:
        numbers = tuple(int(digits[place]) for place in form.places)
        if tuple(map(_is_wide, numbers)) == form.wide:
            return msgspec.structs.replace(form.code, numbers=numbers), form.template
    form = _take_apart(source, digits)
    if form is None:
        return None
    if len(_forms) == _MAX_FORMS:
        _forms.clear()
    _forms[without] = form
    return form.code, form.template


def _take_apart(source: str, digits: Sequence[str]) -> _Form | None:
    main = source.endswith(_MAIN)
    head, context, rest = source.removesuffix(_MAIN).partition(_CONTEXT)
    statics, defined, rest = rest.partition(_DEFINED)
    body, closed, rest = rest.partition("\n}\n")  # within the function, what closes is indented
    names = _POINTER.findall(statics)
    strange = _POINTER.sub("", statics).strip() or rest.strip() or _OWN in head or _NO_TABLE.search(body)
    if not (context and defined and closed) or strange:
        return None
    own = [name for name in names if name.startswith(_OWN)]
    shared = "".join(f"static void* {name} = NULL;\n" for name in names if name not in own)
    place_of = {match.start(): n for n, match in enumerate(_DIGITS.finditer(source))}
    begin = len(head) + len(context) + len(statics) + len(defined)
    numbers, places = list[int](), list[int]()

    def from_table(match: re.Match[str]) -> str:
        kind, text = match.lastgroup, match[0]
        if kind == "text":
            named = text.replace(_OWN, r"\001")
            return text if named == text else f"atune_text(atune_self, {named})"
        if kind == "own":
            return f"atune_self->pointers[{own.index(text)}]" if text in own else f"atune_own{text[1:]}"
        if kind == "number":
            numbers.append(int(text))
            places.append(place_of[begin + match.start()])
            return f"((int{64 if _is_wide(numbers[-1]) else 32}_t)atune_self->numbers[{len(numbers) - 1}])"
        return text

    body = _TOKEN.sub(from_table, body)
    text = _TEMPLATE.format(head=head, struct=_STRUCT, statics=shared, arguments=_ARGUMENTS, body=body)
    name = f"atune_host_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    return _Form(
        _constants(digits, places),
        tuple(places),
        tuple(map(_is_wide, numbers)),
        HostCode(name, tuple(numbers), len(own), main),
        text.replace("atune_host_NAME", name, 1),
    )


def _constants(digits: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    tabled = set(places)
    return tuple(text for n, text in enumerate(digits) if n not in tabled)


def _is_wide(number: int) -> bool:
    """Tell whether C takes a literal of this value for one of 64 bits."""
    return number >= 2**31


def keep(name: str, text: str, folder: str) -> None:
    """Let workers of the run find the template `text` in `folder`."""
    path = Path(folder, f"{name}.c")
    if not path.exists():
        with whole_file(path) as part:
            Path(part).write_text(text, encoding="utf-8")


def compiled(name: str, folder: str, compiler: Callable[[list[str]], None]) -> str:
    """Return the object file of the template `name` in `folder`, made where no worker has made it.

    `compiler` takes the arguments that C is compiled with. It raises where it fails.
    """
    path = Path(folder, f"{name}.o")
    if not path.exists():
        with whole_file(path) as part:
            compiler(["-c", "-o", part, str(path.with_suffix(".c"))])
    return str(path)


def tables(members: Sequence[tuple[str, HostCode]]) -> str:
    """Return C that has the functions of `members`, with their symbols: each calls its template with its table."""
    lines = [_STRUCT, "void* __tvm_ffi__library_ctx = 0;\n"]
    four = "void* self, void* args, int num_args, void* result"
    lines += [
        f"int {name}({four}, const struct atune_host*);\n" for name in dict.fromkeys(c.template for _, c in members)
    ]
    for n, (symbol, code) in enumerate(members):
        numbers = ",".join(map(str, code.numbers))
        call = f"return {code.template}(self, args, num_args, result, &host_{n});"
        lines += [
            f"static const long long numbers_{n}[] = {{{numbers or 0}}};\n",
            f"static void* pointers_{n}[{max(1, code.pointers)}];\n",
            f'static const struct atune_host host_{n} = {{"{symbol}", pointers_{n}, numbers_{n}}};\n',
            f"int __tvm_ffi_{symbol}({four}) {{ {call} }}\n",
        ]
        if code.main and len(members) == 1:
            lines.append(f"int __tvm_ffi_main({four}) {{ {call} }}\n")
    return "".join(lines)

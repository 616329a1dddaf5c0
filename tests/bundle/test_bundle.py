"""A bundle's call: which kernel runs, and what is refused. Its kernels are a few lines of C."""

from __future__ import annotations

import json
import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import bundles
import pytest
import torch
from bundles import TWO, VECTOR, entry, library, write
from programs import python
from strangers import mutated

from atune.bundle import BundleError, DamagedBundle, OutsideProblems, WrongArguments, WrongMachine, load
from atune.bundle.launch import check_device, this_cpu
from atune.bundle.manifest import manifest_digest

ALONE = """
import sys
sys.modules.update(dict.fromkeys(["tilelang", "tvm", "tvm_ffi", "msgspec", "anyio"]))
import torch
from atune.bundle import load
found = load(sys.argv[1])
assert found(torch.ones(64)).sum() == 128
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "atune"))
"""


def ones(n: int) -> Any:
    return torch.ones(n)


def runs(tensor: Any) -> str:
    """Return which kernel of `TWO` made `tensor` of ones."""
    return {2.0: "twice", 10.0: "tenfold"}[float(tensor[0])]


def test_the_shape_chooses_the_kernel(tmp_path: Path) -> None:
    found = load(write(tmp_path))
    assert runs(found(ones(64))) == "twice" and runs(found(ones(1024))) == "tenfold"
    assert torch.equal(found(torch.arange(64.0)), 2 * torch.arange(64.0))  # a signature that is known by now
    assert found.problems == [{"n": 64}, {"n": 1024}]
    assert found(ones(64), out := torch.empty(64)) is None and runs(out) == "twice"  # with every parameter


def test_it_imports_nothing_else_of_atune(tmp_path: Path) -> None:
    """In a process where tilelang and its like cannot be imported, and no compiler is in reach."""
    write(tmp_path)
    done = python("-c", ALONE, tmp_path, PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.split())
    assert {"atune.bundle", "atune.bundle.launch"} < names
    assert {name for name in names if not name.startswith("atune.bundle")} == {"atune", "atune.version"}


def test_sizes_outside_the_problems_are_an_error(tmp_path: Path) -> None:
    message = r"no problem for these tensors has n=65; the bundle \w{12} has n=64; n=1024$"
    with pytest.raises(OutsideProblems, match=message):
        load(write(tmp_path))(ones(65))


@pytest.mark.parametrize(
    ("n", "kernel"), [(65, "twice"), (200, "twice"), (256, "twice"), (257, "tenfold"), (9000, "tenfold")]
)
@pytest.mark.parametrize("order", [TWO, TWO[::-1]], ids=["in order", "reversed"])
def test_the_nearest_in_log_sizes_runs_and_of_equals_the_smaller(
    n: int, kernel: str, order: Any, tmp_path: Path
) -> None:
    found = load(write(tmp_path, order), on_miss="nearest")
    with pytest.warns(RuntimeWarning, match=f"no problem of the bundle has n={n}, so the kernel of n=") as warned:
        assert runs(found(ones(n))) == kernel
    assert warned[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        found(ones(n))  # told once


FIXED = [entry("twice", {"N": n}, params=[{"dtype": "float32", "shape": [n], "strides": None}] * 2) for n in (32, 64)]
"""Kernels of two sizes, each of which takes its own alone."""


@pytest.mark.parametrize("on_miss", ["error", "nearest"])
def test_a_kernel_of_fixed_sizes_takes_no_others(on_miss: Any, tmp_path: Path) -> None:
    found = load(write(tmp_path, FIXED), on_miss=on_miss)
    message = r"parameter 0: no kernel takes float32 \[65\]; the bundle \w{12} has N=32; N=64; its kernels are"
    with pytest.raises(OutsideProblems, match=message):
        found(ones(65))
    if on_miss == "error":  # a size that is named wrongly
        with pytest.raises(OutsideProblems, match="no problem for these tensors has N=32; "):
            found(ones(64), N=32)


def test_what_no_kernel_takes_is_named_before_the_sizes(tmp_path: Path) -> None:
    found = load(write(tmp_path, FIXED))
    for n in (32, 64):
        with pytest.raises(WrongArguments, match=r"^parameter 1: the kernel takes float32; got float64"):
            found(ones(n), ones(n).double())
        with pytest.raises(WrongArguments, match=r"^parameter 0: the kernel takes a contiguous tensor"):
            found(torch.ones(2 * n)[::2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(torch.ones(64, dtype=torch.float64)), "parameter 0: the kernel takes float32; got float64"),
        (lambda f: f(torch.ones(128)[::2]), r"takes a contiguous tensor; got strides \[2\]"),
        (lambda f: f(torch.ones(64, device="meta")), "takes tensors on cpu; got a tensor on meta"),
        (lambda f: f(torch.ones(64), torch.ones(64, device="meta")), "parameter 1: the kernel takes tensors on cpu"),
        (lambda f: f(), "takes 1 input, or all 2 parameters; got 0 arguments"),
        (lambda f: f(3), r"parameter 0: the kernel takes a tensor of float32 \['n'\]; got 3"),
        (lambda f: f([1.0]), "torch tensors and numbers; got an argument of <class 'list'>"),
        (lambda f: f(torch.ones(64), N=64), "no problem of the bundle has 'N': a call may name n"),
        (lambda f: f(torch.ones(64, 2)), r"parameter 0: the kernel takes 1 dimension; got float32 \[64, 2\]"),
        (lambda f: f(torch.ones(64), n=[64]), "got the problem"),
        (lambda f: f(None), "torch tensors and numbers; got an argument of <class 'NoneType'>"),
        (lambda f: f(torch.ones(64), n=1024), "the call names n=1024, but the tensors have n=64"),
        (lambda f: f(torch.ones(64), n="64"), "the call names n='64', but the tensors have n=64"),
        (lambda f: f(torch.ones(64), torch.ones(65)), r"\[65\] disagrees with earlier tensors, which have n=64"),
    ],
)
def test_arguments_that_no_kernel_takes(call: Any, message: str, tmp_path: Path) -> None:
    found = load(write(tmp_path), on_miss="nearest")
    with pytest.raises(WrongArguments, match=message):
        call(found)


@pytest.mark.parametrize("on_miss", ["error", "nearest"])
def test_what_else_tells_problems_apart_must_be_named_for_all_sizes(on_miss: Any, tmp_path: Path) -> None:
    """Else a kernel of another `far` would run, and return other values."""
    problems = [
        entry(symbol, {"n": n, "far": symbol == "tenfold"}) for symbol in ("twice", "tenfold") for n in (64, 1024)
    ]
    found = load(write(tmp_path, problems), on_miss=on_miss)
    with pytest.raises(WrongArguments, match="4 problems take these tensors: pass far=False or far=True by name"):
        found(ones(100))
    assert runs(found(ones(64), far=False)) == "twice" and runs(found(ones(64), far=True)) == "tenfold"
    if on_miss == "nearest":
        with pytest.warns(RuntimeWarning, match=r"the kernel of n=64, far=True runs"):
            assert runs(found(ones(100), far=True)) == "tenfold"
        with pytest.raises(OutsideProblems, match="no problem for these tensors has n=100, far=3"):
            found(ones(100), far=3)


def test_the_nearest_is_of_the_kernels_that_take_the_call(tmp_path: Path) -> None:
    """Of two widths, each with symbolic rows."""
    problems = []
    for symbol, width in (("twice", 4), ("tenfold", 8)):
        rows = {"dtype": "float32", "shape": ["n", width], "strides": None}
        params = {"params": [rows, rows], "calls": [0, 1, "n"]}
        problems += [entry(symbol, {"n": n, "width": width}, **params) for n in (64, 1024)]
    found = load(write(tmp_path, problems), on_miss="nearest")
    for width, by in ((4, 2.0), (8, 10.0)):
        with pytest.warns(RuntimeWarning, match=f"the kernel of n=64, width={width} runs"):
            assert float(found(torch.ones(100, width))[0, 0]) == by
    with pytest.raises(OutsideProblems, match=r"no kernel takes float32 \[100, 5\]; the bundle .* fixed sizes$"):
        found(torch.ones(100, 5))


@pytest.mark.parametrize("on_miss", ["error", "nearest"])
def test_where_the_space_asks_for_a_size_the_tuned_sizes_are_served_alone(on_miss: Any, tmp_path: Path) -> None:
    """A bundle holds no functions, so that nothing says which of its kernels another size may use."""
    why = "where= takes n, and a bundle has no functions, so it serves only the tuned sizes"
    write(tmp_path, asks=["n"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = load(tmp_path, on_miss=on_miss)
    said = [f"on_miss={on_miss!r} of {tmp_path} has no effect: {why}"] if on_miss != "error" else []
    assert [str(one.message) for one in warned] == said and all(one.filename == __file__ for one in warned)
    assert runs(found(ones(64))) == "twice" and runs(found(ones(1024))) == "tenfold"
    for n in (63, 65, 256, 2000):
        with pytest.raises(OutsideProblems, match=rf"no problem for these tensors has n={n}; .*; {re.escape(why)}$"):
            found(ones(n))


# ---- what arguments are like


def test_numbers_and_an_output_that_is_not_last(tmp_path: Path) -> None:
    number = {"dtype": "float32", "shape": None, "strides": None}
    params = {"params": [VECTOR, VECTOR, number], "outputs": [0], "calls": [0, 1, 2, "n"]}
    found = load(write(tmp_path, [entry("times", {"n": 8}, **params)]))
    assert torch.equal(found(ones(8), 2.5), torch.full((8,), 2.5)) and torch.equal(found(ones(8), 3), 3 * ones(8))
    with pytest.raises(WrongArguments, match="parameter 2: the kernel takes a number; got a tensor"):
        found(ones(8), ones(8))


def test_declared_strides_and_sizes_that_are_computed(tmp_path: Path) -> None:
    rows = {"dtype": "float32", "shape": ["m", "n"], "strides": ["stride", 1]}
    sums = {"dtype": "float32", "shape": ["m", "n - n + 1"], "strides": [2, 1]}
    params = {"params": [rows, sums], "outputs": [1], "calls": [0, "stride", 1, "m", "n"]}
    found = load(write(tmp_path, [entry("sums", {"m": 3}, **params)]))
    wide = torch.arange(24.0).reshape(3, 8)
    total = found(wide[:, :5])
    assert total.shape == (3, 1) and total.stride() == (2, 1)
    assert torch.equal(total[:, 0], wide[:, :5].sum(1)) and torch.equal(found(wide)[:, 0], wide.sum(1))
    with pytest.raises(WrongArguments, match=r"with strides \['stride', 1\]; got strides \[1, 3\]"):
        found(torch.ones(5, 3).t())
    with pytest.raises(WrongArguments, match=r"1: float32 \[3, 2\] disagrees .* n - n \+ 1 is 2, but must be 1"):
        found(wide, torch.ones(3, 2))


def test_an_output_whose_size_no_input_tells(tmp_path: Path) -> None:
    unknown = {"dtype": "float32", "shape": ["k"], "strides": None}
    found = load(write(tmp_path, [entry("twice", {"n": 64}, params=[VECTOR, unknown])]))
    with pytest.raises(WrongArguments, match="the inputs do not determine 'k' of output 1: pass every parameter"):
        found(ones(64))
    found(ones(64), out := torch.empty(64))
    assert runs(out) == "twice"


@pytest.mark.parametrize("dtype", ["Tensor", "float33"])
def test_a_dtype_that_names_something_else_of_torch(dtype: str, tmp_path: Path) -> None:
    """Nothing that torch has by a stranger's name is taken for a dtype, whether it is an input's or an output's."""
    strange = {**VECTOR, "dtype": dtype}
    found = load(write(tmp_path, [entry("twice", {"n": 64}, params=[VECTOR, strange])]))
    with pytest.raises(WrongArguments, match=f"torch lacks an output's dtype, {dtype}"):
        found(ones(64))
    found = load(write(tmp_path / "input", [entry("twice", {"n": 64}, params=[strange, VECTOR])]))
    with pytest.raises(WrongArguments, match=f"the kernel takes {dtype}; got float32"):
        found(ones(64))


def test_gradients_are_not_lost_silently(tmp_path: Path) -> None:
    found, weight = load(write(tmp_path)), torch.nn.Parameter(ones(64))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="requires grad"):
            found(weight)
        with torch.no_grad():
            assert runs(found(weight)) == "twice"


def test_a_kernel_that_fails_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fails returned 3"):
        load(write(tmp_path, [entry("fails", {"n": 64})]))(ones(64))


# ---- what is not loaded


def test_a_damaged_file_is_named_by_its_digest(tmp_path: Path) -> None:
    [path] = write(tmp_path).glob("*.so")
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(DamagedBundle, match=rf"{path.name} is damaged: its SHA-256 is \w+, not {path.stem}; copy"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedBundle, match=rf"{path.name}, with SHA-256 {path.stem}, cannot be read: No such file"):
        load(tmp_path)


def test_a_library_of_the_runtime_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    """Loading it would run what the bundle's digest does not vouch for."""
    (write(tmp_path) / "runtime").mkdir()
    (tmp_path / "runtime" / "libstub_other.so").write_bytes(b"")
    with pytest.raises(DamagedBundle, match=r"libstub_other\.so is not part of the bundle: remove it"):
        load(tmp_path)


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path) / "manifest.json"
    path.write_text(path.read_text().replace('"n"', '"m"', 1))
    with pytest.raises(DamagedBundle, match=r"manifest.json was changed: its SHA-256 is \w{64}, but it says \w{64}"):
        load(tmp_path)


STRANGE_TEXTS = "[" * 100_000, '{"schema":' + "9" * 5000 + "}", '{"schema":1e999}', '{"schema":NaN}'


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "1"}', "\x00", *STRANGE_TEXTS])
def test_what_is_no_manifest_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DamagedBundle, match=r"manifest\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"files": {"../evil.so": "0"}},
        {"files": {"/etc/passwd": "0"}},
        {"files": {}},
        {"problems": [{"problem": {}}]},
        {"problems": [entry("twice", {"n": 64}, calls=[0, None])]},
        {"problems": []},
        {"without": "cpu"},
        {"target": "hip"},
        {"target": "cuda", "arch": "my card"},
        {"requires": {"evil'; rm": ">=1"}},
    ],
)
def test_a_manifest_with_other_content_is_refused(fields: Any, tmp_path: Path) -> None:
    with pytest.raises(DamagedBundle, match="is not the manifest of a bundle"):
        load(write(tmp_path, fields.pop("problems", TWO), **fields))


def test_a_library_that_does_not_load_is_named_by_its_digest(tmp_path: Path) -> None:
    found = load(write(tmp_path, data=b"no library"))
    with pytest.raises(DamagedBundle, match=rf"library {found.manifest['problems'][0]['library']} does not load"):
        found(ones(64))


def test_what_is_no_bundle_and_what_is_newer(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest.json"):
        load(tmp_path)
    with pytest.raises(BundleError, match="none is not a bundle: there is no such folder"):
        load(tmp_path / "none")
    with pytest.raises(BundleError, match="has schema 2, but this atune reads schemas up to 1: install a newer atune"):
        load(write(tmp_path, schema=2))
    with pytest.raises(BundleError, match="on_miss must be 'error' or 'nearest', got 'warn'"):
        load(write(tmp_path), on_miss="warn")  # type: ignore[arg-type]


# ---- another machine


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpu": {"machine": "sparc64", "name": "", "features": []}}, "is for sparc64, but this machine is"),
        (
            {"cpu": this_cpu() | {"name": "a CPU", "features": ["avx9000"]}},
            "compiled on a CPU, but this CPU, .* lacks avx9000",
        ),
        ({"requires": {"no-such-package": ">=1"}}, "needs no-such-package: pip install 'no-such-package>=1'"),
    ],
)
def test_a_machine_that_cannot_run_it(fields: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongMachine, match=message):
        load(write(tmp_path, **fields))


def test_without_a_cuda_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WrongMachine, match="for CUDA devices of sm_90a, but torch finds no CUDA device"):
        load(write(tmp_path, target="cuda", arch="sm_90a"))


@pytest.mark.parametrize(
    ("arch", "capability", "fits"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_80", (8, 6), False),
        ("sm_100f", (10, 0), True),
    ],
)
def test_code_for_another_device(arch: str, capability: Any, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    if fits:
        return check_device(arch, "cuda:0")
    with pytest.raises(WrongMachine, match=rf"is for {arch}, but cuda:0 is a GPU, sm_{capability[0]}{capability[1]}"):
        check_device(arch, "cuda:0")


def test_the_digest_is_that_of_all(tmp_path: Path) -> None:
    found = load(write(tmp_path / "one"))
    assert load(write(tmp_path / "other")).digest == found.digest == json.loads(json.dumps(found.manifest))["digest"]
    assert load(write(tmp_path / "less", TWO[:1])).digest != found.digest
    assert found.digest[:12] in repr(found) and len(bundles.library()) > 1000


def test_the_operator_of_the_recipe_keeps_a_graph_whole(tmp_path: Path) -> None:
    """docs/torch.md: a custom operator around the bundle, with what tells its output's size."""
    found = load(write(tmp_path))

    @torch.library.custom_op("atune_tests::of_bundle", mutates_args=())
    def operator(A: torch.Tensor) -> torch.Tensor:
        return found(A)

    operator.register_fake(lambda A: A.new_empty(A.shape[0]))
    whole = torch.compile(lambda A: operator(A).relu() + 1, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings(action="ignore"):
        for n, by in ((64, 2), (1024, 10)):
            assert torch.equal(whole(ones(n)), by * ones(n) + 1)
    torch.library.opcheck(operator, (ones(64),))


# ---- a stranger's bundle: a value, or one error


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), sparse])
@pytest.mark.parametrize("name", ["manifest.json", "*.so"])
def test_a_file_that_is_none_or_has_no_end_is_refused(make: Any, name: str, tmp_path: Path) -> None:
    [path] = write(tmp_path).glob(name)
    path.unlink()
    make(path)
    with pytest.raises(DamagedBundle, match=f"{re.escape(path.name)}.* cannot be read: .*(regular file|longer than)"):
        load(tmp_path)


@pytest.mark.parametrize("before", ["the first call", "another signature"])
def test_what_is_loaded_is_what_was_compared(before: str, tmp_path: Path) -> None:
    """A library that is replaced after `load` is refused, and never runs."""
    data = library() + before.encode()  # one that this process has not loaded yet
    found = load(write(tmp_path, data=data))
    [path] = tmp_path.glob("*.so")
    if before == "another signature":
        assert runs(found(ones(64))) == "twice"
    path.write_bytes(data + b"!")
    if before == "the first call":
        with pytest.raises(DamagedBundle, match="is damaged: its SHA-256 is"):
            found(ones(64))
    else:
        assert runs(found(ones(1024))) == "tenfold"  # from memory


STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**62, 2**70, 1e300, float("nan"), float("inf"), "", "\0", "a" * 9999, "n-9", "(" * 999, [], [[]],
    [None], ["n"], {}, {"": None}, {"n": 10**400}, "../../etc/passwd", "\ud800",
)  # fmt: skip


def test_a_strangers_manifest_is_a_bundle_or_one_error(tmp_path: Path) -> None:
    """Whoever changes it can make its digest fit. What its machine code does is another matter."""
    random, loaded = Random(46), 0
    plain = json.loads((write(tmp_path) / "manifest.json").read_text())
    for _ in range(MUTATIONS := 1000):
        changed = mutated(plain, random, STRANGE)
        if isinstance(changed, dict):
            changed["digest"] = manifest_digest(changed)
        (tmp_path / "manifest.json").write_text(json.dumps(changed))
        with suppress(BundleError):
            load(tmp_path)
            loaded += 1
    assert 100 < loaded < MUTATIONS - 200
